"""Stages: how many commands of a kind run at a time, so that slow pages do not starve the quick ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from windrow.envs.web.failures import LeaseLost
from windrow.envs.web.pool_settings import PoolSettings

NAVIGATE = "navigate"


class Stages:
    def __init__(self, settings: PoolSettings) -> None:
        self._navigations = asyncio.Semaphore(settings.navigations)
        self._commands = asyncio.Semaphore(settings.commands)

    @asynccontextmanager
    async def turn(self, stage: str, deadline: float) -> AsyncIterator[None]:
        """Hold one of the stage's places, in the order of asking; LeaseLost where none is free by `deadline`."""
        places = self._navigations if stage == NAVIGATE else self._commands
        if places.locked():
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await places.acquire()
            except TimeoutError:
                raise LeaseLost(f"the lease expired while a command waited for its turn ({stage})") from None
        else:
            await places.acquire()
        try:
            yield
        finally:
            places.release()
