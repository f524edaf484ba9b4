"""The clock of the loop, put forward: what takes too long does so at once, and nothing else does.

    async def agent(session):
        await session.complete()
        await for_ever()                    # with episode_timeout=LIMIT_S

A limit that a test waits out must be short, and whatever is to be done before it is over then fails on a slow machine. With
this limits are long, and are over when the test says so. Only timers of this loop are meant: a test that plays several
episodes at a time puts it forward for all of them.
"""

from __future__ import annotations

import asyncio
from typing import Any

LIMIT_S = 100.0  # longer than any machine is slow, and shorter than a model call may usually take
PASSED_S = 2 * LIMIT_S


def time_passes(seconds: float = PASSED_S) -> None:
    """Every timer of the running loop that is due by then is due now."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]


async def for_ever(*_: Any) -> None:
    """What takes longer than any limit."""
    time_passes()
    await asyncio.Event().wait()
