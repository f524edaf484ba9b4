"""Pools for the tests: small ones, closed again, and what is said of processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.command_process import PATIENCE_S
from windrow.envs.web.pool import BrowserPool
from windrow.envs.web.pool_settings import pool_settings
from windrow.util.reaper import descendants

USUAL = {
    "browsers": 1,
    "sandbox": False,
    "start_timeout_s": 120,
    "navigate_timeout_s": 120,
    "command_timeout_s": 120,
}
NEVER = "new Promise(() => 0)"
LONG_S = 300.0  # of a lease that is not to expire; nothing waits for it


@asynccontextmanager
async def pooled(**settings: Any) -> AsyncIterator[BrowserPool]:
    """A pool of one browser that needs no sandbox and has much time, unless the settings say otherwise."""
    pool = BrowserPool(pool_settings({**USUAL, **settings}))
    try:
        yield pool
    finally:
        await pool.close()


async def until(condition: Callable[[], object], what: str) -> None:
    """Return once it holds; the bound is for a machine that is much slower than this one."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.02)


def wait_until(condition: Callable[[], object], what: str) -> None:
    """The same, where no loop runs."""
    asyncio.run(until(condition, what))


def alive(pids: list[int]) -> list[int]:
    """Those of them that run; what has ended and is only not yet collected does not."""
    return [pid for pid in pids if _state(pid) not in ("", "Z", "X")]


def renderers(pid: int) -> list[int]:
    return [child for child in descendants(pid) if b"--type=renderer" in _read(child, "cmdline")]


def chromiums(pid: int) -> list[int]:
    """The browsers below a process: neither their supervisors nor their own children."""
    found = [(child, _read(child, "cmdline")) for child in descendants(pid)]
    return [child for child, said in found if b"--remote-debugging-pipe" in said and _is_browser(said)]


def _is_browser(command: bytes) -> bool:
    return b"--type=" not in command and b"reaper.py" not in command


def _state(pid: int) -> str:
    said = _read(pid, "stat").rpartition(b")")[2].split()
    return said[0].decode() if said else ""


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
