"""The protocols of scorers: `Scorer` judges one episode, `GroupScorer` all samples of a task together.

Most scorers need none of this: a function `(task, reply) -> float` is one already (see `windrow.grading.user_functions`).
Derive a class from `windrow.grading.base.BaseScorer` if a scorer has settings, several scores, or models of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from windrow.config import PolicyConfig, ScorerConfig
from windrow.envs.base import Episode, Messages, ScoreContext
from windrow.errors import ScorerError
from windrow.policies.base import ForcedTokens
from windrow.records import AttemptId, RecordedScore, RolloutGroup, TeacherTokens

T = TypeVar("T")


class Verdict(msgspec.Struct, frozen=True):
    """The verdict of one scorer on one episode.

    `scores` are recorded by name and enter the reward with their weights; `metrics` are recorded and never enter it.
    `tokens` are logprobs that the scorer's model gives the sampled ids, by the number of the turn.
    """

    scores: dict[str, RecordedScore]
    metrics: dict[str, float]
    tokens: dict[int, TeacherTokens] = {}


class _AnyScorer(Protocol):
    """The part that both kinds of scorers share.

    `name` is unique in a run; verdicts are known by it. `env` is the only environment whose episodes the scorer judges,
    or None if it judges those of all. `config` is the configuration that it was made from, if there is one.

    `models` returns the models that the scorer brings and asks, by name. A scorer with `asks_judge` may ask the run's
    judge, called "judge", if there is one; with `needs_judge` a run without a judge is refused. Set `only_reads` if the
    scorer never changes what it is shown: then it is shown the record itself, and not a copy.
    """

    name: str
    env: str | None
    config: ScorerConfig | None
    asks_judge: bool
    only_reads: bool

    @property
    def needs_judge(self) -> bool: ...
    def models(self) -> Mapping[str, PolicyConfig]: ...


class Scorer(_AnyScorer, Protocol):
    """Judges one episode.

    `judge` runs before the rollout is written, and its verdict stands in the rollout's own line. With `after_commit` it
    runs once the rollout is on disk, and only then may it ask models through `ctx`. If it raises, the grading has failed
    and the next call tries it again; the rollout is not run again.
    """

    @property
    def after_commit(self) -> bool: ...
    async def judge(self, episode: Episode, ctx: ScoreContext) -> Verdict: ...


@runtime_checkable
class GroupScorer(_AnyScorer, Protocol):
    """Judges the final attempts of a group together, once all of them are on disk.

    `judge_group` returns a verdict for every member, by `rollout.key`. None says that the scorer does not apply to that
    member. A missing member, or one that is not in the group, is a failed grading.
    """

    async def judge_group(
        self, group: RolloutGroup, ctx: ScoreContext
    ) -> Mapping[AttemptId, Verdict | None]: ...


AnyScorer = Scorer | GroupScorer


class NoJudge:
    """The `ScoreContext` of a scorer that runs before the commit: it has no models to ask."""

    async def ask(
        self,
        messages: Messages,
        read: Callable[[str], T | Awaitable[T]],
        *,
        about: str | None = None,
        judge: str = "judge",
    ) -> T:
        raise ScorerError("a judge is asked after the commit: set after_commit = True", retryable=False)

    def blob_path(self, name: str) -> str | None:
        return None

    async def scored(self, given: ForcedTokens, *, top: int = 0, judge: str = "judge") -> TeacherTokens:
        raise ScorerError("a judge is asked after the commit: set after_commit = True", retryable=False)
