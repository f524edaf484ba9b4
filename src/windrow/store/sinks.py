"""Sinks: they encode and redact records and append them to the logs of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from windrow.records import MAX_LAMPORT, Grading, Rollout, encode
from windrow.store.blobs import BlobStore
from windrow.store.line_checksums import with_checksum
from windrow.store.line_heads import decode_head
from windrow.store.log import Log
from windrow.store.resume_index import SegmentIndex
from windrow.util.disk import Disk
from windrow.util.redaction import Redactor


class RolloutSink:
    """Encodes rollouts and appends them; all rollouts of one call are one write."""

    def __init__(
        self,
        log: Log,
        redactor: Redactor,
        blobs: BlobStore,
        index: SegmentIndex | None = None,
        disk: Disk | None = None,
    ) -> None:
        self._log = log
        self._redactor = redactor
        self._blobs = blobs
        self._index = index
        self._disk = disk or Disk()

    async def commit(self, rollouts: Sequence[Rollout]) -> None:
        await self._blobs.settle()
        encoded = [encode(rollout) for rollout in rollouts]
        redacted = [self._redactor.line(line) for line in encoded]
        written = b"".join([with_checksum(line) + b"\n" for line in redacted])
        await self._log.append(written)
        if self._index is not None:
            same = all(line is before for line, before in zip(redacted, encoded, strict=True))
            heads = rollouts if same else [decode_head(line) for line in redacted]
            self._index.committed(heads, written, self._disk)


class GradingSink:
    """Numbers and encodes gradings, and appends them; all gradings of one call are one write.

    `latest` gives the highest Lamport number in the run, and is asked before the first write.
    """

    def __init__(self, log: Log, redactor: Redactor, latest: Callable[[], int]) -> None:
        self._log = log
        self._redactor = redactor
        self._latest = latest
        self._lamport: int | None = None

    async def commit(self, gradings: Sequence[Grading]) -> None:
        await self._log.append(b"".join([self._line(grading) for grading in gradings]))

    def _line(self, grading: Grading) -> bytes:
        latest = self._latest() if self._lamport is None else self._lamport
        self._lamport = min(latest + 1, MAX_LAMPORT)
        numbered = msgspec.structs.replace(grading, lamport=self._lamport)
        return with_checksum(self._redactor.line(encode(numbered))) + b"\n"
