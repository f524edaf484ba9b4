"""How far a rescore is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from windrow.records import Grading


class RescoreProgress(msgspec.Struct):
    """`read` of `total` rollouts were looked at, `chosen` of them are to be judged, `judged` were judged by this call.

    `total` is a quick estimate at first; once all rollouts are read, it is exact.
    """

    total: int
    read: int = 0
    chosen: int = 0
    judged: int = 0
    failed: int = 0
    tokens: int = 0
    in_flight: int = 0
    short: int = 0  # groups with too few samples to be judged together
    example: str = ""  # why the first one failed

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Count what is judged inside as in flight."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def count(self, gradings: Sequence[Grading]) -> None:
        """Count gradings that are durable."""
        for grading in gradings:
            self.judged += len(grading.members)
            if grading.error is not None:
                self.failed += 1
                self.example = self.example or grading.error.message
            if grading.usage is not None:
                self.tokens += grading.usage.prompt_tokens + grading.usage.completion_tokens
