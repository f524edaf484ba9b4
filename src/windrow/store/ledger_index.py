"""The index of a ledger: what all segments together say of the slots of one plan.

It saves naming the groups of a plan where neither the plan nor the log has changed. Where one has, the indexes of the segments
say what the ledger is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from windrow.identity import digest
from windrow.store.index_files import index_name, read_derived, worth_keeping, write_derived
from windrow.store.resume_index import SegmentIndex
from windrow.tasks.plan import PackedLedger
from windrow.util.disk import Disk


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    key: str
    ledger: PackedLedger


class LedgerIndex:
    """For a call that goes by this plan, and has read these segments."""

    def __init__(self, run: Path, writer: str | None, *, plan: str, segments: Sequence[SegmentIndex]) -> None:
        self._run = run
        self._name = index_name("ledger", writer)
        self._key = digest([plan, sorted(segment.content for segment in segments)])
        self._size = sum(segment.size for segment in segments)

    def found(self) -> PackedLedger | None:
        """The ledger, if it was entered when the log was as it is now."""
        stored = read_derived(self._run, self._name, _Stored)
        return stored[0].ledger if stored is not None and stored[0].key == self._key else None

    def save(self, ledger: PackedLedger, disk: Disk) -> None:
        """Keep what the segments say, unless they are too short."""
        if worth_keeping(self._size):
            write_derived(self._run, self._name, _Stored(self._key, ledger), disk)
