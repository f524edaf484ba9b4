"""Limits how many commands of each stage run at a time, so that slow pages do not starve the quick ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from windrow.envs.web.failures import LeaseLost
from windrow.envs.web.pool_settings import PoolSettings

NAVIGATE = "navigate"


class CommandLimits:
    def __init__(self, settings: PoolSettings) -> None:
        self._navigations = asyncio.Semaphore(settings.navigations)
        self._commands = asyncio.Semaphore(settings.commands)

    @asynccontextmanager
    async def turn(self, stage: str, deadline: float) -> AsyncIterator[None]:
        """Wait, in order, for a turn of the stage, and hold it; LeaseLost if there is none by `deadline`."""
        semaphore = self._navigations if stage == NAVIGATE else self._commands
        if semaphore.locked():
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await semaphore.acquire()
            except TimeoutError:
                raise LeaseLost(f"the lease expired while a command waited for its turn ({stage})") from None
        else:
            await semaphore.acquire()
        try:
            yield
        finally:
            semaphore.release()
