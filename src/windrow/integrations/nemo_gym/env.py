"""`nemo-gym`: rows of NeMo Gym, played and verified by its servers. This environment only provides the opening."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windrow.config import ScorerConfig
from windrow.envs.base import Observation
from windrow.envs.problem import Problem
from windrow.errors import EnvError
from windrow.integrations.nemo_gym.rows import has_input, opening_of, params_of
from windrow.records import Json, Task

NAME = "nemo-gym"


class NemoGym(Problem):
    """Opens with the input of the row, or with the output of a prompt template. The scorer `nemo-gym` reports the
    verdict.
    """

    name = NAME
    version = 1

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        if not params_of(row):
            raise ValueError(
                f"a row of NeMo Gym has 'responses_create_params', an object (it has: {', '.join(row) or 'nothing'})"
            )
        opening_of(row)

    @classmethod
    def scorers(cls, settings: Mapping[str, Json]) -> Sequence[ScorerConfig]:
        return [ScorerConfig(name=NAME)]

    async def reset(self, task: Task) -> Observation:
        row = task.data or {}
        if self.ctx.prompt is None:
            return Observation(opening_of(row))
        if has_input(row):
            raise EnvError(
                "the row has an 'input' of its own, which the prompt template would replace; leave --prompt out",
                kind="two_prompts",
                retryable=False,
            )
        return Observation(self.ctx.prompt.messages(row))
