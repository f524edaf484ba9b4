"""The block list: one JSON line for each wall that a site has shown.

    {"domain": …, "url": …, "blocked_at": "2026-01-31T12:00:00.5", "task_id": …, "screenshot_path": a file or null}

The time is local and has no zone: some readers take no other. `--blocklist` reads the same lines.

Several episodes, workers and runs may share a file: lines are appended whole, under a lock.
"""

from __future__ import annotations

import fcntl
import time
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from windrow.errors import StoreError
from windrow.records import Json, Task


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the list."""

    domain: str
    url: str
    blocked_at: str
    task_id: Json = None
    screenshot_path: str | None = None


def domain_of(url: str) -> str:
    """The host without `www.`, in lower case; empty if there is none."""
    host = (urlsplit(url if "//" in url else f"//{url}").hostname or "").rstrip(".")
    return host.removeprefix("www.")


def append(path: Path, url: str, *, task: Task, screenshot: str | None, at: float | None = None) -> None:
    """Add a line: `url` was behind a wall at this time (now), when this task was tried. The task goes by the id of its
    row, if that has one. The same line is not added twice.
    """
    written = msgspec.json.encode(
        Blocked(
            domain=domain_of(url),
            url=url,
            blocked_at=datetime.fromtimestamp(time.time() if at is None else at).isoformat(),
            task_id=task.get("task_id", task.key),
            screenshot_path=screenshot,
        )
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                file.seek(0)
                if at is None or written not in map(bytes.rstrip, file):
                    file.write(written + b"\n")
                    file.flush()
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # closing alone leaves it to what an env has forked
    except OSError as problem:
        raise StoreError(f"the block list {path} cannot be written: {problem}") from None
