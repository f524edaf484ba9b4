"""Recording an episode that was played elsewhere: one turn per model call, as far as the calls were reported.

Nothing is made up. The seconds of a turn are 0, and a number that was reported once for the whole episode, such as its
usage, stands on the last turn.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from windrow.agents.external import ModelTurn, Piece, Played
from windrow.engine.recorder import Recorder
from windrow.envs import Step
from windrow.errors import error_record
from windrow.policies.capture import asks
from windrow.policies.wire import decode_object
from windrow.records import LIMITS, Call, Message, ToolCall

OpenCalls = dict[str, tuple[Call, int]]  # tool calls without a result, by id, each with its turn


def record_external_episode(recorder: Recorder, played: Played) -> None:
    """Record everything that happened, then how it ended."""
    recorder.offer_tools(played.tools)
    record_pieces(recorder, played.pieces)
    recorder.add_metrics(played.metrics)
    recorder.set_state(played.state)
    if played.interrupted:
        recorder.outcome.end("cancelled", "cancelled", reason="interrupted")
    elif played.error is not None:
        recorder.outcome.fail(error_record(played.error, owner="env", phase="agent"))
    else:
        recorder.outcome.end("truncated" if played.stop in LIMITS else "completed", played.stop)


def record_pieces(recorder: Recorder, pieces: Iterable[Piece]) -> None:
    """Record each model call as a turn that read everything before it, and each tool result with its call."""
    open_calls: OpenCalls = {}
    for piece in pieces:
        if isinstance(piece, ModelTurn):
            _record_call(recorder, piece, open_calls)
        else:
            _record_message(recorder, piece.message, open_calls)


def _record_call(recorder: Recorder, call: ModelTurn, open_calls: OpenCalls) -> None:
    completion, turn = call.completion, len(recorder.turns)
    if not asks(recorder.capture, "tokens"):
        completion = msgspec.structs.replace(completion, tokens=None, capture="text")
    reads = ((0, len(recorder.messages)),)
    recorder.model_replied(completion, seconds=0.0, retries=0, sampling=None, reads=reads)
    open_calls.update((tool_call.id, (tool_call, turn)) for tool_call in completion.tool_calls)
    if call.info is not None:
        recorder.stepped(Step(info=call.info), turn)


def _record_message(recorder: Recorder, message: Message, open_calls: OpenCalls) -> None:
    answered = open_calls.pop(message.tool_call_id or "", None) if message.role == "tool" else None
    if answered is not None:
        call, turn = answered
        arguments = decode_object(call.arguments or "{}")
        tool_call = ToolCall(
            id=call.id,
            name=call.name,
            arguments=call.arguments if arguments is None else arguments,
            result=len(recorder.messages),
            failed=False,
            started_at=0.0,
            seconds=0.0,
        )
        recorder.count_tool_calls(1)
        recorder.tools_ran([tool_call], 0.0, turn)
    recorder.add([message], "tool" if message.role == "tool" else "env")
