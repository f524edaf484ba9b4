"""MCP servers over HTTP, each a process: `with served("tests.toolserver", "good") as url`."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATIENCE_S = 60.0


@contextmanager
def served(module: str, *arguments: str) -> Iterator[str]:
    """The address of `python -m MODULE ARGUMENTS PORT`, once it takes connections there."""
    process, port = _started(module, arguments)
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def _started(module: str, arguments: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], int]:
    for _ in range(5):  # another process may take the port before this one does
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, str(port)], cwd=ROOT, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return process, port
            time.sleep(0.05)
        process.kill()
        process.wait()
    raise RuntimeError(f"{module} does not serve")
