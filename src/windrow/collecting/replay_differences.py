"""The differences between a recorded rollout and its replay.

Clock times and token usage are never compared. The outcome is compared only if the recorded rollout ended because of its
replies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from windrow.collecting.recorded_policies import played_turns
from windrow.records import Json, Message, Rollout


class Difference(msgspec.Struct, frozen=True):
    """A value that the replay changed; `path` is its position in the record, such as `turns[0].info`."""

    path: str
    recorded: Json
    replayed: Json


def differences_between(
    old: Rollout, new: Rollout, judges: set[str], models: tuple[str, ...]
) -> Iterator[Difference]:
    """Yield the differences of the messages, then of the turns, then of the outcome."""
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


def is_measured(path: str, measured: frozenset[str]) -> bool:
    """Return whether the path names a metric or an entry of a turn's `info` that the environment declares as measured."""
    where, _, name = path.rpartition(".")
    return name in measured and (where == "metrics" or where.endswith("].info"))


def _ended_by_itself(rollout: Rollout) -> bool:
    """Return whether the replies ended the rollout, and not the clock, the infrastructure or a failure of the policy."""
    if rollout.error is not None and rollout.status == "failed":
        return rollout.error.owner == "env" and rollout.error.kind not in ("timeout", "seat")
    return rollout.status in ("completed", "truncated") and rollout.stop != "timeout"


def _lists(path: str, old: list[Any], new: list[Any], whole: bool) -> Iterator[Difference]:
    count = max(len(old), len(new)) if whole else min(len(old), len(new))
    for number in range(count):
        before, after = (side[number] if number < len(side) else None for side in (old, new))
        yield from _values(f"{path}[{number}]", before, after)


def _values(path: str, old: Json, new: Json) -> Iterator[Difference]:
    """Yield the smallest parts in which two values differ; lists are compared as a whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _values(f"{path}.{key}", old.get(key), new.get(key))
    elif old != new:
        yield Difference(path, old, new)


def _plain(messages: tuple[Message, ...]) -> list[Any]:
    plain: list[Any] = msgspec.to_builtins(messages)
    return plain


def _turns(rollout: Rollout) -> list[Any]:
    """Return the results of each turn in the environment and the tools, without times and usage."""
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
        for turn in played_turns(rollout)
        if turn.writes is not None
    ]


def _scores(rollout: Rollout, judges: set[str]) -> dict[str, float]:
    return {
        name: score.value
        for name, score in rollout.scores.items()
        if score.scorer is None or score.scorer in judges
    }


def _metrics(rollout: Rollout, models: tuple[str, ...]) -> dict[str, float]:
    """Return the metrics without the costs of the environment's models."""
    costs = tuple(f"{model}_" for model in models)
    return {name: value for name, value in rollout.metrics.items() if not (costs and name.startswith(costs))}
