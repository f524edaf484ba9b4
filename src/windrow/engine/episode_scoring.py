"""Scoring an episode before it is committed: by its environment, then by the scorers that run before the commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from windrow.engine.context import EpisodeSetup, RunContext
from windrow.engine.record_building import recorded_episode
from windrow.engine.recorder import Recorder
from windrow.envs import Episode
from windrow.envs.scoring import NoJudge, Verdict
from windrow.errors import ScorerError, error_record
from windrow.records import Owner, RecordedScore, Score, is_withheld, reward_of
from windrow.util.cancellation import is_cancelled, is_ours
from windrow.util.deadlines import Deadline, limits_work
from windrow.util.freeze import Freezer, number

T = TypeVar("T")

EnvScore = Callable[[Episode], Awaitable[Score | None]]

NO_JUDGE = NoJudge()


async def score_episode(
    context: RunContext, setup: EpisodeSetup, recorder: Recorder, env_score: EnvScore | None
) -> None:
    """Score an episode that has ended, and set its grade. A failure to score leaves the outcome as it is."""
    if env_score is not None or setup.before_commit or recorder.has_step_rewards():
        with recorder.timed("score"):
            if not await _apply_scorers(context, setup, recorder, env_score):
                return
    if len(setup.before_commit) < len(setup.scorers):
        recorder.outcome.grade_later()
    elif (recorder.scores or recorder.has_step_rewards()) and not is_withheld(recorder.scores):
        recorder.outcome.mark_graded()


async def _apply_scorers(
    context: RunContext, setup: EpisodeSetup, recorder: Recorder, env_score: EnvScore | None
) -> bool:
    """Record the score of the environment and of each scorer; returns whether none failed."""
    limit_s = context.limits.score_timeout_s
    owner: Owner = "env"
    try:
        if env_score is not None:
            score = await within(limit_s, env_score(recorded_episode(recorder)), "Env.score")
            recorder.judged(_env_verdict(score))
        for scorer in setup.before_commit:
            owner = "scorer"
            work = scorer.judge(recorded_episode(recorder), NO_JUDGE)
            recorder.judged(await within(limit_s, work, scorer.name))
        _check_reward(recorder)
    except asyncio.CancelledError:
        if owner == "env":
            recorder.outcome.interrupt_env_scoring()
        else:
            recorder.outcome.grade_later()
        raise
    except BaseException as problem:
        if is_ours(problem):
            raise
        error = error_record(problem, owner=owner, phase="score")
        recorder.outcome.fail_scoring(msgspec.structs.replace(error, owner=owner))
        return False
    return True


async def within(
    limit_s: float, work: Awaitable[T], scorer: str, timed_by: Callable[[Deadline], None] | None = None
) -> T:
    """The result of a scorer's work; ScorerError if it takes too long.

    `timed_by` is called with the deadline, so that it can pause it. Waiting for a process or a thread takes no time.
    """
    deadline = Deadline(limit_s)
    try:
        with deadline, limits_work(deadline):
            if timed_by is not None:
                timed_by(deadline)
            return await work
    except TimeoutError:
        if not deadline.expired():
            raise
        raise ScorerError(f"scorer {scorer!r} did not finish within {limit_s:g} s", kind="timeout") from None
    except asyncio.CancelledError as problem:
        if is_cancelled(problem):
            raise
        raise ScorerError(f"scorer {scorer!r} raised CancelledError", kind="CancelledError") from None


def _check_reward(recorder: Recorder) -> None:
    """Raise ValueError if finite scores add up to an infinite reward."""
    number(reward_of("completed", "graded", recorder.scores, recorder.turns), "the reward")


def _env_verdict(score: Score | None) -> Verdict:
    if score is None:
        return Verdict({}, {})
    if not isinstance(score, Score):
        raise TypeError(f"Env.score returned {type(score).__name__}; expected a Score or None")
    return verdict_of(score, name="score", weight=1.0, scorer=None)


def verdict_of(score: Score, *, name: str, weight: float, scorer: str | None) -> Verdict:
    """A user's Score as it is recorded: raw finite numbers by name."""
    freezer = Freezer()
    values = score.value if isinstance(score.value, dict) else {name: (score.value, weight)}
    evidence = freezer.value(score.evidence, f"{name}: evidence")
    scores = {
        freezer.text(str(key)): RecordedScore(
            value=number(value, f"score {key!r}"),
            weight=_finite_weight(value, weight, f"the weight of score {key!r}"),
            evidence=evidence,
            scorer=scorer,
            withholds=score.withholds,
        )
        for key, (value, weight) in values.items()
    }
    return Verdict(scores, freezer.numbers(score.metrics, f"{name}: metrics") or {})


def _finite_weight(value: Any, weight: Any, label: str) -> float:
    """The weight as a number, which must also give a finite product with the value."""
    finite = number(weight, label)
    number(number(value, label) * finite, f"{label} times its value")
    return finite
