"""The answer of an agent's `/run`, which is also a line of their rollouts: reading, recording and writing it.

Parts without a field in the record (ids of items, fields of the verifier) are recorded in the rollout's `state` under
`nemo_gym`: `fields` are the verifier's, `rest` holds every other difference from the line that we would write.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping

import msgspec

from windrow.agents import ModelTurn, Piece
from windrow.integrations.nemo_gym.items import (
    LOGPROBS,
    heard_item,
    read_output,
    said_items,
    token_fields,
)
from windrow.integrations.nemo_gym.json_differences import Difference, applied, difference
from windrow.integrations.nemo_gym.rows import (
    AGENT,
    FAILURE_CLASS,
    FAILURE_TERMINAL,
    JUDGE_ERROR,
    MARK,
    PARAMS,
    params_of,
    with_sampling,
)
from windrow.integrations.nemo_gym.usage import read_usage, shared, written_usage
from windrow.policies.capture import held
from windrow.records import ErrorRecord, Json, Message, Owner, Rollout, Turn
from windrow.util.token_contexts import prompt_ids

STATE = "nemo_gym"
REWARD = "reward"
LENGTH = "max_output_tokens"  # why a response is incomplete
_OWNERS: dict[str, Owner] = {"judge_failed": "scorer", "skipped": "env", "legitimate": "env"}


class Failure(msgspec.Struct, frozen=True):
    """A failure that an agent reports: its class, whether it is final, and its message."""

    kind: str
    terminal: bool
    message: str

    @property
    def record(self) -> ErrorRecord:
        return ErrorRecord(
            owner=_OWNERS.get(self.kind, "infra"),
            kind=self.kind,
            message=self.message,
            phase="agent",
            retryable=not self.terminal,
        )


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`fields` are the verifier's: those that are not in the row, are no marks, and are not read here."""

    pieces: tuple[Piece, ...]
    reward: float | None
    incomplete: str | None
    failure: Failure | None
    fields: dict[str, Json]

    @property
    def numbers(self) -> dict[str, float]:
        """The verifier's fields that are numbers; true is 1."""
        return numbers_of(self.fields)


def numbers_of(fields: Mapping[str, Json]) -> dict[str, float]:
    return {
        name: float(value) for name, value in fields.items() if isinstance(value, bool) or is_number(value)
    }


def verifier_fields(answer: Mapping[str, Json], row: Mapping[str, Json]) -> dict[str, Json]:
    """Return the fields of an answer that are not in the row, are no marks, and are not read here."""
    return {
        key: value
        for key, value in answer.items()
        if not key.startswith(MARK)
        and key not in (PARAMS, AGENT, "response", REWARD)
        and not (key in row and row[key] == value)
    }


def read_result(answer: Mapping[str, Json], row: Mapping[str, Json]) -> Result:
    """Read an agent's answer for this row. ValueError describes the problem with it.

    A failure may lack a response and a reward; any other answer needs both.
    """
    failure = _failure(answer)
    response = answer.get("response")
    if not isinstance(response, dict) and failure is None:
        raise ValueError(f"'response' must be an object, found {response!r:.80}")
    response_body = response if isinstance(response, dict) else {"output": []}
    incomplete = _reason(response_body)
    return Result(
        pieces=_with_totals(read_output(response_body.get("output")), response_body, incomplete),
        reward=_reward(answer, needed=failure is None),
        incomplete=incomplete,
        failure=failure,
        fields=verifier_fields(answer, row),
    )


def with_answer(rollout: Rollout, answer: Mapping[str, Json], fields: Mapping[str, Json]) -> Rollout:
    """Return the rollout of an answer, with the parts of the answer that have no other field."""
    own: dict[str, Json] = {"fields": dict(fields)} if fields else {}
    with_fields = msgspec.structs.replace(rollout, state={STATE: own})
    ours, theirs = result_row(with_fields), _unmarked(answer)
    if is_number(theirs.get(REWARD)):
        theirs[REWARD] = ours[REWARD]  # it stands in the record, where another verdict may take its place
    rest = difference(ours, theirs)
    if rest is not None:
        own["rest"] = rest
    return msgspec.structs.replace(rollout, state={STATE: own} if own else None)


def result_row(rollout: Rollout) -> dict[str, Json]:
    """Return the rollout as an agent would have answered, without marks, which belong to a line of a file."""
    row = rollout.task.data or {}
    own = _own_state(rollout)
    answer: dict[str, Json] = {
        **row,
        PARAMS: given_params(rollout),
        "response": _response(rollout),
        REWARD: rollout.reward if rollout.reward is not None else 0.0,
    }
    components = {name: score.value for name, score in rollout.scores.items() if score.weight}
    if components and set(components) != {REWARD}:
        answer["reward_components"] = components
    answer |= own.get("fields") or {}
    rest: Difference = own.get("rest")
    patched: dict[str, Json] = applied(answer, rest)
    return patched


def given_params(rollout: Rollout) -> dict[str, Json]:
    """Return the row's parameters with the requested sampling, and with the input that a prompt made, if any."""
    opening = [message for message in rollout.messages if message.origin == "task"]
    return asked_params(rollout.task.data or {}, rollout.policy.sampling, opening)


def asked_params(
    row: Mapping[str, Json], sampling: Mapping[str, Json], opening: Iterable[Message]
) -> dict[str, Json]:
    params = with_sampling(params_of(row), sampling)
    if params.get("input"):
        return params
    given = [_plain(item) for message in opening for item in _prompt_items(message)]
    return {**params, "input": given} if given else params


def _prompt_items(message: Message) -> list[dict[str, Json]]:
    if message.role == "assistant":
        return said_items(message, label="0")
    return [heard_item(message, label="0")]


def _plain(item: dict[str, Json]) -> dict[str, Json]:
    """Return a message of a prompt in its shortest form."""
    return {key: value for key, value in item.items() if (key, value) != ("type", "message")}


def _failure(answer: Mapping[str, Json]) -> Failure | None:
    kind = answer.get(FAILURE_CLASS)
    if kind is None:
        return None
    reason = next((answer[key] for key in (JUDGE_ERROR, "error") if answer.get(key)), "")
    message = reason if isinstance(reason, str) else msgspec.json.encode(reason).decode()
    return Failure(str(kind), answer.get(FAILURE_TERMINAL) is True, message or f"the agent said {kind}")


def _reward(answer: Mapping[str, Json], *, needed: bool) -> float | None:
    reward = answer.get(REWARD)
    if is_number(reward):
        return float(reward)  # type: ignore[arg-type]
    if not needed:
        return None
    raise ValueError(f"'reward' must be a finite number, found {reward!r:.80}")


def is_number(value: Json) -> bool:
    """Return whether a value is a finite number that a float can hold."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _reason(response: Mapping[str, Json]) -> str | None:
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return reason if isinstance(reason, str) else None


def _with_totals(
    pieces: list[Piece], response: Mapping[str, Json], incomplete: str | None
) -> tuple[Piece, ...]:
    """Return the pieces with the totals laid on the model calls: the model, the usage, and for the last call the
    finish.
    """
    calls = [piece.completion for piece in pieces if isinstance(piece, ModelTurn)]
    if not calls:
        return tuple(pieces)
    model = response.get("model")
    usages = shared(read_usage(response.get("usage")), calls)
    ended = ("length" if incomplete == LENGTH else incomplete) or calls[-1].finish
    finishes = [*(call.finish for call in calls[:-1]), ended]
    model_turns = (
        ModelTurn(
            msgspec.structs.replace(
                call, usage=usage, finish=finish, model=model if isinstance(model, str) else None
            )
        )
        for call, usage, finish in zip(calls, usages, finishes, strict=True)
    )
    return tuple(next(model_turns) if isinstance(piece, ModelTurn) else piece for piece in pieces)


def _response(rollout: Rollout) -> dict[str, Json]:
    params = params_of(rollout.task.data or {})
    counted = any(turn.usage is not None for turn in rollout.turns)
    cut = rollout.stop in ("length", "context_overflow", "max_episode_tokens")
    model = next((turn.model for turn in reversed(rollout.turns) if turn.model), rollout.policy.model)
    return {
        "id": f"resp_{rollout.id}",
        "created_at": rollout.timing.started_at,
        "model": model,
        "object": "response",
        "output": _output(rollout),
        "parallel_tool_calls": params.get("parallel_tool_calls", True),
        "tool_choice": params.get("tool_choice", "auto"),
        "tools": params.get("tools")
        or [{"type": "function", "strict": False, **tool} for tool in rollout.tools],
        "usage": written_usage(rollout.usage) if counted else None,
        "incomplete_details": {"reason": LENGTH} if cut else None,
    }


def _output(rollout: Rollout) -> list[Json]:
    items: list[Json] = []
    started = False
    for message in rollout.messages:
        started = started or message.origin != "task"
        if not started:
            continue
        label = str(len(items))
        if message.origin == "policy" and message.turn is not None:
            items += said_items(message, _tokens(rollout.turns, message.turn), label=label)
        else:
            items.append(heard_item(message, label=label))
    return items


def _tokens(turns: tuple[Turn, ...], number: int) -> dict[str, Json] | None:
    tokens = turns[number].tokens
    if tokens is None or held("tokens", tokens) != "tokens":
        return None
    return token_fields(prompt_ids(turns, number), tokens)


def _own_state(rollout: Rollout) -> dict[str, Json]:
    state = rollout.state.get(STATE) if isinstance(rollout.state, dict) else None
    return state if isinstance(state, dict) else {}


def _unmarked(answer: Mapping[str, Json]) -> dict[str, Json]:
    """Return the answer without its marks, with logprobs at the precision of a record."""
    kept = {key: value for key, value in answer.items() if not key.startswith(MARK)}
    response = kept.get("response")
    if isinstance(response, dict) and isinstance(response.get("output"), list):
        kept["response"] = {**response, "output": [_rounded(item) for item in response["output"]]}
    return kept


def _rounded(item: Json) -> Json:
    logprobs = item.get(LOGPROBS) if isinstance(item, dict) else None
    if not isinstance(logprobs, list):
        return item
    try:
        packed = struct.pack(f"<{len(logprobs)}f", *logprobs)
    except (struct.error, OverflowError):  # no tokens that anyone reads
        return item
    return {**item, LOGPROBS: list(struct.unpack(f"<{len(logprobs)}f", packed))}
