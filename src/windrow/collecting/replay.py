"""Replay: the recorded replies of a rollout go through its environment again, and what comes out is compared.

No model is asked: the policy, and the models that the environment asks itself, say what is recorded. The tools and the
scorers run again. So a difference is a change of the environment, its data, its tools or its scorers, or something in
them that does not follow from the task and the seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from windrow.agents import find_agent
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
)
from windrow.engine.attempt import attempt
from windrow.engine.components import Overrides
from windrow.engine.correction import malformed_of
from windrow.envs import find_env
from windrow.envs.seating import opponent, own_settings
from windrow.errors import ContextOverflow, PolicyError, UsageError
from windrow.policies import Completion, Policy, Request
from windrow.policies.base import ANY_SAMPLING
from windrow.policies.external import REMOTE
from windrow.records import Grading, Json, Message, Rollout, Turn
from windrow.store.manifest import MANIFEST, Fingerprint, Manifest
from windrow.store.reader import RunReader, load
from windrow.tasks.plan import Slot


class Difference(msgspec.Struct, frozen=True):
    """Something that came out otherwise; `place` is where in the record it stands."""

    place: str
    recorded: Json
    replayed: Json


class Replay(msgspec.Struct, frozen=True):
    recorded: Rollout
    replayed: Rollout
    differences: tuple[Difference, ...]


def find_rollout(run: str | Path, id: str, *, number: int | None = None) -> Rollout:
    """The rollout whose id begins with `id`: its final attempt, or attempt `number`."""
    found = [
        rollout
        for rollout in load(run, attempts="final" if number is None else "all")
        if rollout.id.startswith(id) and number in (None, rollout.attempt)
    ]
    if not found:
        raise UsageError(f"no rollout of {run} begins with {id!r}")
    if len(found) > 1:
        raise UsageError(f"{len(found)} rollouts of {run} begin with {id!r}: give more of the id")
    return found[0]


async def replay(run: str | Path, rollout: Rollout) -> Replay:
    """Play a rollout of `run` again with the replies that it holds; a seat of a match with all the others."""
    seats = _seats(run, rollout)
    if any(seat.turns and not seat.messages for seat in seats):
        raise UsageError(f"rollout {rollout.id} was recorded without its messages (capture: none)")
    with RunReader(run) as reader:
        manifest = reader.manifest
        _refuse_played_elsewhere(manifest.config, rollout)
        gradings = reader.gradings()
        seats = [_without(seat, gradings.of(seat.key)) for seat in seats]
    context = _prepared(manifest, rollout, seats).context
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
    found: list[Difference] = []
    for old, new in zip(seats, replayed, strict=True):
        place = "" if old.seat is None else f"seat {old.seat}: "
        found += (
            msgspec.structs.replace(difference, place=place + difference.place)
            for difference in _differences(old, new, judges, tuple(context.models))
            if not _is_measured(difference.place, setup.env.measured)
        )
    return Replay(rollout, replayed[rollout.seat or 0], tuple(found))


def _refuse_played_elsewhere(config: Mapping[str, Json], rollout: Rollout) -> None:
    agent = (config.get("agent") or {}).get("name", "chat")
    if rollout.policy.model == REMOTE and find_agent(agent).external:
        raise UsageError(
            f"rollout {rollout.id} was played by agent {rollout.agent!r} elsewhere: there is nothing here to play it again"
        )


def _seats(run: str | Path, rollout: Rollout) -> list[Rollout]:
    """All rollouts of its episode, in the order of the seats."""
    if rollout.episode is None:
        return [rollout]
    of = (rollout.episode, rollout.attempt)
    found = [other for other in load(run, attempts="all") if (other.episode, other.attempt) == of]
    if len(found) != rollout.seats:
        raise UsageError(
            f"{len(found)} of the {rollout.seats} seats of episode {rollout.episode} are there: it cannot be replayed"
        )
    return found


def _without(rollout: Rollout, gradings: Sequence[Grading]) -> Rollout:
    """The rollout without the metrics of scorers that judged it after the commit."""
    late = {name for grading in gradings for metrics in grading.metrics for name in metrics}
    metrics = {name: value for name, value in rollout.metrics.items() if name not in late}
    return msgspec.structs.replace(rollout, metrics=metrics)


# -- who says what is recorded


class RecordedPolicy(Policy):
    """Says what was said in the rollout that a request is of."""

    name = "recorded"
    accepts = ANY_SAMPLING

    def __init__(self, rollouts: Sequence[Rollout]) -> None:
        self.model = rollouts[0].policy.model
        self._seats = {rollout.id: _RecordedSeat(rollout) for rollout in rollouts}

    async def complete(self, request: Request) -> Completion:
        return self._seats[request.id].complete(request)


class _RecordedSeat:
    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._turns = _played(rollout)

    def complete(self, request: Request) -> Completion:
        if request.turn >= len(self._turns):
            raise PolicyError("there is no recorded reply left", kind="no_reply_left")
        turn = self._turns[request.turn]
        if turn.writes is None:
            if self._rollout.stop == "context_overflow":
                raise ContextOverflow("recorded: the prompt did not fit")
            raise PolicyError("recorded: this call had no reply", kind="no_reply_left")
        reply = self._rollout.messages[turn.writes]
        return Completion(
            content=reply.content if isinstance(reply.content, str) else None,
            tool_calls=reply.tool_calls or (),
            reasoning=reply.reasoning,
            finish=turn.finish,
            usage=turn.usage,
            model=turn.model,
            malformed=self._malformed(turn),
        )

    def _malformed(self, turn: Turn) -> tuple[str, ...]:
        """The calls that could not be read: as the correction after the reply lists them."""
        if turn.parse_error is None or turn.writes is None:
            return ()
        for message in self._rollout.messages[turn.writes + 1 :]:
            if message.origin == "policy":
                break
            if found := malformed_of(message):
                return found
        last = turn is self._turns[-1] and self._rollout.stop == "parse_error"
        return (turn.parse_error,) if last and turn.state is None and turn.reward is None else ()


class RecordedUser(Policy):
    """Says what the environment's own model said, in the same order."""

    name = "recorded"
    model = "recorded"
    accepts = RecordedPolicy.accepts

    def __init__(self, rollout: Rollout) -> None:
        self._said = iter([message.text for message in rollout.messages if message.origin == "user"])

    async def complete(self, request: Request) -> Completion:
        text = next(self._said, None)
        if text is None:
            raise PolicyError("the record has no more words of the user", kind="no_reply_left")
        return Completion(content=text)


def _prepared(manifest: Manifest, rollout: Rollout, seats: Sequence[Rollout]) -> ResolvedRun:
    """The run's configuration with the recorded row, replies, environment and scorers in it, and without its clock."""
    run = msgspec.convert(manifest.config, RunConfig)
    own = rollout.task.data or {}
    env, agent = run.env, run.agent
    if rollout.env not in (env.name, own.get("env")):  # a program gave the class itself
        env = EnvConfig(name=rollout.env, settings=env.settings)
    driver = next((seat.agent for seat in seats if not seat.opponent), agent.name)
    if driver not in (agent.name, own.get("agent")):
        agent = AgentConfig(name=driver, settings=agent.settings)
    run = msgspec.structs.replace(
        run,
        tasks=TasksConfig(source=rollout.task.source, split=rollout.task.split),
        draw=DrawConfig(),
        blocklist=BlocklistConfig(),
        policy=msgspec.structs.replace(run.policy, tool_calls="native"),
        env=env,
        agent=agent,
        scorers=_scorers(manifest.grading, rollout),
        capture="text",
        workers=1,
        top_logprobs=None,
        limits=msgspec.structs.replace(run.limits, episode_timeout_s=None),
    )
    found = find_env(env.name)
    models: dict[str, Policy] = {
        name: RecordedUser(rollout) for name in found.models(own_settings(found, env.settings))
    }
    if any(seat.opponent for seat in seats):
        models |= {opponent(number): RecordedPolicy(seats) for number in range(len(seats))}
    overrides = Overrides(rows=[own], policy=RecordedPolicy(seats), models=models)
    over_rows = manifest.behaviour.of.get("limits_over_rows") or ()  # said by a flag then
    origins = {"env": MANIFEST, **{f"limits.{name}": "--" for name in over_rows}}
    return resolve(LoadedConfig(run, origins), overrides)


def _scorers(grading: Fingerprint | None, rollout: Rollout) -> list[ScorerConfig]:
    if grading is None or grading.of["env"] not in (None, rollout.env):
        return []
    return [
        ScorerConfig(name=scorer["name"], weight=scorer["weight"], settings=scorer["settings"])
        for scorer in grading.of["scorers"]
        if not scorer.get("models")  # they judge after the commit, and are not asked again
    ]


# -- what came out otherwise


def _differences(
    old: Rollout, new: Rollout, judges: set[str], models: tuple[str, ...]
) -> Iterator[Difference]:
    """Observations first, then what each step said, then the outcome."""
    whole = _ended_by_itself(old)
    yield from _lists("messages", _plain(old.messages), _plain(new.messages), whole)
    yield from _lists("turns", _turns(old), _turns(new), whole)
    yield from _values("tools", list(old.tools), list(new.tools))
    if not whole:
        return
    for name in ("status", "stop", "state"):
        yield from _values(name, getattr(old, name), getattr(new, name))
    kinds = [rollout.error.kind if rollout.error else None for rollout in (old, new)]
    yield from _values("error.kind", *kinds)
    yield from _values("scores", _scores(old, judges), _scores(new, judges))
    yield from _values("metrics", _metrics(old, models), _metrics(new, models))


def _is_measured(place: str, measured: frozenset[str]) -> bool:
    """Whether something is of the clock's: a metric, or an entry of a turn's `info`, that the environment says is."""
    where, _, name = place.rpartition(".")
    return name in measured and (where == "metrics" or where.endswith("].info"))


def _ended_by_itself(rollout: Rollout) -> bool:
    """Whether the end follows from the replies: not one by the clock, the infrastructure or the policy's failure."""
    if rollout.error is not None and rollout.status == "failed":
        return rollout.error.owner == "env" and rollout.error.kind not in ("timeout", "seat")
    return rollout.status in ("completed", "truncated") and rollout.stop != "timeout"


def _lists(place: str, old: list[Any], new: list[Any], whole: bool) -> Iterator[Difference]:
    count = max(len(old), len(new)) if whole else min(len(old), len(new))
    for number in range(count):
        before, after = (side[number] if number < len(side) else None for side in (old, new))
        yield from _values(f"{place}[{number}]", before, after)


def _values(place: str, old: Json, new: Json) -> Iterator[Difference]:
    """The smallest places in which two values differ; lists are compared whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _values(f"{place}.{key}", old.get(key), new.get(key))
    elif old != new:
        yield Difference(place, old, new)


def _plain(messages: tuple[Message, ...]) -> list[Any]:
    plain: list[Any] = msgspec.to_builtins(messages)
    return plain


def _turns(rollout: Rollout) -> list[Any]:
    """Of each turn what the environment and the tools made of it: no times, no usage."""
    return [
        {
            "reads": msgspec.to_builtins(turn.reads),
            "tool_calls": [
                {"name": call.name, "arguments": call.arguments, "failed": call.failed, "error": call.error}
                for call in turn.tool_calls
            ],
            **{
                name: getattr(turn, name)
                for name in ("reward", "scores", "metrics", "state", "info", "parse_error")
            },
        }
        for turn in _played(rollout)
        if turn.writes is not None
    ]


def _played(rollout: Rollout) -> list[Turn]:
    """The turns of whoever played: the policy's, or an opponent's."""
    role = "auxiliary" if rollout.opponent else "agent"
    return [turn for turn in rollout.turns if turn.role == role]


def _scores(rollout: Rollout, judges: set[str]) -> dict[str, float]:
    return {
        name: score.value
        for name, score in rollout.scores.items()
        if score.scorer is None or score.scorer in judges
    }


def _metrics(rollout: Rollout, models: tuple[str, ...]) -> dict[str, float]:
    """Without what the environment's models cost."""
    costs = tuple(f"{model}_" for model in models)
    return {name: value for name, value in rollout.metrics.items() if not (costs and name.startswith(costs))}
