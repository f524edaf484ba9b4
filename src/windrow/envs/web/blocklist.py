"""The block list: sites that have shown a wall, one JSON line each time, as WebGym keeps them.

    {"domain": …, "url": …, "blocked_at": seconds, "task_id": …, "screenshot_path": blob or null}

Several episodes, workers and runs may share a file: lines are appended whole, under a lock.
"""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from windrow.errors import StoreError


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the list."""

    domain: str
    url: str
    blocked_at: float
    task_id: str | None = None
    screenshot_path: str | None = None


def domain_of(url: str) -> str:
    """The host without `www.`, in small letters; empty where there is none."""
    host = (urlsplit(url if "//" in url else f"//{url}").hostname or "").rstrip(".")
    return host.removeprefix("www.")


def append(path: Path, url: str, *, task: str | None, screenshot: str | None) -> None:
    """Write down that `url` is behind a wall."""
    line = Blocked(
        domain=domain_of(url), url=url, blocked_at=time.time(), task_id=task, screenshot_path=screenshot
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(msgspec.json.encode(line) + b"\n")
    except OSError as problem:
        raise StoreError(f"the block list {path} cannot be written: {problem}") from None
