"""judgements.jsonl: the replies of judges by question, so that no question is asked twice.

The key is a hash of the question: the judge's identity, its sampling, the messages. A run that was killed while it was
graded resumes with the missing calls, and a grading that only changes weights makes no calls.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from windrow.records import SCHEMA_VERSION, Usage, encode
from windrow.store.line_checksums import with_checksum
from windrow.store.line_heads import NOT_A_LINE
from windrow.store.line_positions import LinePosition, LinePositions
from windrow.store.log import Log
from windrow.store.segments import segments
from windrow.util.hash_index import HashIndex
from windrow.util.redaction import Redactor

NAME = "judgements"


class JudgeReply(msgspec.Struct, frozen=True, kw_only=True):
    """One line of judgements.jsonl: a reply that could be parsed."""

    v: int = SCHEMA_VERSION
    key: str
    reply: str
    usage: Usage | None = None


decode_judge_reply = msgspec.json.Decoder(JudgeReply).decode


class Judgements:
    """The replies of a run's judges. Without a log they are kept in memory."""

    def __init__(self, log: Log | None = None, redactor: Redactor | None = None) -> None:
        self._log = log
        self._redactor = redactor or Redactor()
        self._positions = LinePositions()
        self._index = HashIndex()  # by question: the packed position of its line
        self._fresh: dict[str, JudgeReply] = {}
        self._end = 0  # of the segment that this process writes
        if log is not None:
            ends = {
                segment: self._index_segment(log.path, segment) for segment in segments(log.path.parent, NAME)
            }
            self._end = ends[log.path.name]

    async def get(self, key: str) -> JudgeReply | None:
        reply = self._fresh.get(key)
        if reply is None and self._log is not None and (packed := self._index.get(key)) is not None:
            position = self._positions.unpack(packed)
            reply = _read(self._log.path.with_name(position.segment), position.offset)
        return reply if reply is not None and reply.key == key else None

    async def keep(self, reply: JudgeReply) -> None:
        """Return when the reply is durable."""
        if self._log is None:
            self._fresh[reply.key] = reply
            return
        self._fresh[reply.key] = reply
        line = with_checksum(self._redactor.line(encode(reply))) + b"\n"
        position = LinePosition(self._log.path.name, self._end)
        self._end += len(line)
        await self._log.append(line)
        self._index.set(reply.key, self._positions.packed(position))
        del self._fresh[reply.key]

    def _index_segment(self, path: Path, segment: str) -> int:
        """Index one segment, of this writer or of another rank; return its size."""
        end = 0
        with path.with_name(segment).open("rb") as file:
            for line in file:
                try:
                    packed = self._positions.packed(LinePosition(segment, end))
                    self._index.set(decode_judge_reply(line).key, packed)
                except NOT_A_LINE:
                    pass  # its question is asked again
                end += len(line)
        return end


def _read(path: Path, offset: int) -> JudgeReply | None:
    with path.open("rb") as file:
        file.seek(offset)
        try:
            return decode_judge_reply(file.readline())
        except NOT_A_LINE:
            return None
