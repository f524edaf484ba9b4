"""Signals to a run: the first drains, a second cancels.

They are taken in the main thread, between two instructions of whatever runs there, and handed to the loop. Where user
code keeps the loop from taking them, it is named, and a further signal ends the run there and then.
"""

from __future__ import annotations

import asyncio
import atexit
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from windrow.engine.control import Control

EXIT = {signal.SIGINT: 130, signal.SIGTERM: 143}
SAME_SIGNAL_S = 1.0  # supervisors, and `timeout`, send SIGTERM to a process and then to its group
HELD_UP_S = 1.0  # for so long may the loop leave a signal lying


class Signals:
    def __init__(self, say: Callable[[str], None], *, what: str = "rollouts") -> None:
        """`what` is running when a signal comes."""
        self._what = what
        self.received: list[signal.Signals] = []
        self._say = say
        self._began = 0.0
        self._ending = False
        self._lying = 0  # signals that the loop has not taken yet
        self._lying_since = 0.0

    @property
    def exit_code(self) -> int | None:
        """What the command ends with when it was stopped: the first signal says."""
        return EXIT[self.received[0]] if self.received else None

    @contextmanager
    def watch(self, control: Control, running: Callable[[], int]) -> Iterator[None]:
        """Inside, signals stop and cancel the run; after it they do what they did before, or, where one has
        come, nothing. In the loop that it runs in."""
        loop = asyncio.get_running_loop()

        def taken(number: signal.Signals) -> None:
            self._lying -= 1
            if not self._ending:
                self._stop(number, control, running())

        def come(number: int, frame: FrameType | None) -> None:
            if self._lying == 0:
                self._lying_since = time.monotonic()
            elif time.monotonic() - self._lying_since > HELD_UP_S:
                self._insist(signal.Signals(number), frame)
            self._lying += 1
            loop.call_soon_threadsafe(taken, signal.Signals(number))

        before = {number: signal.getsignal(number) for number in EXIT}
        for number in EXIT:
            signal.signal(number, come)
        try:
            yield
        finally:
            for number, handler in before.items():
                # A command that was stopped is on its way out: one signal too many does not change how it ends.
                signal.signal(number, handler if not self.received else lambda *_: None)
            if self.received:
                atexit.register(_ignore)

    def _stop(self, number: signal.Signals, control: Control, running: int) -> None:
        again = bool(self.received)
        if again and number == signal.SIGTERM and time.monotonic() - self._began < SAME_SIGNAL_S:
            return
        self.received.append(number)
        if again:
            self._say("cancelling what is running; it is recorded as cancelled and run again next time")
            control.cancel()
        else:
            self._began = time.monotonic()
            self._say(
                f"stopping: {running} running {self._what} are finished first (Ctrl-C again cancels them)"
            )
            control.stop()

    def _insist(self, number: signal.Signals, frame: FrameType | None) -> None:
        location = _location_in_user_code(frame)
        self._say(
            f"ending: {location} holds up the run. What is recorded is safe; what was running is not recorded"
        )
        self.received.append(number)
        self._ending = True
        raise KeyboardInterrupt


def _ignore() -> None:
    """The interpreter, when it goes, gives signals back to the system, which would kill it; not ignored ones."""
    for number in EXIT:
        signal.signal(number, signal.SIG_IGN)


def _location_in_user_code(frame: FrameType | None) -> str:
    """File and line of the innermost frame that is neither ours nor the standard library's."""
    candidate = frame
    while candidate is not None:
        package = str(candidate.f_globals.get("__name__", "")).partition(".")[0]
        if package != "windrow" and package not in sys.stdlib_module_names:
            break
        candidate = candidate.f_back
    culprit = candidate or frame
    return f"{culprit.f_code.co_filename}:{culprit.f_lineno}" if culprit is not None else "something"
