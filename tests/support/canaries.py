"""Canaries: a module, a command, a server and a variable that tell when somebody imports, starts, reaches or sends them.

with Canaries(tmp_path) as canaries:
    ...
    assert canaries.fired() == []
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

MODULE, VARIABLE = "windrow_canary", "WINDROW_CANARY"
SECRET = "canary-4f1d0c77e2b9"
_SOURCE = "import pathlib\n(pathlib.Path(__file__).parent / 'imported').touch()\n"


class Canaries:
    """All of them, under one directory. `fired` says which have been touched so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "canaries"
        self.folder.mkdir()
        (self.folder / f"{MODULE}.py").write_text(_SOURCE)
        self.command = ["/bin/sh", "-c", f": > {self.folder}/started"]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"http://{self.host}/mcp"
        self.name = f"{MODULE}:Thing"  # there is no such thing, but the module is imported to find that out
        self._received: list[bytes] = []
        self._heard = threading.Condition()
        self._patches = [
            patch.dict(os.environ, {VARIABLE: SECRET}),
            patch.object(sys, "path", [str(self.folder), *sys.path]),
        ]

    def __enter__(self) -> Canaries:
        for patched in self._patches:
            patched.start()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._touch(b"end")
        self._listening.join()
        self._listener.close()
        for patched in self._patches:
            patched.stop()
        sys.modules.pop(MODULE, None)

    def fired(self) -> list[str]:
        """What has been touched. Connections are taken in their order: once ours is, so are those before it."""
        mark = os.urandom(8)
        self._touch(mark)
        with self._heard:
            self._heard.wait_for(lambda: mark in self._received)
            others = [data for data in self._received if len(data) != len(mark)]
        found = [name for name in ("imported", "started") if (self.folder / name).exists()]
        if MODULE in sys.modules and "imported" not in found:
            found.append("imported")
        found += ["reached"] * bool(others)
        return found + ["sent"] * any(SECRET.encode() in data for data in others)

    def _touch(self, data: bytes) -> None:
        with socket.create_connection(self._listener.getsockname()) as own:
            own.sendall(data)

    def _listen(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                data = connection.recv(65536)
            with self._heard:
                self._received.append(data)
                self._heard.notify_all()
            if data == b"end":
                return
