"""The block list: one JSON line for each wall that a site has shown.

    {"domain": …, "url": …, "blocked_at": "2026-01-31T12:00:00.5", "task_id": …, "screenshot_path": blob or null}

The time is local and has no zone: some readers take no other. `--blocklist` reads the same lines.

Several episodes, workers and runs may share a file: lines are appended whole, under a lock.
"""

from __future__ import annotations

import fcntl
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from windrow.errors import StoreError


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the list."""

    domain: str
    url: str
    blocked_at: str
    task_id: str | None = None
    screenshot_path: str | None = None


def domain_of(url: str) -> str:
    """The host without `www.`, in lower case; empty if there is none."""
    host = (urlsplit(url if "//" in url else f"//{url}").hostname or "").rstrip(".")
    return host.removeprefix("www.")


def append(path: Path, url: str, *, task: str | None, screenshot: str | None) -> None:
    """Add a line: `url` is behind a wall."""
    line = Blocked(
        domain=domain_of(url),
        url=url,
        blocked_at=datetime.now().isoformat(),
        task_id=task,
        screenshot_path=screenshot,
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                file.write(msgspec.json.encode(line) + b"\n")
                file.flush()
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # closing alone leaves it to what an env has forked
    except OSError as problem:
        raise StoreError(f"the block list {path} cannot be written: {problem}") from None
