"""Sinks: they encode and redact records and append them to the logs of a run."""

from __future__ import annotations

from collections.abc import Sequence

from windrow.records import Grading, Rollout, encode
from windrow.store.blobs import BlobStore
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
        lines = b"".join(encode(rollout) + b"\n" for rollout in rollouts)
        written = self._redactor.line(lines)
        await self._log.append(written)
        if self._index is not None:
            heads = rollouts if written is lines else [decode_head(line) for line in written.splitlines()]
            self._index.committed(heads, written, self._disk)


class GradingSink:
    """Encodes gradings and appends them; all gradings of one call are one write."""

    def __init__(self, log: Log, redactor: Redactor) -> None:
        self._log = log
        self._redactor = redactor

    async def commit(self, gradings: Sequence[Grading]) -> None:
        data = b"".join([encode(grading) + b"\n" for grading in gradings])
        await self._log.append(self._redactor.line(data))
