"""Building records: the rollout of a recorder whose episode has ended, and the copy of it that scorers are shown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from windrow.engine.recorder import Recorder
from windrow.envs import Episode
from windrow.records import (
    ErrorRecord,
    Json,
    Message,
    PolicyRecord,
    Rollout,
    Status,
    Stop,
    Task,
    Timing,
    Turn,
    Usage,
    is_withheld,
    lowest_version,
    reward_of,
)
from windrow.util.freeze import Freezer, copied, copied_messages, copied_task


def build_rollout(recorder: Recorder) -> Rollout:
    """The rollout of an attempt that has ended. Under `capture: none` it holds numbers, and nothing that was said."""
    outcome, slot, seat = recorder.outcome, recorder.slot, recorder.seat
    status, stop = outcome.ending()
    turns = tuple(recorder.turns)
    _add_derived_metrics(recorder)
    keeps_content = recorder.capture != "none"
    return Rollout(
        id=slot.id,
        attempt=slot.attempt,
        group=slot.group,
        sample=slot.sample,
        episode=seat.episode if seat else None,
        seat=seat.number if seat else None,
        seats=seat.count if seat else None,
        seed=slot.seed,
        task=slot.recorded_task,
        env=recorder.env,
        agent=recorder.agent,
        policy=_policy(recorder),
        tools=recorder.tools,
        status=status,
        stop=stop,
        error=_frozen_error(outcome.error, recorder.freezer) if outcome.error is not None else None,
        reason=outcome.reason,
        grade=outcome.grade,
        grading=recorder.grading if outcome.grade != "none" or is_withheld(recorder.scores) else None,
        reward=reward_of(status, outcome.grade, recorder.scores, turns),
        scores=recorder.scores,
        metrics=recorder.metrics,
        state=recorder.state if keeps_content else None,
        messages=tuple(recorder.messages) if keeps_content else (),
        turns=turns if keeps_content else tuple(_without_content(turn) for turn in turns),
        usage=_total_usage(turns),
        timing=_timing(recorder),
        capture=recorder.captured,
    )


def _policy(recorder: Recorder) -> PolicyRecord:
    version = lowest_version(recorder.turns)
    return recorder.policy if version is None else msgspec.structs.replace(recorder.policy, version=version)


def _add_derived_metrics(recorder: Recorder) -> None:
    """Add the metrics that follow from the messages and turns. An environment may have set the first two itself."""
    turns, metrics = recorder.turns, recorder.metrics
    parse_errors = 0
    for turn in turns:
        parse_errors += turn.parse_error is not None
    if turns and (recorder.tools or parse_errors):
        metrics.setdefault("parse_errors_per_turn", parse_errors / len(turns))
        metrics.setdefault("turns", float(len(turns)))
    if unanswered := _unanswered_calls(recorder.messages):
        metrics["unanswered_tool_calls"] = float(unanswered)
    if recorder.freezer.repaired:
        metrics["repaired_strings"] = float(recorder.freezer.repaired)


def _unanswered_calls(messages: Sequence[Message]) -> int:
    """How many calls never got a result, because a limit, a crash or the end came before it."""
    unanswered = 0
    for message in messages:
        if message.tool_calls and message.origin == "policy":
            unanswered += len(message.tool_calls)
        elif message.role == "tool" and message.origin == "tool":
            unanswered -= 1
    return unanswered


def _frozen_error(error: ErrorRecord, freezer: Freezer) -> ErrorRecord:
    fields: dict[str, Any] = freezer.value(error, "error")
    return ErrorRecord(**fields)


def _without_content(turn: Turn) -> Turn:
    return msgspec.structs.replace(
        turn, reads=(), writes=None, tool_calls=(), parse_error=None, state=None, info=None
    )


def _total_usage(turns: Sequence[Turn]) -> Usage:
    if len(turns) == 1:
        return turns[0].usage or Usage()
    return sum([turn.usage for turn in turns if turn.usage is not None], Usage())


def _timing(recorder: Recorder) -> Timing:
    seconds = recorder.seconds
    return Timing(
        started_at=recorder.started_at,
        setup=seconds["setup"],
        policy=seconds["policy"],
        env=seconds["env"],
        tools=seconds["tools"],
        score=seconds["score"],
        total=time.monotonic() - recorder.started,
    )


def recorded_episode(recorder: Recorder) -> Episode:
    """The episode of a recorder as scorers are shown it."""
    messages, turns = tuple(recorder.messages), tuple(recorder.turns)
    return shown_episode(recorder.slot.task, messages, turns, recorder.state, *recorder.outcome.ending())


def shown_episode(
    task: Task,
    messages: tuple[Message, ...],
    turns: tuple[Turn, ...],
    state: Json,
    status: Status,
    stop: Stop,
) -> Episode:
    """The episode that a scorer is shown. It shares nothing mutable with the record."""
    return Episode(
        task=copied_task(task),
        messages=copied_messages(messages),
        turns=tuple(
            turn
            if turn.state is None and turn.info is None
            else msgspec.structs.replace(turn, state=copied(turn.state), info=copied(turn.info))
            for turn in turns
        ),
        state=copied(state),
        status=status,
        stop=stop,
    )
