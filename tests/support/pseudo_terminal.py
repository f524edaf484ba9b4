"""A command on a real pseudo-terminal, and the screen that a person in front of it would see.

Two screens in memory (pyte) are fed with what the command writes: one of the terminal's own width, and one so wide that
nothing wraps on it, on which a line is as long as it was written.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pyte

from tests.support.command_process import PATIENCE_S

LINES = 30
UNWRAPPED = 400
LEFT_OUT = ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES", "OPENAI_API_KEY")


class Terminal:
    """`windrow ARGUMENTS` on a terminal of `columns`; standard input and output may lead elsewhere."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        columns: int = 80,
        stdin: int | None = None,
        stdout: IO[bytes] | None = None,
        **variables: str,
    ) -> None:
        self.raw = b""
        self._screens = [_Screen(columns), _Screen(UNWRAPPED)]
        self._master, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
        usual = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
        command = [sys.executable, "-m", "windrow", *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=side if stdin is None else stdin,
            stdout=stdout or side,
            stderr=side,
            env={**usual, "TERM": "xterm-256color", **variables},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(side)

    @property
    def shown(self) -> list[str]:
        """What stands on the terminal, and what has scrolled out of it at the top."""
        return self._screens[0].text

    @property
    def written(self) -> list[str]:
        """The same on a terminal on which nothing wraps."""
        return self._screens[1].text

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Read on until `condition` holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self._read(), f"ended before {what}:\n{self._transcript()}"
            assert time.monotonic() < deadline, f"waited in vain for {what}:\n{self._transcript()}"

    def until_shown(self, text: str) -> None:
        self.until(lambda: any(text in line for line in self.shown), f"{text!r} was shown")

    def wait(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read():
            assert time.monotonic() < deadline, f"the command hangs:\n{self._transcript()}"
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)

    def _read(self) -> bool:
        """Whether there may be more to come."""
        ready, _, _ = select.select([self._master], [], [], 0.2)
        if not ready:
            return True
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # nobody holds the other side any more
            return False
        self.raw += data
        for screen in self._screens:
            screen.stream.feed(data)
        return bool(data)

    def _transcript(self) -> str:
        return "\n".join(self.shown)


class _Screen:
    def __init__(self, columns: int) -> None:
        self._screen = pyte.HistoryScreen(columns, LINES, history=10_000)
        self.stream = pyte.ByteStream(self._screen)

    @property
    def text(self) -> list[str]:
        columns = self._screen.columns
        gone = ["".join(line[n].data for n in range(columns)) for line in self._screen.history.top]
        lines = [line.rstrip() for line in (*gone, *self._screen.display)]
        while lines and not lines[-1]:
            lines.pop()
        return lines


def _take_terminal() -> None:
    """Make the terminal the one that sends Ctrl-C to this process."""
    fcntl.ioctl(2, termios.TIOCSCTTY, 0)
