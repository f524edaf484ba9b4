"""MCP servers over HTTP, each a process: `with served("tests.support.mcp_server", "good") as url`."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from windrow.services.ports import free_port

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


@contextmanager
def served(module: str, *arguments: str) -> Iterator[str]:
    """The address of `python -m MODULE ARGUMENTS PORT`, once it takes connections there."""
    held = free_port()  # while the server comes up, no other is given it
    command = [sys.executable, "-m", module, *arguments, str(held.number)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not _listens(held.number):
            assert process.poll() is None, f"{module} ended"
            assert time.monotonic() < deadline, f"{module} does not serve"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{held.number}/mcp"
    finally:
        process.kill()
        process.wait()
        held.release()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
