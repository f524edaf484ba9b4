"""Progress for a person (standard error) and rollouts for a program (`--json`, standard output).

The JSON stream is one rollout per line, as rollouts.jsonl has it, with the scores that count folded in; nothing else is
ever written to standard output then.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from windrow.cli.output import write_error
from windrow.cli.progress_text import Frame, Speed, frame, percent, work_frame
from windrow.cli.streams import JsonLines, descriptor
from windrow.collecting.collection import Collection
from windrow.engine.progress import Progress
from windrow.records import Rollout, encode

if TYPE_CHECKING:
    from windrow.cli.live_display import Region

MILESTONES = (20, 40, 60, 80, 90, 95, 98, 99, 100)
SLOW_S = 2.0  # off a terminal, what takes longer than this is named


class Display:
    """On a terminal a live region; elsewhere a line at each milestone of this call's work; `quiet`: neither.

    Messages, warnings and errors are shown in each case, above the region where there is one.
    """

    def __init__(self, *, quiet: bool = False, json: bool = False) -> None:
        on_terminal = _is_terminal() and not (json and sys.stdout.isatty())
        self._quiet = quiet
        self._json = JsonLines() if json else None
        self._unread = False
        self._status: str | None = None
        self._collection: Collection | None = None
        self._speed = Speed()
        self._milestones = dict.fromkeys(("grading", "running"), 0)
        self._slow: threading.Timer | None = None
        self._region = self._open_region() if on_terminal and not quiet else None

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def status(self, text: str | None) -> None:
        """What is being done while nothing can be counted; None when it is over."""
        self._status = text
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
        if text is not None and self._region is None and not self._quiet:
            self._slow = threading.Timer(SLOW_S, self.say, [f"{text} …"])
            self._slow.daemon = True
            self._slow.start()

    def start(self, collection: Collection) -> None:
        """From here on the collection's progress is shown."""
        self.status(None)
        self._collection = collection

    @property
    def wants_rollouts(self) -> bool:
        return self._json is not None

    @property
    def wants_progress(self) -> bool:
        """Whether `on_progress` is to be called; a live region reads the collection's progress by itself."""
        return not self._quiet and self._region is None

    def on_commit(self, rollout: Rollout) -> None:
        if self._json is None or self._collection is None or self._unread:
            return
        try:
            self._json.write(self._collection.resolved.redactor.line(encode(rollout)) + b"\n")
        except BrokenPipeError:
            self._unread = True
            self.say("nobody reads standard output any more; the run goes on without it")

    def on_progress(self, progress: Progress) -> None:
        """Print a line where a milestone is reached."""
        if progress.phase == "serving":
            self.status(_line(frame(progress, self._speed)) if progress.waiting_for else None)
            return
        if progress.phase == "grading":
            share = percent(progress.graded, progress.to_grade)
        else:
            share = percent(progress.settled, progress.planned)
        if self._passes_milestone(progress.phase, share):
            self.say(_line(frame(progress, self._speed)))

    def note(self, text: str) -> None:
        """Something to know; not shown when quiet."""
        if not self._quiet:
            self.say(text)

    def say(self, text: str) -> None:
        """Something that is shown also when quiet: a warning, or an answer to what the user did."""
        if self._region is not None:
            self._region.say(text)
        else:
            write_error(text)

    def close(self) -> None:
        self.status(None)
        if self._region is not None:
            region, self._region = self._region, None
            region.close(last=self._last_frame())
        if self._json is not None:
            self._json.close()
            self._json = None

    def _open_region(self) -> Region | None:
        from windrow.cli.live_display import Region

        try:
            return Region(self._frame)
        except OSError:
            return None  # no room for a temporary file: plain lines need none

    def _frame(self) -> Frame:
        if self._collection is None or self._status is not None:
            return Frame(status=self._status or "")
        return frame(self._collection.progress, self._speed)

    def _last_frame(self) -> Frame | None:
        """What is left standing: nothing, if nothing was run."""
        if self._collection is None or not self._collection.progress.attempts:
            return None
        return work_frame(self._collection.progress, self._speed)

    def _passes_milestone(self, phase: str, share: int) -> bool:
        """Whether the next milestone is reached; several at once are one."""
        passed = sum(share >= milestone for milestone in MILESTONES)
        if passed <= self._milestones.get(phase, 0):
            return False
        self._milestones[phase] = passed
        return True


def _line(now: Frame) -> str:
    """A frame on one line."""
    if now.status is not None:
        return now.status
    lists = [f"{row[0]} {', '.join(row[1:])}" for row in (now.failures, now.left) if row]
    return "  ".join((now.counts.strip(), *now.figures, *lists))


def _is_terminal() -> bool:
    """Whether standard error is a terminal on which a cursor can be moved."""
    if descriptor(sys.stderr) is None or not sys.stderr.isatty():
        return False
    return os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")
