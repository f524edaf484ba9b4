"""What judges have said, by what they were asked: kept in judgements.jsonl, so that nothing is asked twice.

The key is a hash of the question: the judge's identity, its sampling, the messages. A run that is killed while it is
graded goes on with the calls that are missing, and a grading with other weights asks for nothing at all.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from windrow.compact import Index
from windrow.records import SCHEMA_VERSION, Usage, encode
from windrow.secrets import Redactor
from windrow.store.heads import NOT_A_LINE
from windrow.store.log import Log


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A line of judgements.jsonl: a reply that could be read."""

    v: int = SCHEMA_VERSION
    key: str
    reply: str
    usage: Usage | None = None


_decode = msgspec.json.Decoder(Said).decode


class Judgements:
    """The replies of a run's judges; without a log they are kept in memory."""

    def __init__(self, log: Log | None = None, redactor: Redactor | None = None) -> None:
        self._log = log
        self._redactor = redactor or Redactor()
        self._places = Index()
        self._fresh: dict[str, Said] = {}
        self._end = 0
        if log is not None:
            self._learn(log.path)

    async def get(self, key: str) -> Said | None:
        found = self._fresh.get(key)
        if found is None and self._log is not None and (place := self._places.get(key)) is not None:
            found = _read(self._log.path, place)
        return found if found is not None and found.key == key else None

    async def keep(self, said: Said) -> None:
        """Return when it is durable."""
        if self._log is None:
            self._fresh[said.key] = said
            return
        self._fresh[said.key] = said
        line = self._redactor.line(encode(said) + b"\n")
        place, self._end = self._end, self._end + len(line)
        await self._log.append(line)
        self._places.set(said.key, place)
        del self._fresh[said.key]

    def _learn(self, path: Path) -> None:
        with path.open("rb") as file:
            for line in file:
                try:
                    self._places.set(_decode(line).key, self._end)
                except NOT_A_LINE:
                    pass  # what cannot be read is asked again
                self._end += len(line)


def _read(path: Path, place: int) -> Said | None:
    with path.open("rb") as file:
        file.seek(place)
        try:
            return _decode(file.readline())
        except NOT_A_LINE:
            return None
