"""Writing down an episode that was played elsewhere: a turn for each model call, as far as we were told of them.

What nobody told us is not made up: a turn's seconds are 0, and what was said once for the whole episode (its usage)
stands on the last turn.
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

Asked = dict[str, tuple[Call, int]]  # the calls of tools by id, each with the turn that asked for it


def record(recorder: Recorder, played: Played) -> None:
    """All that happened, then how it ended."""
    recorder.offer(played.tools)
    record_pieces(recorder, played.pieces)
    recorder.metrics |= recorder.frozen_numbers(played.metrics)
    recorder.leave(played.state)
    if played.interrupted:
        recorder.end("cancelled", "cancelled", reason="interrupted")
    elif played.error is not None:
        recorder.fail(error_record(played.error, owner="env", phase="agent"))
    else:
        recorder.end("truncated" if played.stop in LIMITS else "completed", played.stop)


def record_pieces(recorder: Recorder, pieces: Iterable[Piece]) -> None:
    """Each model call is a turn that read everything before it; results of tools stand with the calls that asked."""
    asked: Asked = {}
    for piece in pieces:
        if isinstance(piece, ModelTurn):
            _say(recorder, piece, asked)
        else:
            _hear(recorder, piece.message, asked)


def _say(recorder: Recorder, said: ModelTurn, asked: Asked) -> None:
    reply, turn = said.completion, recorder.turn_count
    if not asks(recorder.capture, "tokens"):
        reply = msgspec.structs.replace(reply, tokens=None, capture="text")
    reads = ((0, len(recorder.messages)),)
    recorder.called(reply, seconds=0.0, retries=0, sampling=None, reads=reads)
    asked.update((call.id, (call, turn)) for call in reply.tool_calls)
    if said.info is not None:
        recorder.stepped(Step(info=said.info), turn)


def _hear(recorder: Recorder, message: Message, asked: Asked) -> None:
    known = asked.pop(message.tool_call_id or "", None) if message.role == "tool" else None
    if known is not None:
        call, turn = known
        arguments = decode_object(call.arguments or "{}")
        ran = ToolCall(
            id=call.id,
            name=call.name,
            arguments=call.arguments if arguments is None else arguments,
            result=len(recorder.messages),
            failed=False,
            started_at=0.0,
            seconds=0.0,
        )
        recorder.tool_calls += 1
        recorder.tools_ran([ran], 0.0, turn)
    recorder.add([message], "tool" if message.role == "tool" else "env")
