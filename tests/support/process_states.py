"""Which processes there are, from /proc."""

from __future__ import annotations

from pathlib import Path

from tests.support.collect_helpers import until


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is more than a number that waits to be read by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """The children of all threads of a process."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def command_of(pid: int) -> str:
    """Its command line; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


async def gone(*pids: int) -> None:
    """Return once none of them runs."""
    await until(lambda: not any(map(is_running, pids)))
