"""Progress for a person (standard error) or a program (`--json`, standard output)."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from windrow.collection import Collection
from windrow.engine.run import Progress
from windrow.records import Rollout, encode

MILESTONES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
REDRAW_S = 0.2


class Display:
    """On a terminal one line that is redrawn; elsewhere a line at each milestone of this call's work."""

    def __init__(
        self, collection: Collection, *, quiet: bool, json: bool, stream: TextIO | None = None
    ) -> None:
        self._collection = collection
        self._quiet = quiet
        self._json = json
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._started = time.monotonic()
        self._drawn_at = 0.0
        self._width = 0
        self._milestones = list(MILESTONES)

    def on_commit(self, rollout: Rollout) -> None:
        if self._json:
            sys.stdout.buffer.write(self._collection.prepared.redactor.line(encode(rollout)) + b"\n")
            sys.stdout.buffer.flush()

    def on_progress(self, progress: Progress) -> None:
        if self._quiet:
            return
        now = time.monotonic()
        share = progress.settled / progress.planned if progress.planned else 1.0
        reached = [milestone for milestone in self._milestones if share >= milestone]
        if self._live and (now - self._drawn_at >= REDRAW_S or share >= 1.0):
            self._drawn_at = now
            self._draw(self._line(progress, now))
        elif not self._live and reached:
            self._milestones = self._milestones[len(reached) :]
            print(f"{share:4.0%}  {self._line(progress, now)}", file=self._stream, flush=True)

    def say(self, text: str) -> None:
        """A message between the redrawn lines; shown also when quiet, as it answers what the user did."""
        self._clear()
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        if self._width:
            print(file=self._stream, flush=True)
            self._width = 0

    def _line(self, progress: Progress, now: float) -> str:
        seconds = max(now - self._started, 1e-9)
        rate = progress.settled / seconds
        parts = [f"{progress.settled:,}/{progress.planned:,}", f"{rate:,.1f}/s"]
        if progress.tokens:
            parts.append(f"{progress.tokens / seconds:,.0f} tok/s")
        if progress.rewards:
            parts.append(f"reward {progress.reward_sum / progress.rewards:.3f}")
        if progress.failed:
            parts.append(f"{progress.failed:,} failed attempts")
        parts.append(f"{progress.in_flight:,} running")
        left = progress.planned - progress.settled
        if left and rate:
            parts.append(f"{_duration(left / rate)} left")
        return "  ".join(parts)

    def _draw(self, line: str) -> None:
        self._clear()
        self._stream.write(line)
        self._stream.flush()
        self._width = len(line)

    def _clear(self) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._width = 0


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
