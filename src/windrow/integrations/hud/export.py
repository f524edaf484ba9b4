"""`hud`: one flat line per rollout, under the names of HUD's records; its `trace` has one step per model call.

Failed and cancelled rollouts are lines too, with `is_error` or their `status`. A reward is a number or null, and null
never counts as 0.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

import msgspec

from windrow.exports.base import Example, Exporter, Invalid
from windrow.records import Call, Json, Message, Rollout, Stop, ToolCall, Turn

# HUD's words for an end, where it has one.
STOP_REASONS: dict[Stop, str] = {
    "answered": "done",
    "env_done": "done",
    "tool_stopped": "done",
    "parse_error": "malformed_tool_call",
    "max_turns": "max_steps",
    "max_tool_calls": "max_steps",
    "max_episode_tokens": "length",
    "length": "length",
    "context_overflow": "length",
    "timeout": "timeout",
}
STATUSES = {"completed": "completed", "truncated": "completed", "failed": "error", "cancelled": "cancelled"}


class Hud(Exporter):
    takes_failed = True

    def rows(self, example: Example) -> list[dict[str, Json]]:
        rollout, task = example.rollout, example.rollout.task
        return [
            {
                "rollout_id": rollout.id,
                "source": task.source if task.split is None else f"{task.source}:{task.split}",
                "split": task.split,
                "task_index": task.index,
                "task_id": task.key,
                "task": task.data,
                "group_id": rollout.group,
                "sample_index": rollout.sample,
                "attempt": rollout.attempt,
                "seat": rollout.seat,
                "prompt": _prompt(rollout),
                "env": rollout.env,
                "agent": rollout.agent,
                "model": rollout.policy.model,
                "sampling": rollout.policy.sampling,
                "tools": rollout.tools,
                "reward": rollout.reward,
                "scores": {name: score.value for name, score in rollout.scores.items()},
                "done": rollout.status == "completed",
                "status": STATUSES[rollout.status],
                "is_error": rollout.error is not None,
                "error": None if rollout.error is None else _error(rollout),
                "stop_reason": STOP_REASONS.get(rollout.stop),
                "stop": rollout.stop,
                "content": rollout.reply,
                "trace": _steps(rollout),
                "metrics": rollout.metrics,
                "usage": _usage(rollout),
                "timing": rollout.timing,
            }
        ]


def _prompt(rollout: Rollout) -> str:
    """Return the task's messages to the policy, without the system message."""
    opening = [m.text for m in rollout.messages if m.origin == "task" and m.role == "user"]
    prompt = rollout.task.get("prompt")
    return "\n\n".join(opening) or (prompt if isinstance(prompt, str) else "")


def _error(rollout: Rollout) -> dict[str, Json]:
    error_fields: dict[str, Json] = msgspec.to_builtins(rollout.error)
    del error_fields["traceback"]
    return error_fields


def _usage(rollout: Rollout) -> dict[str, Json]:
    usage: dict[str, Json] = msgspec.to_builtins(rollout.usage)
    return {**usage, "cost_usd": usage.pop("cost"), "llm_call_count": len(rollout.turns)}


def _steps(rollout: Rollout) -> list[dict[str, Json]]:
    """Return one step per model call. Each message stands in one step: the first that read, wrote or caused it."""
    ends = _ends(rollout)
    starts = [0, *ends][: len(ends)]  # a rollout without turns has none
    places = zip(rollout.turns, starts, ends, strict=True)
    return [_step(number, turn, rollout, start, stop) for number, (turn, start, stop) in enumerate(places, 1)]


def _ends(rollout: Rollout) -> list[int]:
    """Return for each turn the index after its last message: its reply, and the results of its calls."""
    count = len(rollout.messages)
    if not count:  # nothing of the text was kept
        return [0] * len(rollout.turns)
    own = [
        1 + max([-1 if turn.writes is None else turn.writes, *(call.result for call in turn.tool_calls)])
        for turn in rollout.turns
    ]
    if any(not 0 <= end <= count for end in own):
        raise Invalid("rollouts with a turn that names messages which are not there")
    if own:
        own[-1] = count  # what came after the last turn is of it
    return [*accumulate(own, max)]


def _step(number: int, turn: Turn, rollout: Rollout, start: int, stop: int) -> dict[str, Json]:
    reply = None
    if turn.writes is not None and rollout.messages:
        reply = rollout.messages[turn.writes]
    return {
        "step": number,
        "category": "agent",
        "role": turn.role,
        "messages": [_message(message) for message in rollout.messages[start:stop]],
        "content": None if reply is None else reply.text,
        "reasoning": None if reply is None else reply.reasoning,
        "tool_calls": [_ran(call, rollout) for call in turn.tool_calls],
        "reward": turn.reward,
        "scores": turn.scores,
        "metrics": turn.metrics,
        "info": turn.info,
        "parse_error": turn.parse_error,
        "finish_reason": turn.finish,
        "model": turn.model or rollout.policy.model,
        "usage": turn.usage,
        "start_timestamp": _stamp(turn.started_at),
        "end_timestamp": _stamp(turn.started_at + turn.seconds + turn.tools_seconds),
        "seconds": turn.seconds,
        "tools_seconds": turn.tools_seconds,
        "retries": turn.retries,
    }


def _ran(call: ToolCall, rollout: Rollout) -> dict[str, Json]:
    return {
        "id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "result": rollout.messages[call.result].content if rollout.messages else None,
        "is_error": call.failed,
        "error": call.error,
        "seconds": call.seconds,
    }


def _message(message: Message) -> dict[str, Any]:
    """Return a message as chat endpoints write it, with the policy's reasoning."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [_call(call) for call in message.tool_calls]
    named = {
        "tool_call_id": message.tool_call_id,
        "name": message.name,
        "reasoning_content": message.reasoning,
    }
    return fields | {key: value for key, value in named.items() if value is not None}


def _call(call: Call) -> dict[str, Json]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _stamp(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        raise Invalid("rollouts with times that no calendar has") from None
