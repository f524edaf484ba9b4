"""`run_episode`: one attempt from its task to its score, whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any, Generic, TypeVar

import msgspec

from windrow.engine.auxiliary_models import Asking
from windrow.engine.context import EpisodeSetup, RunContext, TaskSetup
from windrow.engine.recorder import Recorder
from windrow.engine.session import EpisodeSession
from windrow.envs import BaseEnv, Env, Episode
from windrow.envs.scoring import NoJudge, Verdict
from windrow.errors import EnvError, InfraError, ScorerError, error_record
from windrow.records import Owner, RecordedScore, Rollout, Score
from windrow.registry import name_of
from windrow.tasks.plan import Slot
from windrow.tools import Tool
from windrow.util.cancellation import is_cancelled, is_ours
from windrow.util.deadlines import Deadline
from windrow.util.freeze import Freezer, number
from windrow.util.guard import guarded, guarded_method

T = TypeVar("T")
E = TypeVar("E", bound=BaseEnv)

OwnScore = Callable[[Episode], Awaitable[Score | None]]

NO_JUDGE = NoJudge()
_NOTHING = nullcontext()


async def play_episode(slot: Slot, context: RunContext, task: TaskSetup) -> Rollout:
    """The rollout of one attempt. Cancellation ends it too, and is then raised with the record in `Interrupted`."""
    setup = task.episode
    recorder = Recorder(
        slot,
        env=setup.env_name,
        agent=setup.agent_name,
        policy=task.policy,
        grading=context.grading,
        capture=task.capture,
    )
    try:
        await run_episode(slot, context, setup, recorder)
    except asyncio.CancelledError:
        recorder.end("cancelled", "cancelled", reason="interrupted")
        raise Interrupted((recorder.rollout(),)) from None
    return recorder.rollout()


class Interrupted(asyncio.CancelledError):
    """An attempt was cancelled; what it had recorded is kept."""

    def __init__(self, rollouts: tuple[Rollout, ...]) -> None:
        super().__init__()
        self.rollouts = rollouts


async def run_episode(slot: Slot, context: RunContext, setup: EpisodeSetup, recorder: Recorder) -> None:
    """Play one episode to its end, whatever that end is; the recorder holds the outcome."""
    try:
        if context.toolbox.has_sources:
            async with _opened_tools(context, recorder) as run_tools:
                await _run_with(run_tools, slot, context, setup, recorder)
        else:
            await _run_with((), slot, context, setup, recorder)
    except BaseException as problem:
        # Whatever an environment or agent raises is a failed attempt, never a failed run.
        if is_ours(problem):
            raise
        owner: Owner = "policy" if recorder.phase == "policy" else "env"
        recorder.fail(error_record(problem, owner=owner, phase=recorder.phase))


async def _run_with(
    run_tools: Sequence[tuple[str, Tool]],
    slot: Slot,
    context: RunContext,
    setup: EpisodeSetup,
    recorder: Recorder,
) -> None:
    """The same, with the run's own tools at hand."""
    env = _made(slot, context, setup, recorder)
    try:
        await _play(EpisodeSession(slot, env, context, recorder, run_tools), context, setup, recorder)
        if recorder.status in ("completed", "truncated"):
            await score(context, setup, recorder, _own_score(env))
    finally:
        await _close(env, context.limits.close_timeout_s, (recorder,))


async def _play(
    session: EpisodeSession, context: RunContext, setup: EpisodeSetup, recorder: Recorder
) -> None:
    """Reset, then let the agent drive until the episode has ended or its time is up."""
    limit = context.limits.episode_timeout_s or setup.agent.usual_timeout_s
    deadline = Deadline(limit) if limit is not None else None
    try:
        with deadline or _NOTHING:
            await session.reset()
            with recorder.timed("env") if setup.agent.external else _NOTHING:
                await guarded_method(setup.agent, "run", setup.agent.run(session))
            await session.finish()
    except TimeoutError:
        if deadline is None or not deadline.expired():
            raise  # the environment's own, not the episode's
        if recorder.phase == "setup":
            raise EnvError(f"reset() did not finish within {limit:g} s", kind="timeout") from None
        if setup.agent.external:  # nothing of the episode is here that could be scored
            raise InfraError(
                f"agent {setup.agent_name!r} did not answer within {limit:g} s", kind="timeout"
            ) from None
        recorder.end("truncated", "timeout")


def _made(slot: Slot, context: RunContext, setup: EpisodeSetup, recorder: Recorder) -> Env:
    env = setup.env(setup.env_settings, context.env_context(slot, Asking(slot, context, recorder)))
    assert isinstance(env, Env)
    return env


def _own_score(env: Env) -> OwnScore | None:
    if type(env).score is Env.score:
        return None
    return lambda episode: guarded_method(env, "score", env.score(episode))


async def score(
    context: RunContext, setup: EpisodeSetup, recorder: Recorder, own_score: OwnScore | None
) -> None:
    """The environment's own score, then the scorers that run before the commit."""
    before_commit = setup.before_commit
    if own_score or before_commit or recorder.has_step_rewards():
        limit = context.limits.score_timeout_s
        owner: Owner = "env"
        with recorder.timed("score"):
            try:
                if own_score is not None:
                    own = own_score(recorder.episode())
                    recorder.judged(_own_verdict(await within(limit, own, "Env.score")))
                for scorer in before_commit:
                    owner = "scorer"
                    recorder.judged(
                        await within(limit, scorer.judge(recorder.episode(), NO_JUDGE), scorer.name)
                    )
                recorder.check_reward()
            except asyncio.CancelledError:
                recorder.scoring_cut(own=owner == "env")
                raise
            except BaseException as problem:
                if is_ours(problem):
                    raise
                error = error_record(problem, owner=owner, phase="score")
                recorder.scoring_failed(msgspec.structs.replace(error, owner=owner))
                return
    if len(before_commit) < len(setup.scorers):
        recorder.grade = "pending"
    elif recorder.scores or recorder.has_step_rewards():
        recorder.grade = "graded"


async def within(
    limit_s: float, work: Awaitable[T], scorer: str, timed_by: Callable[[Deadline], None] | None = None
) -> T:
    """The result of a scorer's work, or ScorerError when it takes too long. `timed_by` is given the deadline, which it
    may pause."""
    deadline = Deadline(limit_s)
    try:
        with deadline:
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


def _own_verdict(score: Score | None) -> Verdict:
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
            weight=_weight(value, share, f"the weight of score {key!r}"),
            evidence=evidence,
            scorer=scorer,
        )
        for key, (value, share) in values.items()
    }
    return Verdict(scores, freezer.numbers(score.metrics, f"{name}: metrics") or {})


def _weight(value: Any, share: Any, what: str) -> float:
    weight = number(share, what)
    number(number(value, what) * weight, f"{what} times its value")
    return weight


def run_tools_of(
    context: RunContext, recorder: Recorder
) -> AbstractAsyncContextManager[Sequence[tuple[str, Tool]]]:
    """The run's own tools, for one episode."""
    return _opened_tools(context, recorder) if context.toolbox.has_sources else nullcontext(())


@asynccontextmanager
async def _opened_tools(context: RunContext, recorder: Recorder) -> AsyncIterator[Sequence[tuple[str, Tool]]]:
    async with AsyncExitStack() as stack:
        with recorder.timed("setup"):
            run_tools = await stack.enter_async_context(context.toolbox.episode())
        yield run_tools


class OpenEnv(Generic[E]):
    """The environment of one attempt; `close` runs once, whatever happened, within its time."""

    def __init__(self, env: E, context: RunContext, recorders: Sequence[Recorder]) -> None:
        self._env = env
        self._limit_s = context.limits.close_timeout_s
        self._recorders = recorders

    async def __aenter__(self) -> E:
        return self._env

    async def __aexit__(self, *_: object) -> None:
        await _close(self._env, self._limit_s, self._recorders)


async def _close(env: BaseEnv, limit_s: float, recorders: Sequence[Recorder]) -> None:
    """Close, within its time. A close that ignores its end is left behind; a cancellation meanwhile is raised afterwards."""
    if type(env).close is BaseEnv.close:  # there is nothing to close
        return

    async def close() -> None:
        try:
            await env.close()
        except SystemExit as problem:  # it would end the loop
            raise RuntimeError(f"close() raised {problem!r}") from None

    async def close_in_time() -> None:
        with Deadline(limit_s):  # the guard ends a coroutine that ignores its deadline
            await guarded(close(), f"{name_of(env)}.close()")

    closing = asyncio.ensure_future(close_in_time())
    cancelled = await _settled(closing)
    if closing.cancelled() or closing.exception() is not None:
        for recorder in recorders:
            recorder.metrics["close_failed"] = 1.0
    if cancelled is not None:
        raise cancelled


async def _settled(task: asyncio.Task[None]) -> asyncio.CancelledError | None:
    """Wait until `task` is done, whatever else happens; a cancellation of the caller is returned."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as problem:
            cancelled = problem
    return cancelled
