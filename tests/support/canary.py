"""A canary: code, a command, an address and a variable that nothing may touch, and what has become of them."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MODULE = "canary_module"
VARIABLE = "WINDROW_CANARY"
WORLD, SCORE, USER = (f"{MODULE}:{name}" for name in ("World", "score", "user"))
SECRET = "the-canary-sings-c0ffee"

REFUSED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

_SOURCE = """
from pathlib import Path
from windrow import Env

with Path(__file__).with_name("imported").open("a") as file:
    file.write("x")

class World(Env):
    @classmethod
    def aggregate(cls, rollouts): return {"canary": 1.0}

def score(task, reply): return 1.0
def user(task, messages): return None
def policy(request): return "x"
"""


class Canary:
    """Lives in `folder`, which is importable while it does."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}/v1"
        self.command = ["/bin/sh", "-c", f"echo ran > {folder / 'ran'}"]
        self.connections: list[bytes] = []

    def sung(self) -> list[str]:
        """What has been touched since the last time."""
        sys.modules.pop(MODULE, None)
        files = [name for name in ("imported", "ran") if (self.folder / name).exists()]
        for name in files:
            (self.folder / name).unlink()
        reached = [f"reached with {data!r}" for data in self.connections]
        self.connections.clear()
        return files + reached

    def values(self) -> list[Any]:
        """What an enemy writes into a file in the place of something else."""
        return [
            WORLD,
            SCORE,
            f"scripted:{MODULE}:policy",
            f"${{{VARIABLE}}}",
            self.url,
            self.command,
            " ".join(self.command),
            self.model,
            {"name": WORLD, "settings": {}},
            {"name": SCORE, "weight": 1.0, "settings": {}},
            self.tools,
            self.servers,
        ]

    @property
    def model(self) -> dict[str, Any]:
        return {
            "model": "m",
            "base_url": self.url,
            "api_key_env": VARIABLE,
            "call_retries": 0,
            "max_outage_s": 0,
        }

    @property
    def tools(self) -> list[Any]:
        return [{"mcp": {"command": self.command}, "start_timeout_s": 2}]

    @property
    def servers(self) -> dict[str, Any]:
        """A row's `mcp_config`."""
        return {
            "local": {"command": self.command[0], "args": self.command[1:]},
            "remote": {"url": f"{self.url}/${{{VARIABLE}}}"},
        }


@contextmanager
def canary(folder: Path) -> Iterator[Canary]:
    (folder / f"{MODULE}.py").write_text(_SOURCE)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        bird = Canary(folder, listening.getsockname()[1])

        def listen() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(1)
                    try:
                        bird.connections.append(connection.recv(4096))
                        connection.sendall(REFUSED)
                    except OSError:
                        bird.connections.append(b"")

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        sys.path.insert(0, str(folder))
        os.environ[VARIABLE] = SECRET
        try:
            yield bird
        finally:
            del os.environ[VARIABLE]
            sys.path.remove(str(folder))
            sys.modules.pop(MODULE, None)
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)
