"""Replay: play a rollout again with its recorded replies, and compare the result with the record.

No model is called: recorded replies stand in for the policy and for the models that the environment calls. The tools
and the scorers run again. So a difference means that the environment, its data, its tools or its scorers have changed,
or that one of them does not depend on the task and the seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from windrow.agents import find_agent
from windrow.collecting.recorded_policies import RecordedPolicy, RecordedUser
from windrow.collecting.replay_differences import Difference, differences_between, is_measured
from windrow.collecting.replay_trust import trusted_config
from windrow.collecting.resolve import ResolvedRun, resolve
from windrow.config import (
    AgentConfig,
    BlocklistConfig,
    DrawConfig,
    EnvConfig,
    LoadedConfig,
    RunConfig,
    ScorerConfig,
    TasksConfig,
    TrustConfig,
)
from windrow.engine.attempt import attempt
from windrow.engine.components import Overrides
from windrow.envs import find_env
from windrow.envs.seating import opponent, own_settings
from windrow.errors import UsageError
from windrow.policies import Policy
from windrow.policies.external import REMOTE
from windrow.records import Grading, Rollout
from windrow.store.manifest import MANIFEST, Fingerprint, Manifest
from windrow.store.reader import RunReader, load
from windrow.store.trust import RunTrust
from windrow.tasks.plan import Slot


class Replay(msgspec.Struct, frozen=True):
    recorded: Rollout
    replayed: Rollout
    differences: tuple[Difference, ...]


def find_rollout(run: str | Path, id: str, *, number: int | None = None) -> Rollout:
    """Return the rollout whose id begins with `id`: its final attempt, or attempt `number`."""
    matches = [
        rollout
        for rollout in load(run, attempts="final" if number is None else "all")
        if rollout.id.startswith(id) and number in (None, rollout.attempt)
    ]
    if not matches:
        raise UsageError(f"no rollout of {run} begins with {id!r}")
    if len(matches) > 1:
        raise UsageError(f"{len(matches)} rollouts of {run} begin with {id!r}: give more of the id")
    return matches[0]


async def replay(run: str | Path, rollout: Rollout, *, trust_run: bool = False) -> Replay:
    """Play a rollout of `run` again with its recorded replies. All seats of a match are played together.

    The environment, the tools and the scorers that the run names are used only if it is this user's own, or with `trust_run`.
    """
    seats = _seats(run, rollout)
    if any(seat.turns and not seat.messages for seat in seats):
        raise UsageError(f"rollout {rollout.id} was recorded without its messages (capture: none)")
    with RunReader(run) as reader:
        manifest = reader.manifest
        gradings = reader.gradings()
        seats = [_without_late_metrics(seat, gradings.of(seat.key)) for seat in seats]
    trust = RunTrust(Path(run), manifest, given=trust_run)
    context = _resolve_replay(Path(run), manifest, rollout, seats, trust).context
    slot = Slot(
        number=0,
        id=rollout.id,
        attempt=rollout.attempt,
        group=rollout.group,
        sample=rollout.sample,
        seed=rollout.seed,
        task=rollout.task,
        recorded_task=rollout.task,
    )
    try:
        await context.open()
        replayed = await attempt(slot, context)
    finally:
        await context.close()
    if len(replayed) != len(seats):
        raise UsageError(f"the episode had {len(seats)} seats, and now it has {len(replayed)}")
    setup = context.episode_setup(rollout.task)
    judges = {scorer.name for scorer in setup.before_commit}
    differences: list[Difference] = []
    for old, new in zip(seats, replayed, strict=True):
        prefix = "" if old.seat is None else f"seat {old.seat}: "
        differences += (
            msgspec.structs.replace(difference, path=prefix + difference.path)
            for difference in differences_between(old, new, judges, tuple(context.models))
            if not is_measured(difference.path, setup.env.measured)
        )
    return Replay(rollout, replayed[rollout.seat or 0], tuple(differences))


def _refuse_played_elsewhere(agent: str, rollout: Rollout) -> None:
    if rollout.policy.model == REMOTE and find_agent(agent).external:
        raise UsageError(
            f"rollout {rollout.id} was played by agent {rollout.agent!r} elsewhere: there is nothing here to play it again"
        )


def _seats(run: str | Path, rollout: Rollout) -> list[Rollout]:
    """Return all rollouts of the same attempt at the episode, in the order of the seats."""
    if rollout.episode is None:
        return [rollout]
    attempt_of_episode = (rollout.episode, rollout.attempt)
    episode_rollouts = [
        other for other in load(run, attempts="all") if (other.episode, other.attempt) == attempt_of_episode
    ]
    if len(episode_rollouts) != rollout.seats:
        raise UsageError(
            f"{len(episode_rollouts)} of the {rollout.seats} seats of episode {rollout.episode} are there: it cannot be replayed"
        )
    return episode_rollouts


def _without_late_metrics(rollout: Rollout, gradings: Sequence[Grading]) -> Rollout:
    """Return the rollout without the metrics of scorers that judged it after the commit."""
    late = {name for grading in gradings for metrics in grading.metrics for name in metrics}
    metrics = {name: value for name, value in rollout.metrics.items() if name not in late}
    return msgspec.structs.replace(rollout, metrics=metrics)


def _resolve_replay(
    path: Path, manifest: Manifest, rollout: Rollout, seats: Sequence[Rollout], trust: RunTrust
) -> ResolvedRun:
    """Resolve the run's configuration with the recorded row, replies, environment and scorers, without the time limit."""
    run = _config(path, manifest)
    played_by = run.agent.name
    row = rollout.task.data or {}
    env, agent = run.env, run.agent
    if rollout.env not in (env.name, row.get("env")):  # a program gave the class itself
        env = EnvConfig(name=rollout.env, settings=env.settings)
    driver = next((seat.agent for seat in seats if not seat.opponent), agent.name)
    if driver not in (agent.name, row.get("agent")):
        agent = AgentConfig(name=driver, settings=agent.settings)
    run = msgspec.structs.replace(
        run,
        tasks=TasksConfig(source=rollout.task.source, split=rollout.task.split),
        draw=DrawConfig(),
        blocklist=BlocklistConfig(),
        policy=msgspec.structs.replace(run.policy, tool_calls="native"),
        env=env,
        agent=agent,
        scorers=_scorers(path, manifest.grading, rollout),
        capture="text",
        workers=1,
        top_logprobs=None,
        limits=msgspec.structs.replace(run.limits, episode_timeout_s=None),
    )
    run = trusted_config(path, run, rollout.task, trust)
    _refuse_played_elsewhere(played_by, rollout)
    env_class = find_env(env.name)
    models: dict[str, Policy] = {
        name: RecordedUser(rollout) for name in env_class.models(own_settings(env_class, env.settings))
    }
    if any(seat.opponent for seat in seats):
        models |= {opponent(number): RecordedPolicy(seats) for number in range(len(seats))}
    overrides = Overrides(rows=[row], policy=RecordedPolicy(seats), models=models)
    over_rows = manifest.behaviour.of.get("limits_over_rows") or ()  # a flag had set these
    origins = {"env": MANIFEST, **{f"limits.{name}": "--" for name in over_rows}}
    return resolve(LoadedConfig(run, origins, TrustConfig(rows=trust.holds_row(rollout.task))), overrides)


def _config(path: Path, manifest: Manifest) -> RunConfig:
    try:
        return msgspec.convert(manifest.config, RunConfig)
    except msgspec.ValidationError as problem:
        raise UsageError(f"{path / MANIFEST}: config cannot be replayed: {problem}") from None


def _scorers(path: Path, grading: Fingerprint | None, rollout: Rollout) -> list[ScorerConfig]:
    if grading is None or grading.of.get("env") not in (None, rollout.env):
        return []
    scorers = [
        {"name": entry["name"], "weight": entry.get("weight", 1.0), "settings": entry.get("settings") or {}}
        for entry in grading.of.get("scorers") or ()
        if not entry.get("models")  # these judge after the commit, and are not called again
    ]
    try:
        return msgspec.convert(scorers, list[ScorerConfig])
    except msgspec.ValidationError as problem:
        raise UsageError(f"{path / MANIFEST}: grading cannot be replayed: {problem}") from None
