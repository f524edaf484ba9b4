"""`parquet`: one row per rollout, its main fields as typed columns, its tokens as lists; written in row groups.

What may hold anything (a task's row, the state, tools, sampling) is JSON text. The token columns have one list per training
sequence; they are null for a rollout that is not exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any, BinaryIO

import msgspec

from windrow.exports.base import Example, Exporter, Invalid, Writer
from windrow.records import Json, Message, Rollout
from windrow.registry import import_extra

GROUP_ROWS = 1024
GROUP_BYTES = 1 << 24
TOKENS = ("input_ids", "loss_mask", "logprobs", "teacher_logprobs")
TOP = {"top_ids": "ids", "top_logprobs": "logprobs"}  # what of a sequence's likeliest tokens a column holds
TOKEN_BYTES = 9  # an id, a logprob and a bit of the mask
NOT_EXACT = "rollouts with empty token columns, because they were not captured as tokens"


class Parquet(Exporter):
    def __init__(self) -> None:
        super().__init__()
        _arrow("pyarrow.parquet")  # or refuse before anything is written

    def rows(self, example: Example) -> list[dict[str, Any]]:
        rollout = example.rollout
        row = _fields(rollout) | _outcome(rollout) | _spent(rollout) | self._tokens(rollout)
        for value in (*row.values(), *(message["turn"] for message in row["messages"])):
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise Invalid("rollouts with a number that no column can hold")
        return [row]

    def open(self, file: BinaryIO) -> ParquetFile:
        return ParquetFile(file)

    def _tokens(self, rollout: Rollout) -> dict[str, Any]:
        if rollout.capture != "tokens":
            self.notes[NOT_EXACT] += 1
            return {}
        from windrow.exports.exact import verified_sequences  # numpy only where there are tokens

        sequences = verified_sequences(rollout, self.notes)
        return {
            "input_ids": [sequence.input_ids for sequence in sequences],
            "loss_mask": [sequence.loss_mask for sequence in sequences],
            "logprobs": [sequence.logprobs for sequence in sequences],
            "logprob_kind": sequences[0].logprob_kind if sequences else None,
            "unanswered_tool_calls": sum(sequence.unanswered_tool_calls for sequence in sequences),
            **_top(rollout, sequences),
            **_teacher(rollout, sequences),
        }


class ParquetFile(Writer):
    """Rows are gathered to a row group and written, so that no more than one is in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._schema = schema()
        self._writer = _arrow("pyarrow.parquet").ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def write(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        self._bytes += _size(row)
        if len(self._rows) >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()

    def discard(self) -> None:
        """pyarrow closes a writer that is forgotten, and complains if it cannot: so it is closed while it can be."""
        self._rows = []
        try:
            self._writer.close()
        except Exception:  # it is the file that fails, and whoever discards it says so
            self._writer.is_open = False

    def _flush(self) -> None:
        arrays = [_column(self._rows, field) for field in self._schema]
        self._writer.write_table(_arrow("pyarrow").Table.from_arrays(arrays, schema=self._schema))
        self._rows, self._bytes = [], 0


def _arrow(module: str) -> Any:
    return import_extra(module, extra="parquet", what="the format parquet")


def schema() -> Any:
    pa = _arrow("pyarrow")
    text, whole, real = pa.string(), pa.int64(), pa.float64()
    call = pa.struct({"id": text, "name": text, "arguments": text}.items())
    message = {
        **dict.fromkeys(("role", "origin", "content", "parts", "reasoning", "name", "tool_call_id"), text),
        "tool_calls": pa.list_(call),
        "turn": whole,
    }
    score = {"name": text, "value": real, "weight": real}
    columns = {
        **dict.fromkeys(
            ("rollout_id", "group", "episode", "task", "digest", "source", "split", "env", "agent"), text
        ),
        **dict.fromkeys(("attempt", "sample", "task_index", "seat"), whole),
        **dict.fromkeys(("task_data", "model", "policy_version", "sampling", "tools"), text),
        **dict.fromkeys(("status", "stop", "grade", "error_owner", "error_kind", "error_message"), text),
        "reward": real,
        "scores": pa.list_(pa.struct(score.items())),
        "metrics": pa.list_(pa.struct({"name": text, "value": real}.items())),
        "state": text,
        "messages": pa.list_(pa.struct(message.items())),
        **dict.fromkeys(("turns", "prompt_tokens", "completion_tokens", "cached_tokens"), whole),
        **dict.fromkeys(("cost", "started_at", "total_s", "policy_s", "env_s", "tools_s"), real),
        "capture": text,
        "input_ids": pa.list_(pa.list_(pa.int32())),
        "loss_mask": pa.list_(pa.list_(pa.bool_())),
        "logprobs": pa.list_(pa.list_(pa.float32())),
        "top_ids": pa.list_(pa.list_(pa.list_(pa.int32()))),
        "top_logprobs": pa.list_(pa.list_(pa.list_(pa.float32()))),
        "teacher_logprobs": pa.list_(pa.list_(pa.float32())),
        "logprob_kind": text,
        "unanswered_tool_calls": whole,
    }
    return pa.schema(columns.items())


def _top(rollout: Rollout, sequences: list[Any]) -> dict[str, Any]:
    """The likeliest tokens: for each sequence a list, with a list for each of its positions. Nothing where no turn has them."""
    if not any(turn.tokens is not None and turn.tokens.top is not None for turn in rollout.turns):
        return {}
    from windrow.exports.tokens.top import laid_out

    top_by_sequence = [laid_out(rollout.turns, sequence) for sequence in sequences]
    return dict.fromkeys(TOP, top_by_sequence) if any(len(laid.ids) for laid in top_by_sequence) else {}


def _teacher(rollout: Rollout, sequences: list[Any]) -> dict[str, Any]:
    """What a teacher gives the same ids, where it has scored all that is trained."""
    if not any(turn.tokens is not None and turn.tokens.teacher is not None for turn in rollout.turns):
        return {}
    from windrow.exports.tokens.teacher import teacher_logprobs

    logprobs = [teacher_logprobs(rollout.turns, sequence) for sequence in sequences]
    return {} if any(values is None for values in logprobs) else {"teacher_logprobs": logprobs}


def _column(rows: list[dict[str, Any]], field: Any) -> Any:
    pa = _arrow("pyarrow")
    values = [row.get(field.name) for row in rows]
    if field.name not in (*TOKENS, *TOP) or not any(values):
        return pa.array(values, field.type)
    # Token by token through Python objects would take ten times as long: the arrays are laid end to end instead.
    import numpy as np

    pieces = [piece for value in values for piece in value or ()]
    if field.name in TOP:
        content: Any = _laid(pieces, TOP[field.name], field.type.value_type.value_type)
        lengths = [len(piece.counts) for piece in pieces]
    else:
        content, lengths = pa.array(np.concatenate(pieces)), list(map(len, pieces))
    inner = pa.ListArray.from_arrays(pa.array(_offsets(lengths), pa.int32()), content, field.type.value_type)
    return pa.ListArray.from_arrays(
        pa.array(_offsets(len(value or ()) for value in values), pa.int32()),
        inner,
        field.type,
        mask=pa.array([value is None for value in values]),
    )


def _laid(pieces: list[Any], what: str, kind: Any) -> Any:
    """The lists of all places of these sequences, one after the other."""
    import numpy as np

    pa = _arrow("pyarrow")
    counts = np.concatenate([piece.counts for piece in pieces])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    values = np.concatenate([getattr(piece, what) for piece in pieces])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values), kind)


def _offsets(lengths: Iterable[int]) -> list[int]:
    return list(accumulate(lengths, initial=0))


def _fields(rollout: Rollout) -> dict[str, Any]:
    return {
        "rollout_id": rollout.id,
        "attempt": rollout.attempt,
        "group": rollout.group,
        "sample": rollout.sample,
        "episode": rollout.episode,
        "seat": rollout.seat,
        "task": rollout.task.key,
        "digest": rollout.task.digest,
        "source": rollout.task.source,
        "split": rollout.task.split,
        "task_index": rollout.task.index,
        "task_data": _json(rollout.task.data),
        "env": rollout.env,
        "agent": rollout.agent,
        "model": rollout.policy.model,
        "policy_version": rollout.policy.version,
        "sampling": _json(rollout.policy.sampling),
        "tools": _json(rollout.tools),
        "messages": [_message(message) for message in rollout.messages],
        "capture": rollout.capture,
    }


def _outcome(rollout: Rollout) -> dict[str, Any]:
    error = rollout.error
    return {
        "status": rollout.status,
        "stop": rollout.stop,
        "grade": rollout.grade,
        "error_owner": error.owner if error else None,
        "error_kind": error.kind if error else None,
        "error_message": error.message if error else None,
        "reward": rollout.reward,
        "scores": [
            {"name": name, "value": score.value, "weight": score.weight}
            for name, score in rollout.scores.items()
        ],
        "metrics": [{"name": name, "value": value} for name, value in rollout.metrics.items()],
        "state": _json(rollout.state),
    }


def _spent(rollout: Rollout) -> dict[str, Any]:
    usage, timing = rollout.usage, rollout.timing
    return {
        "turns": len(rollout.turns),
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "cost": usage.cost,
        "started_at": timing.started_at,
        "total_s": timing.total,
        "policy_s": timing.policy,
        "env_s": timing.env,
        "tools_s": timing.tools,
    }


def _message(message: Message) -> dict[str, Any]:
    parts = isinstance(message.content, list)
    return {
        "role": message.role,
        "origin": message.origin,
        "content": message.text if parts else message.content,
        "parts": _json(message.content) if parts else None,
        "reasoning": message.reasoning,
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "tool_calls": None if message.tool_calls is None else msgspec.to_builtins(message.tool_calls),
        "turn": message.turn,
    }


def _json(value: Json) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _size(row: dict[str, Any]) -> int:
    texts = sum(len(value) for value in row.values() if isinstance(value, str))
    message_texts = sum(
        len(value) for message in row["messages"] for value in message.values() if isinstance(value, str)
    )
    likeliest: int = sum(laid.ids.nbytes + laid.logprobs.nbytes for laid in row.get("top_ids", ()))
    return texts + message_texts + likeliest + TOKEN_BYTES * sum(map(len, row.get("input_ids", ())))
