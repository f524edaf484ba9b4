"""Who judges: the run's judge, or models of a scorer's own; asked side by side, all of them awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from windrow.config import PolicyConfig, nearest
from windrow.errors import ScorerError
from windrow.grading.base import BaseScorer
from windrow.records import Json
from windrow.tasks.prompts import PromptTemplate, text_template

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

JUDGE = "judge"


class JudgingScorer(BaseScorer):
    """A scorer that cannot do without a judge: the run's, or those that its settings name (`judge`, `judges`)."""

    after_commit = True

    def __init__(
        self, name: str, weight: float, settings: Mapping[str, Json], judges: Sequence[PolicyConfig]
    ) -> None:
        self.needs_judge = not judges  # of the run: its own are always there
        super().__init__(name, weight, settings)
        self._models = {
            JUDGE if len(judges) == 1 else f"judge {n}": model for n, model in enumerate(judges, 1)
        }
        self.panel = tuple(self._models) or (JUDGE,)
        for number, model in enumerate(judges):
            if not model.model:
                raise ValueError(f"judges[{number}] names no 'model'")
            if any(
                (model.model, model.sampling) == (other.model, other.sampling) for other in judges[:number]
            ):
                raise ValueError(
                    f"judges[{number}] is a judge that is listed before it, wherever it is served: it would say the "
                    f"same again"
                )

    def models(self) -> Mapping[str, PolicyConfig]:
        return self._models

    @classmethod
    def identity(cls, settings: Mapping[str, Json]) -> Json:
        """The judges count as models: what they are, not where they are served."""
        return {key: value for key, value in settings.items() if key not in ("judge", "judges")}


def read_settings(settings: Mapping[str, Json], kind: type[S]) -> S:
    """A scorer's settings, typed; ValueError names what is wrong."""
    for key in settings:
        if key not in kind.__struct_fields__:
            raise ValueError(f"there is no setting {key!r}{nearest(key, kind.__struct_fields__)}")
    try:
        return msgspec.convert(dict(settings), kind)
    except msgspec.ValidationError as problem:
        raise ValueError(str(problem)) from None


def template_of(prompt: str | None) -> PromptTemplate | None:
    """The setting `prompt`, read."""
    return None if prompt is None else text_template(prompt, name="prompt")


def question(
    template: PromptTemplate | None, text: str, values: Mapping[str, Json], scorer: str
) -> list[dict[str, Any]]:
    """What a judge is asked: `text`, or the template of the settings filled with these values."""
    if template is None:
        return [{"role": "user", "content": text}]
    try:
        return template.messages(values)
    except ValueError as problem:
        raise ScorerError(f"scorer {scorer!r}: {problem}", retryable=False) from None


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What all of these give, in their order. All are awaited before the first failure is raised: what the others were
    answered is kept, and not asked again."""
    results = await asyncio.gather(*works, return_exceptions=True)
    values: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        values.append(result)
    return values
