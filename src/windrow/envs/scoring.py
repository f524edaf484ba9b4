"""What judges an episode: a scorer, and the verdict that it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from windrow.config import PolicyConfig, ScorerConfig
from windrow.envs.base import Episode, Messages, ScoreContext
from windrow.errors import ScorerError
from windrow.policies.base import ForcedTokens
from windrow.records import AttemptId, RecordedScore, RolloutGroup, TeacherTokens

T = TypeVar("T")


class Verdict(msgspec.Struct, frozen=True):
    """What one scorer said of one episode, and by turn of its ids."""

    scores: dict[str, RecordedScore]
    metrics: dict[str, float]
    tokens: dict[int, TeacherTokens] = {}


class _Judging(Protocol):
    """What all scorers have. `env` is the only environment whose episodes it judges; None: any.

    `models` are those that it asks itself; the run's judge is asked by one that `asks_judge`, and must be there for
    one that `needs_judge`. One that `only_reads` changes nothing that it is shown, and needs no copy.
    """

    name: str
    env: str | None
    config: ScorerConfig | None
    asks_judge: bool
    only_reads: bool

    @property
    def needs_judge(self) -> bool: ...
    def models(self) -> Mapping[str, PolicyConfig]: ...


class Scorer(_Judging, Protocol):
    """Judges an episode. `after_commit` scorers run once the rollout is on disk."""

    @property
    def after_commit(self) -> bool: ...
    async def judge(self, episode: Episode, ctx: ScoreContext) -> Verdict: ...


@runtime_checkable
class GroupScorer(_Judging, Protocol):
    """Judges the final attempts of a group together, once they are all on disk.

    A verdict of None says that it does not apply to that member; every member has one.
    """

    async def judge_group(
        self, group: RolloutGroup, ctx: ScoreContext
    ) -> Mapping[AttemptId, Verdict | None]: ...


AnyScorer = Scorer | GroupScorer


class NoJudge:
    """The context of a scorer that runs before the commit: it has nobody to ask."""

    async def ask(
        self, messages: Messages, read: Callable[[str], T], *, about: str | None = None, judge: str = "judge"
    ) -> T:
        raise ScorerError("a judge is asked after the commit: set after_commit = True", retryable=False)

    async def scored(self, given: ForcedTokens, *, top: int = 0, judge: str = "judge") -> TeacherTokens:
        raise ScorerError("a judge is asked after the commit: set after_commit = True", retryable=False)
