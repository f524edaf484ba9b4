"""One episode: an attempt from its task to its score, whatever happens on the way."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

from windrow.engine.auxiliary_models import AuxiliaryModels
from windrow.engine.context import EpisodeSetup, RunContext, TaskSetup
from windrow.engine.episode_resources import OpenEnv, open_run_tools
from windrow.engine.episode_scoring import EnvScore, score_episode
from windrow.engine.record_building import build_rollout
from windrow.engine.recorder import Recorder
from windrow.engine.session import EpisodeSession
from windrow.envs import Env
from windrow.errors import EnvError, InfraError, error_record
from windrow.records import Owner, Rollout
from windrow.tasks.plan import Slot
from windrow.util.cancellation import is_ours
from windrow.util.deadlines import Deadline
from windrow.util.guard import guarded_method

_NO_CONTEXT = nullcontext()


class Interrupted(asyncio.CancelledError):
    """An attempt was cancelled. `rollouts` hold what was recorded until then."""

    def __init__(self, rollouts: tuple[Rollout, ...]) -> None:
        super().__init__()
        self.rollouts = rollouts


async def play_episode(slot: Slot, context: RunContext, task: TaskSetup) -> Rollout:
    """The rollout of one attempt. A cancellation is raised as `Interrupted`, which carries the rollout."""
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
        recorder.outcome.end("cancelled", "cancelled", reason="interrupted")
        raise Interrupted((build_rollout(recorder),)) from None
    return build_rollout(recorder)


async def run_episode(slot: Slot, context: RunContext, setup: EpisodeSetup, recorder: Recorder) -> None:
    """Play one episode to its end, whatever that end is. The recorder holds the outcome."""
    try:
        async with (
            open_run_tools(context, recorder) as run_tools,
            OpenEnv(_make_env(slot, context, setup, recorder), context, (recorder,)) as env,
        ):
            session = EpisodeSession(slot, env, context, recorder, run_tools)
            await _play(session, context, setup, recorder)
            if recorder.outcome.scorable:
                await score_episode(context, setup, recorder, _score_of(env))
    except BaseException as problem:
        # An exception of an environment or an agent fails the attempt, never the run.
        if is_ours(problem):
            raise
        owner: Owner = "policy" if recorder.phase == "policy" else "env"
        recorder.outcome.fail(error_record(problem, owner=owner, phase=recorder.phase))


def _make_env(slot: Slot, context: RunContext, setup: EpisodeSetup, recorder: Recorder) -> Env:
    models = AuxiliaryModels(slot, context, recorder)
    env = setup.env(setup.env_settings, context.env_context(slot, models))
    assert isinstance(env, Env)
    return env


async def _play(
    session: EpisodeSession, context: RunContext, setup: EpisodeSetup, recorder: Recorder
) -> None:
    """Reset the environment, then let the agent act until the episode has ended or its time is up."""
    limit = context.limits.episode_timeout_s or setup.agent.usual_timeout_s
    deadline = Deadline(limit) if limit is not None else None
    try:
        with deadline or _NO_CONTEXT:
            await session.reset()
            with recorder.timed("env") if setup.agent.external else _NO_CONTEXT:
                await guarded_method(setup.agent, "run", setup.agent.run(session))
            await session.finish()
    except TimeoutError:
        if deadline is None or not deadline.expired():
            raise  # of the environment or the agent, not of the episode
        if recorder.phase == "setup":
            raise EnvError(f"reset() did not finish within {limit:g} s", kind="timeout") from None
        if setup.agent.external:  # nothing of the episode is here that could be scored
            raise InfraError(
                f"agent {setup.agent_name!r} did not answer within {limit:g} s", kind="timeout"
            ) from None
        recorder.outcome.end("truncated", "timeout")


def _score_of(env: Env) -> EnvScore | None:
    if type(env).score is Env.score:
        return None
    return lambda episode: guarded_method(env, "score", env.score(episode))
