"""Reads the answer of an agent's `/run` as an episode: how it ended, and its content as far as it can be trusted.

The fields are read in this order: `_ng_no_persist` (play again), `_ng_failure_class` (failed, or never judged), then
the reward, which must be a finite number: none is ever made up. An answer that cannot be read is a failure with its
readable part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from windrow.agents import Piece, Played
from windrow.engine.external_episode import record_pieces
from windrow.engine.record_building import build_rollout
from windrow.engine.recorder import Recorder
from windrow.errors import EnvError, WindrowError
from windrow.integrations.nemo_gym.items import read_output
from windrow.integrations.nemo_gym.results import LENGTH, REWARD, STATE, Result, read_result, with_answer
from windrow.integrations.nemo_gym.rows import FAILURE_CLASS, NO_PERSIST, agent_of, tools_of
from windrow.policies.external import REMOTE
from windrow.records import Json, Message, PolicyRecord, Stop, Task
from windrow.tasks.plan import Slot

JUDGE_FAILED = "judge_failed"
NEVER_JUDGED = "judge_error"  # in the state: what the judge failed with
PLAYED_BY = "agent"
MAX_BITS = 1000  # a float has room for 1,023
_STOPS: dict[str, Stop] = {LENGTH: "length", "max_tool_calls": "max_tool_calls"}


def played_of(answer: Mapping[str, Json], task: Task, opening: Sequence[Message], *, agent: str) -> Played:
    """Return the episode of this task from the answer of the agent; the episode opened with these messages."""
    finite_answer: dict[str, Json] = {key: finite(value) for key, value in answer.items()}
    if answer.get(NO_PERSIST) is True:
        return Played(interrupted=True, pieces=_readable(finite_answer))
    if FAILURE_CLASS not in answer and not is_reward(answer.get(REWARD)):
        return _unread(
            finite_answer, f"its reward is {answer.get(REWARD)!r:.80}, not a finite number", "bad_reward"
        )
    try:
        result = read_result(finite_answer, task.data or {})
    except ValueError as problem:
        return _unread(finite_answer, str(problem), "bad_answer")
    failure, error = result.failure, None
    judged = failure is None
    if failure is not None and not (
        failure.kind == JUDGE_FAILED and isinstance(finite_answer.get("response"), dict)
    ):
        error = _failed(result)
    recorded_state: dict[str, Json] = _state(finite_answer, result, task, opening)
    if agent_of(task.data or {}) is None:
        recorded_state[PLAYED_BY] = agent  # whoever verifies it again has to know
    if judged:
        recorded_state[REWARD] = result.reward
    elif error is None and failure is not None:
        recorded_state[NEVER_JUDGED] = failure.message
    return Played(
        tools=tools_of(task.data or {}),
        pieces=result.pieces,
        stop=_STOPS.get(result.incomplete or "", "answered"),
        error=error,
        state={STATE: recorded_state},
        metrics=result.numbers,
    )


def _failed(result: Result) -> WindrowError:
    failure = result.failure
    assert failure is not None
    record = failure.record
    error = EnvError(record.message, kind=record.kind[:100], retryable=record.retryable)
    error.owner = record.owner
    return error


def _unread(answer: Mapping[str, Json], why: str, kind: str) -> Played:
    """Return a failure for an invalid answer, with the readable part of the episode."""
    return Played(
        error=EnvError(f"the agent's answer cannot be taken: {why}", kind=kind), pieces=_readable(answer)
    )


def _readable(answer: Mapping[str, Json]) -> tuple[Piece, ...]:
    response = answer.get("response")
    try:
        return tuple(read_output(response["output"])) if isinstance(response, dict) else ()
    except (ValueError, KeyError):
        return ()


def _state(
    answer: Mapping[str, Json], result: Result, task: Task, opening: Sequence[Message]
) -> dict[str, Json]:
    """Return the parts of the answer that have no other field in the record, so that it can be written again
    unchanged.
    """
    slot = Slot(number=0, id="", attempt=1, group="", sample=0, seed=0, task=task, recorded_task=task)
    policy = PolicyRecord(model=REMOTE, sampling={}, fingerprint="")
    scratch = Recorder(slot, env="", agent="", policy=policy, capture="tokens")
    scratch.add(opening, "task")
    record_pieces(scratch, result.pieces)
    scratch.outcome.end("completed", "answered")
    rollout = msgspec.structs.replace(build_rollout(scratch), reward=result.reward)
    recorded_answer = answer if result.reward is None else {**answer, REWARD: result.reward}
    state: Any = with_answer(rollout, recorded_answer, result.fields).state
    return dict(state[STATE]) if state else {}


def is_reward(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and finite(value) is not None


def finite(value: Json) -> Json:
    """Return a value in which null replaces NaN, infinities and oversized integers, which no reader accepts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if value.bit_length() <= MAX_BITS else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value
