"""Reward functions in the form that trainers call: their arguments, and their return values.

    (prompts, completions, completion_ids, **columns) -> list[float | None]

A group is one batch: lists with one entry per member. The other fields of the row are columns. The further arguments
of trainers have stand-ins: `trainer_state`, and `log_extra` and `log_metric`, whose values are recorded.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from windrow.errors import ScorerError
from windrow.policies.wire import wire_message
from windrow.records import Json, Message, Rollout, RolloutGroup
from windrow.util.freeze import Freezer, copied, number
from windrow.util.token_contexts import BrokenContext, context_ids, prompt_ids

MARKS = ("completions", "completion_ids")  # a function that takes one of them is a reward function
OWN = ("prompt", "messages", "completion", "completion_ids")  # of a row: no columns


def is_reward_function(function: Callable[..., Any]) -> bool:
    return any(mark in parameters_of(function) for mark in MARKS)


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


class Logged:
    """The values that a reward function logs: columns with one entry per member, and numbers for the whole group."""

    def __init__(self) -> None:
        self.extra: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        self.extra[str(column)] = values

    def log_metric(self, name: str, value: float) -> None:
        self.metrics[str(name)] = number(value, f"log_metric({name!r})")

    def evidence(self, index: int, count: int) -> Json:
        """Return the values that were logged for the member at this index."""
        return {name: _plain(_entry(values, index, count)) for name, values in self.extra.items()} or None


def arguments(
    function: Callable[..., Any],
    group: RolloutGroup,
    members: Sequence[Rollout],
    logged: Logged,
    settings: Mapping[str, Json],
) -> dict[str, Any]:
    """Return the arguments that the function takes; ScorerError names one that is not available."""
    row = group.task.data or {}
    columns = [name for name in row if name not in OWN]
    there: dict[str, Any] = {name: [copied(row[name]) for _ in members] for name in columns}
    prompts, completions = _standard(row, members) or _conversational(members)
    there |= {
        "trainer_state": SimpleNamespace(global_step=0, epoch=0.0, max_steps=0),
        "log_extra": logged.log_extra,
        "log_metric": logged.log_metric,
        "prompts": prompts,
        "completions": completions,
        "completion_ids": [completion_ids(rollout) for rollout in members],
    } | dict(settings)
    taken = parameters_of(function)
    for name, parameter in taken.items():
        required = parameter.default is parameter.empty and parameter.kind not in _GATHERING
        if required and name not in there and name != "ctx":
            raise ScorerError(
                f"the reward function takes {name!r}, which the row has not (it has: {', '.join(row) or 'nothing'})",
                retryable=False,
            )
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values()):
        return there
    return {name: value for name, value in there.items() if name in taken}


def rewards_of(returned: Any, count: int) -> list[float | None]:
    """Return one finite number or None per member; ScorerError describes any other return value."""
    if hasattr(returned, "tolist"):  # an array or a tensor
        returned = returned.tolist()
    if not isinstance(returned, list | tuple):
        raise ScorerError(f"it returned {type(returned).__name__}; expected a list of {count} numbers")
    if len(returned) != count:
        raise ScorerError(f"it returned {len(returned)} rewards for {count} completions")
    rewards: list[float | None] = []
    for index, reward in enumerate(returned):
        try:
            rewards.append(None if reward is None else number(reward, f"reward {index}"))
        except ValueError as problem:
            raise ScorerError(f"{problem}; None says that it does not apply") from None
    return rewards


def completion_ids(rollout: Rollout) -> list[int] | None:
    """Return the ids after the first prompt, sampled or inserted between turns; None if they were not captured, or if
    the turns did not grow from each other.
    """
    turns = rollout.turns
    own = [n for n, turn in enumerate(turns) if turn.role == "agent" and turn.writes is not None]
    if rollout.capture != "tokens" or not own:
        return None
    try:
        prompt, whole = prompt_ids(turns, own[0]), context_ids(turns, own[-1])
    except BrokenContext:
        return None
    if not whole.startswith(prompt):
        return None
    return [id for (id,) in struct.iter_unpack("<i", whole[len(prompt) :])]


_GATHERING = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _standard(row: Mapping[str, Json], members: Sequence[Rollout]) -> tuple[list[str], list[str]] | None:
    """Return plain texts if the row's prompt is one and each member gave one reply without a tool call; otherwise
    None.
    """
    prompt = row.get("prompt")
    if not isinstance(prompt, str) or row.get("messages") is not None:
        return None
    for rollout in members:
        completion = rollout.completion
        if len(completion) != 1 or completion[0].tool_calls or rollout.tools:
            return None
    return [prompt] * len(members), [rollout.completion[0].text for rollout in members]


def _conversational(members: Sequence[Rollout]) -> tuple[list[Json], list[Json]]:
    """Return lists of messages: those before the first reply, and those from it on."""
    prompts: list[Json] = []
    completions: list[Json] = []
    for rollout in members:
        before = len(rollout.messages) - len(rollout.completion)
        prompts.append([_message(message) for message in rollout.messages[:before]])
        completions.append([_message(message) for message in rollout.completion])
    return prompts, completions


def _message(message: Message) -> dict[str, Json]:
    wire: dict[str, Json] = copied(wire_message(message))
    if wire["content"] is None:
        wire["content"] = ""
    return wire | ({"reasoning_content": message.reasoning} if message.reasoning else {})


def _entry(values: Any, index: int, count: int) -> Any:
    listed = isinstance(values, list | tuple) and len(values) == count
    return values[index] if listed else values


def _plain(value: Any) -> Json:
    """Return a value as JSON, or else its text: a value that is only logged must not fail the grading."""
    try:
        return Freezer().value(value, "log_extra")
    except ValueError:
        return Freezer().text(str(value))
