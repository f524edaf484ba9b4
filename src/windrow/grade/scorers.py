"""Scorers by name: `number`, `exact`, …, or a user's own `module:function`.

A user's scorer is `(task, reply) -> float | dict | Score`, plain or async. A plain one runs in a thread, so that it
cannot hold up the run, and so does an async one that was found to; with the attribute `after_commit = True` it runs once the rollout is on disk.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from windrow.config import ScorerConfig, expand, nearest
from windrow.engine.episode import verdict_of
from windrow.engine.guard import blocks, guarded
from windrow.engine.threads import in_thread
from windrow.engine.world import Scorer, Verdict
from windrow.envs import Episode
from windrow.errors import ScorerError, UsageError
from windrow.grade import answers
from windrow.grade.math import check_installed, math_judge
from windrow.identity import source_hash
from windrow.naming import name_of, resolve
from windrow.records import Json, RecordedScore, Score

Judge = Callable[[str, Json, Mapping[str, Json]], answers.Judged | Awaitable[answers.Judged]]

BUILT_IN: dict[str, tuple[Judge, tuple[str, ...]]] = {
    "exact": (answers.exact, ()),
    "contains": (answers.contains, ()),
    "regex": (answers.regex, ("pattern",)),
    "choice": (answers.choice, ()),
    "number": (answers.number, ("tolerance",)),
    "math": (math_judge, ("cpu_s",)),
}
FORMAT_WEIGHT = "format_weight"


class AnswerScorer:
    """Compares the last reply with the row's `answer`: correctness under the scorer's name, form as NAME.format."""

    version = 1
    after_commit = False
    needs_answer = True

    def __init__(self, name: str, judge: Judge, weight: float, settings: Mapping[str, Json]) -> None:
        self.name = name
        self._judge = judge
        self._weight = weight
        self._settings = settings
        self._format_weight = float(settings.get(FORMAT_WEIGHT, 0.0))

    async def judge(self, episode: Episode) -> Verdict:
        answer = episode.task.get("answer")
        if answer is None:
            raise ScorerError(f"scorer {self.name!r} needs an 'answer' in the task row", retryable=False)
        judged = self._judge(episode.reply, answer, self._settings)
        correct, formed = await judged if inspect.isawaitable(judged) else judged
        scores = {
            self.name: RecordedScore(value=float(correct), weight=self._weight, scorer=self.name),
            f"{self.name}.format": RecordedScore(
                value=float(formed), weight=self._format_weight, scorer=self.name
            ),
        }
        return Verdict(scores, {})


class FunctionScorer:
    """A user's own function."""

    needs_answer = False

    def __init__(self, name: str, function: Callable[..., Any], weight: float, settings: Mapping[str, Json]):
        self.name = name
        self.version = getattr(function, "version", None)
        self.after_commit = bool(getattr(function, "after_commit", False))
        self.source = source_hash(function)
        self._function = function
        self._weight = weight
        self._settings = dict(settings)

    async def judge(self, episode: Episode) -> Verdict:
        result = await self._judged(partial(self._function, episode.task, episode.reply, **self._settings))
        return _verdict(result, self.name, self._weight)

    async def _judged(self, work: Callable[[], Any]) -> Any:
        who = f"scorer {self.name!r}"
        if blocks(who):
            return await in_thread(_to_its_end, work)
        result = work() if inspect.iscoroutinefunction(self._function) else await in_thread(work)
        if inspect.isawaitable(result):
            result = await guarded(result, who, "from now on it runs in a thread with a loop of its own")
        return result


def make_scorer(config: ScorerConfig) -> Scorer:
    settings = expand(config.settings, where=f"scorer {config.name!r}")
    if config.name in BUILT_IN:
        judge, known = BUILT_IN[config.name]
        _check_settings(config.name, settings, (*known, FORMAT_WEIGHT))
        if judge is math_judge:
            check_installed()
        return AnswerScorer(config.name, judge, config.weight, settings)
    found = resolve("scorer", config.name, BUILT_IN)
    if not callable(found):
        raise UsageError(f"scorer {config.name!r} is not a function (task, reply) -> float | dict | Score")
    return FunctionScorer(config.name, found, config.weight, settings)


def function_scorer(function: Callable[..., Any], weight: float = 1.0) -> Scorer:
    return FunctionScorer(name_of(function), function, weight, {})


def _to_its_end(work: Callable[[], Any]) -> Any:
    """What a plain or an async function gives, here and now."""

    async def whole() -> Any:
        result = work()
        return await result if inspect.isawaitable(result) else result

    return asyncio.run(whole())


def _check_settings(name: str, settings: Mapping[str, Json], known: tuple[str, ...]) -> None:
    for key, value in settings.items():
        if key not in known:
            raise UsageError(f"scorer {name!r} has no setting {key!r}{nearest(key, known)}")
        if key == "pattern":
            try:
                re.compile(value)
            except (re.error, TypeError) as problem:
                raise UsageError(f"scorer {name!r}: the pattern does not compile: {problem}") from None
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"scorer {name!r}: {key} must be a number, found {value!r}")
        elif key == "cpu_s" and value < 1:
            raise UsageError(f"scorer {name!r}: {key} must be at least 1 second, found {value!r}")


def _verdict(result: Any, name: str, weight: float) -> Verdict:
    if isinstance(result, Mapping):
        result = Score(dict(result))
    elif result is None:
        raise ScorerError(f"scorer {name!r} returned None; expected a number, a dict or a Score")
    elif not isinstance(result, Score):
        result = Score(result)
    if isinstance(result.value, dict):
        if not result.value:
            raise ScorerError(f"scorer {name!r} returned an empty dict; expected at least one score")
        named = {f"{name}.{key}": _pair(value, weight) for key, value in result.value.items()}
        result = msgspec.structs.replace(result, value=named)
    return verdict_of(result, name=name, weight=weight, scorer=name)


def _pair(value: Any, weight: float) -> tuple[float, float]:
    """A score alone has the scorer's weight; (value, weight) has its own."""
    return (value[0], value[1] * weight) if isinstance(value, tuple) and len(value) == 2 else (value, weight)
