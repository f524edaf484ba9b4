"""The program between a session and the MCP server that was started for it: when either ends, everything of the server ends.

It runs in a bare interpreter (see `windrow.util.reaper`), with these arguments:
    OWNER LENGTH
OWNER is the collector's process id. Standard input begins with an order of LENGTH bytes, whose parts end with NUL: the working
directory or nothing, the number of words of the command, the words, then NAME=VALUE for each variable. The environment of a
process is its user's alone to read, its arguments are not; so no secret is an argument. After the order, the standard streams
are the server's. When the server or the collector ends, or at SIGTERM, every process that the server has started is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from windrow.util.reaper import Reaper, WatchedProcess

STREAMS = (0, 1, 2)
NOT_STARTED = 127


def main(owner_pid: int, length: int) -> int:
    owner = WatchedProcess(owner_pid)
    if owner.ended or os.getppid() != owner_pid:
        return NOT_STARTED
    reaper = Reaper(stop_signals=(signal.SIGTERM,), stop_with=(owner,))
    try:
        cwd, command, environment = read_order(length)
        reaper.start(command, cwd=cwd, env=environment, start_new_session=True)
    except (OSError, subprocess.SubprocessError) as problem:
        os.write(2, f"cannot be started: {problem}\n".encode(errors="replace"))
        return NOT_STARTED
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in STREAMS:  # otherwise neither side would see that the other has closed its end
        os.dup2(nowhere, stream)
    return abs(reaper.run() or 0)


def read_order(length: int) -> tuple[str | None, list[str], dict[str, str]]:
    """Read the order and not a byte more: what follows is for the server."""
    order = b""
    while len(order) < length:
        chunk = os.read(0, length - len(order))
        if not chunk:
            raise OSError("the session has ended")
        order += chunk
    cwd, words, *parts = map(os.fsdecode, order.split(b"\0")[:-1])
    variables = (part.partition("=") for part in parts[int(words) :])
    return cwd or None, parts[: int(words)], {name: value for name, _, value in variables}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
