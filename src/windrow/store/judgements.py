"""What judges have said, by what they were asked: kept in judgements.jsonl, so that nothing is asked twice.

The key is a hash of the question: the judge's identity, its sampling, the messages. A run that is killed while it is
graded goes on with the calls that are missing, and a grading with other weights asks for nothing at all.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from windrow.records import SCHEMA_VERSION, Usage, encode
from windrow.store.line_heads import NOT_A_LINE
from windrow.store.line_places import Place, Places
from windrow.store.log import Log
from windrow.store.reader import segments
from windrow.util.hash_index import HashIndex
from windrow.util.redaction import Redactor

NAME = "judgements"


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A line of judgements.jsonl: a reply that could be read."""

    v: int = SCHEMA_VERSION
    key: str
    reply: str
    usage: Usage | None = None


decode_said = msgspec.json.Decoder(Said).decode


class Judgements:
    """The replies of a run's judges; without a log they are kept in memory."""

    def __init__(self, log: Log | None = None, redactor: Redactor | None = None) -> None:
        self._log = log
        self._redactor = redactor or Redactor()
        self._places = Places()
        self._known = HashIndex()  # by question: the place, packed
        self._fresh: dict[str, Said] = {}
        self._end = 0  # of our own segment
        if log is not None:
            ends = {segment: self._learn(log.path, segment) for segment in segments(log.path.parent, NAME)}
            self._end = ends[log.path.name]

    async def get(self, key: str) -> Said | None:
        found = self._fresh.get(key)
        if found is None and self._log is not None and (known := self._known.get(key)) is not None:
            place = self._places.place(known)
            found = _read(self._log.path.with_name(place.segment), place.offset)
        return found if found is not None and found.key == key else None

    async def keep(self, said: Said) -> None:
        """Return when it is durable."""
        if self._log is None:
            self._fresh[said.key] = said
            return
        self._fresh[said.key] = said
        line = self._redactor.line(encode(said) + b"\n")
        place = Place(self._log.path.name, self._end)
        self._end += len(line)
        await self._log.append(line)
        self._known.set(said.key, self._places.packed(place))
        del self._fresh[said.key]

    def _learn(self, path: Path, segment: str) -> int:
        """What one writer has kept, ourselves or another rank; returns where it ends."""
        end = 0
        with path.with_name(segment).open("rb") as file:
            for line in file:
                try:
                    self._known.set(decode_said(line).key, self._places.packed(Place(segment, end)))
                except NOT_A_LINE:
                    pass  # what cannot be read is asked again
                end += len(line)
        return end


def _read(path: Path, offset: int) -> Said | None:
    with path.open("rb") as file:
        file.seek(offset)
        try:
            return decode_said(file.readline())
        except NOT_A_LINE:
            return None
