"""Write docs/demo.svg: a real run of the demo on a pseudo-terminal, and what stands on the screen when it is over.

The commands are those of `make demo`; the numbers are whatever the model gave this time.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from itertools import groupby
from pathlib import Path

import pyte
from pyte.screens import Char
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS, LINES = 88, 60
PICTURE = Path(__file__).with_name("demo.svg")
EXAMPLES = Path(__file__).parents[1] / "examples"
COMMANDS = (
    "windrow collect examples/demo.jsonl --model local -k 4 \\\n"
    "    --temperature 0.8 --max-tokens 96 --out runs/demo",
    "windrow stats runs/demo",
)


def main() -> None:
    picture = Text()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(EXAMPLES, Path(folder) / "examples")
        for command in COMMANDS:
            picture.append("$ ", style="green").append(f"{command}\n", style="bold")
            picture.append(screen(command, folder)).append("\n")
    picture.rstrip()
    with open(os.devnull, "w") as nowhere:
        console = Console(
            width=COLUMNS, record=True, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        console.print(picture)
        svg = console.export_svg(title="windrow", unique_id="windrow-demo")
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.S)  # nothing is fetched to show it
    PICTURE.write_text(re.sub(r"[ \t]+$", "", svg, flags=re.M), encoding="utf-8")


def screen(command: str, folder: str) -> Text:
    """What the command leaves on a terminal."""
    terminal = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(terminal)
    master, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    usual = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")
    }
    process = subprocess.Popen(
        [sys.executable, "-m", *shlex.split(command.replace("\\\n", ""))],
        cwd=folder,
        stdin=side,
        stdout=side,
        stderr=side,
        env={**usual, "TERM": "xterm-256color"},
    )
    os.close(side)
    while data := _read(master):
        stream.feed(data)
    os.close(master)
    if process.wait() != 0:
        sys.exit(f"{command} ended with {process.returncode}:\n" + "\n".join(terminal.display))
    return _text(terminal)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # nobody holds the other side any more
        return b""


def _text(terminal: pyte.Screen) -> Text:
    lines = []
    for number in range(terminal.lines):
        cells = [terminal.buffer[number][column] for column in range(terminal.columns)]
        line = Text()
        for style, run in groupby(cells, _style):
            line.append("".join(cell.data for cell in run), style=style)
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1]:
        lines.pop()
    return Text("\n").join(lines).append("\n")


def _style(cell: Char) -> Style:
    return Style(color=_colour(cell.fg), bgcolor=_colour(cell.bg), bold=cell.bold, italic=cell.italics)


def _colour(name: str) -> str | None:
    """As rich calls what pyte found: a name, or six hex digits."""
    if name == "default":
        return None
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    return {"brown": "yellow"}.get(name, name.replace("bright", "bright_"))


if __name__ == "__main__":
    main()
