"""The live region at the foot of a terminal, redrawn in place; everything else that is written scrolls above it.

This module imports rich, so it is imported only where there is a terminal.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterable

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from windrow.cli.output import shown, visible
from windrow.cli.progress_text import Frame
from windrow.cli.streams import Capture

REDRAW_S = 0.2
MARGIN = 2  # room for the ^C that a terminal echoes at the end of the last line
MIN_BAR = 6
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
STYLES = ("", "red", "dim")  # of a frame's rows


class Region:
    """Shows what `frame` gives, five times a second, from a thread of its own: also while the program is busy.

    A terminal that goes away takes the display with it, never the run.
    """

    def __init__(self, frame: Callable[[], Frame]) -> None:
        """Raises OSError where there is no room for a temporary file."""
        self._frame = frame
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._spinner = Spinner("line")
        streams = [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]
        self._tty = os.fdopen(
            os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding, errors="backslashreplace"
        )
        self._capture = Capture(streams)
        self._console = Console(file=self._tty, markup=False, highlight=False, emoji=False)
        self._live = Live(
            console=self._console,
            get_renderable=lambda: _Picture(self._frame(), self._spinner),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._fit()
        self._live.start()
        self._thread = threading.Thread(target=self._redraw, name="windrow-display", daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """A message above the region."""
        with self._lock, contextlib.suppress(OSError):
            self._print(self._capture.lines())
            self._print(shown(text))

    def close(self, *, last: Frame | None) -> None:
        """Take the region away, leave a last frame standing in its place, and give the streams back."""
        self._ended.set()
        self._thread.join()
        with self._lock, contextlib.suppress(OSError):
            self._live.stop()
        rest = self._capture.close()
        with self._lock, contextlib.suppress(OSError):
            self._print(rest)
            if last is not None:
                self._console.print(_Picture(last, self._spinner))
            self._tty.close()

    def _redraw(self) -> None:
        while not self._ended.wait(REDRAW_S):
            with self._lock, contextlib.suppress(OSError):
                self._fit()
                self._print(self._capture.lines())
                self._live.refresh()

    def _fit(self) -> None:
        """Follow the size of the terminal, which rich would look for on the streams that are captured."""
        try:
            width, height = os.get_terminal_size(self._tty.fileno())
        except OSError:
            width, height = 0, 0
        usual = shutil.get_terminal_size()
        self._console.size = (width or usual.columns, height or usual.lines)

    def _print(self, text: str) -> None:
        """Print lines: of ours, or of whatever else writes to the streams, with its colours."""
        if text:
            self._console.print(Text.from_ansi(_coloured(text.removesuffix("\n"))), soft_wrap=True)


class _Picture:
    """A frame, laid out for the width it is given."""

    def __init__(self, frame: Frame, spinner: Spinner) -> None:
        self._frame = frame
        self._spinner = spinner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(options.max_width - MARGIN, 1)
        if self._frame.status is not None:
            self._spinner.update(text=Text(_cut(visible(self._frame.status), room - 2)))
            yield self._spinner
            return
        yield self._bar(room)
        for row, style in zip(self._frame.rows, STYLES, strict=False):
            for line in pack(map(visible, row), room):
                yield Text(line, style=style, no_wrap=True, overflow="crop")

    def _bar(self, room: int) -> Table | Text:
        label = _cut(self._frame.counts, room)
        width = room - cell_len(label) - 1
        if width < MIN_BAR:
            return Text(label, no_wrap=True)
        bar = ProgressBar(total=max(self._frame.planned, 1), completed=self._frame.settled, width=width)
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_row(bar, Text(label, no_wrap=True))
        return row


def _coloured(text: str) -> str:
    """`text` with its colours, and of lines that were written over each other the last; all else is made visible."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    parts = _COLOUR.split("\n".join(lines))
    return "".join(part if number % 2 else visible(part) for number, part in enumerate(parts))


def pack(parts: Iterable[str], room: int) -> list[str]:
    """The parts, two blanks apart, on as few lines as hold them; one that is wider than a line is cut."""
    lines: list[str] = []
    for part in parts:
        part = _cut(part, room)
        if lines and cell_len(lines[-1]) + 2 + cell_len(part) <= room:
            lines[-1] += "  " + part
        else:
            lines.append(part)
    return lines


def _cut(text: str, room: int) -> str:
    """`text` in at most `room` cells. Its end stays, as the number stands there; the middle gives way."""
    if cell_len(text) <= room:
        return text
    tail = text[-min(8, room // 3) :] if room >= 6 else ""
    return (set_cell_size(text, max(room - cell_len(tail) - 2, 0)).rstrip() + ".." + tail)[:room]
