"""One step as a `RolloutTrace`: prompt, policy_response, reward_data, env_state, extra.

Everything is read from the record, so every ending has a trace: parse errors, limits and crashes too. Numbers stay
numbers, and empty values are left out. The evidence of scorers may be any text: it stands in `extra`, and
`reward_data` has numbers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from windrow.grading.group_members import Entrant
from windrow.records import Grading, Json, Message, Rollout, Turn
from windrow.util.blobs import is_blob


def trace_of(
    rollout: Rollout, turn: Turn, *, last: bool, gradings: Sequence[Grading] = ()
) -> dict[str, Json]:
    """Of one turn; the `last` one has the verdicts. Raises IndexError for a turn that names messages which are not there."""
    reply = _said(rollout, turn)
    trace = {
        "prompt": _conversation(_read(rollout, turn)),
        "policy_response": _conversation(reply[:1]) if reply else None,
        "reward_data": _reward_data(rollout, turn, last=last),
        "env_state": _env_state(rollout, turn, last=last),
        "extra": _extra(rollout, turn, reply[1:], gradings, last=last),
    }
    return {key: value for key, value in trace.items() if value}


def message_row(message: Message) -> dict[str, Json]:
    """A message as their conversations have it: reasoning is a part of the content, arguments of a call are the policy's own text."""
    row: dict[str, Json] = {"role": message.role, "content": _content(message)}
    if message.tool_calls:
        row["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    named = {"tool_call_id": message.tool_call_id, "name": message.name}
    return row | _filled(named)


def has_images(rollout: Rollout) -> bool:
    """Kept beside the log, or within a message: what a part of that kind was to the model, no ids can say."""
    parts = [part for m in rollout.messages if isinstance(m.content, list) for part in m.content]
    return any(is_blob(part) or "image" in str(part.get("type")) for part in parts)


def _content(message: Message) -> str | list[dict[str, Json]]:
    if isinstance(message.content, str | None) and not message.reasoning:
        return message.content or ""
    parts: list[dict[str, Json]] = []
    if message.reasoning:
        parts.append({"type": "thinking", "thinking": message.reasoning})
    if isinstance(message.content, str):
        parts.append({"type": "text", "text": message.content})
    else:
        parts += [{"type": "image", **part} if is_blob(part) else part for part in message.content or ()]
    return parts


def _read(rollout: Rollout, turn: Turn) -> list[Message]:
    """Return the messages that the policy read."""
    if not all(0 <= start <= stop <= len(rollout.messages) for start, stop in turn.reads):
        raise IndexError("a turn reads messages that are not there")
    return [message for start, stop in turn.reads for message in rollout.messages[start:stop]]


def _said(rollout: Rollout, turn: Turn) -> list[Message]:
    """Return the policy's reply and its results, up to the next reply. Empty if the call gave none."""
    if turn.writes is None:
        return []
    if not 0 <= turn.writes < len(rollout.messages):
        raise IndexError("a turn writes a message that is not there")
    after = rollout.messages[turn.writes + 1 :]
    return [rollout.messages[turn.writes], *takewhile(lambda message: message.origin != "policy", after)]


def _conversation(messages: Iterable[Message]) -> dict[str, Json]:
    return {"type": "conversation", "messages": [message_row(message) for message in messages]}


def _reward_data(rollout: Rollout, turn: Turn, *, last: bool) -> dict[str, Json]:
    rewards: dict[str, Json] = {"step_reward": turn.reward, "step_scores": turn.scores}
    if last:
        rewards["total_reward"] = rollout.reward
        rewards["scores"] = {name: score.value for name, score in rollout.scores.items()}
        rewards["weights"] = {name: score.weight for name, score in rollout.scores.items()}
    return _filled(rewards)


def _env_state(rollout: Rollout, turn: Turn, *, last: bool) -> Json:
    state = rollout.state if last and turn.state is None else turn.state
    fields: dict[str, Json] = dict(state) if isinstance(state, dict) else _filled({"state": state})
    ended = last and rollout.status in ("completed", "truncated")
    if rollout.env == "preference":
        fields.setdefault("valid_format", rollout.status == "completed" and turn.parse_error is None)
    if rollout.seat is not None:
        fields.setdefault("game_done", ended)
    return fields


def _extra(
    rollout: Rollout, turn: Turn, brought: Iterable[Message], gradings: Sequence[Grading], *, last: bool
) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "next_messages": [message_row(message) for message in brought],
        "info": turn.info,
        "tool_calls": [
            _filled({"id": c.id, "name": c.name, "failed": c.failed, "seconds": c.seconds, "error": c.error})
            for c in turn.tool_calls
        ],
        "parse_error": turn.parse_error,
    }
    if last:
        fields["reference_answer"] = rollout.task.get("answer")
        fields["evidence"] = _filled({name: score.evidence for name, score in rollout.scores.items()})
        fields["judgements"] = _judgements(rollout, gradings)
    return _filled(fields)


def _judgements(rollout: Rollout, gradings: Sequence[Grading]) -> list[dict[str, Json]]:
    """Return what judges said of this rollout; of its group, only the comparisons in which it was one of the two."""
    own = Entrant(rollout).label
    return [
        {
            "scorer": grading.scorer,
            "about": judgement.about,
            "model": judgement.model,
            "reply": judgement.reply,
        }
        for grading in gradings
        for judgement in grading.judgements
        if judgement.problem is None and (len(grading.members) == 1 or _is_about(judgement.about, own))
    ]


def _is_about(about: str | None, label: str) -> bool:
    pair = (about or "").partition(", order ")[0]
    return about is None or " vs " not in pair or label in pair.split(" vs ")


def _filled(fields: Mapping[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in fields.items() if value is not None and value != {} and value != []}
