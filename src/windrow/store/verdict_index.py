"""The index of verdicts: that nothing which a run has settled waits for one, so that not every rollout is looked at again.

It is of one plan, one grading, and the bytes of all logs of rollouts and of scores. One more line in one of them, and
everything is looked at again. It is kept only where nothing is left to grade.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from windrow.identity import digest
from windrow.store.index_files import index_name, read_derived, worth_keeping, write_derived
from windrow.store.line_heads import BadLine, Count
from windrow.store.log_stamp import READ_BYTES, Content, content_of, stamp_of
from windrow.store.resume_index import SegmentIndex
from windrow.util.disk import Disk


class Verdicts(msgspec.Struct, frozen=True, array_like=True):
    """What a look at all that is settled has found: how many rollouts are ungraded although none is to be graded, and
    the lines of the scores that cannot be read."""

    ungraded: Count
    bad_lines: list[BadLine]

    def __post_init__(self) -> None:
        if not all((line.segment + line.problem).isprintable() for line in self.bad_lines):
            raise ValueError("a problem is no text that we write")


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    key: str
    scores: dict[str, Content]
    verdicts: Verdicts


class VerdictIndex:
    """For a call that goes by this plan and this grading, and has read these segments."""

    def __init__(
        self,
        run: Path,
        writer: str | None,
        *,
        plan: str,
        grading: tuple[str, int] | None,
        segments: Iterable[SegmentIndex],
        scores: Iterable[str],
    ) -> None:
        self._run = run
        self._name = index_name("scores", writer)
        self._key = digest([plan, grading, sorted(segment.content for segment in segments)])
        self._stored = read_derived(run, self._name, _Stored)
        self._scores = {segment: self._content(segment) for segment in scores}

    def found(self) -> Verdicts | None:
        """What was found when the logs were as they are now; None if nobody has looked since."""
        if self._stored is None:
            return None
        stored = self._stored[0]
        before = {name: (content.size, content.checksum) for name, content in stored.scores.items()}
        now = {name: (content.size, content.checksum) for name, content in self._scores.items()}
        return stored.verdicts if stored.key == self._key and before == now else None

    def save(self, verdicts: Verdicts, disk: Disk) -> None:
        """Keep what was found, unless the scores are too short."""
        if worth_keeping(sum(content.size for content in self._scores.values())):
            write_derived(self._run, self._name, _Stored(self._key, self._scores, verdicts), disk)

    def _content(self, segment: str) -> Content:
        """What a log of scores holds now; one that nobody has touched is not read."""
        with (self._run / segment).open("rb", buffering=READ_BYTES) as file:
            if self._stored is not None and segment in self._stored[0].scores:
                stored = self._stored[0].scores[segment]
                if stored.is_untouched(stamp_of(os.fstat(file.fileno())), self._stored[1]):
                    return stored
            return content_of(file)
