"""A browser of the pool, and the places in it: contexts, each for one lease at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from windrow.envs.web.failures import BrowserGone
from windrow.envs.web.launch import Chromium, failures
from windrow.envs.web.screenshots import Camera
from windrow.envs.web.socks_proxy import SocksProxy

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page

    from windrow.envs.web.lease import Lease

CLOSE_S = 10.0  # for a browser or a context to close politely


def expire(limit: asyncio.Timeout) -> None:
    """Let a time limit end now, unless it just has."""
    if not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time())


class Member:
    """A browser, and what it is busy with."""

    def __init__(self, chromium: Chromium) -> None:
        self.chromium = chromium
        self.born = time.monotonic()
        self.uses = 0
        self.crashes = 0
        self.busy = 0  # leases, and contexts that are being made for one
        self.leases: set[Lease] = set()
        self.kept: list[tuple[str, Place]] = []  # for the next lease with that `reuse`; the oldest first
        self.retired: str | None = None  # why it gets no new leases
        self.gone: BrowserGone | None = None  # once it is
        self._waiting: set[asyncio.Timeout] = set()
        self.weighed = self.asked = self.born

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """A time limit that ends early when the browser dies: not every call of Playwright then ends by itself."""
        async with asyncio.timeout(seconds) as waiting:
            self._waiting.add(waiting)
            try:
                yield
            finally:
                self._waiting.discard(waiting)

    def end(self, why: str) -> None:
        """Tell all who have to do with it."""
        self.gone = BrowserGone(f"the browser {self.chromium.where} {why}")
        for lease in self.leases:
            lease.end(self.gone)
        for waiting in self._waiting:
            expire(waiting)

    def take(self, reuse: str | None) -> Place | None:
        """A context that an earlier lease has left for this one."""
        for at, (name, place) in enumerate(self.kept):
            if name == reuse:
                del self.kept[at]
                return place
        return None

    def keeps(self, reuse: str | None) -> bool:
        return any(name == reuse for name, _ in self.kept)


class Place:
    """A context with its page, before, during and between leases."""

    def __init__(self, member: Member, context: BrowserContext, page: Page, gate: SocksProxy | None) -> None:
        self.member = member
        self.context = context
        self.page = page
        self.gate = gate
        self.camera = Camera()

    async def sweep(self) -> bool:
        """Leave one page, and no cookies; False where that cannot be done."""
        try:
            async with self.member.within(CLOSE_S):
                for page in self.context.pages:
                    if page is not self.page:
                        await page.close()
                await self.context.clear_cookies()
        except failures():
            return False
        return not self.page.is_closed()

    async def close(self) -> bool:
        """Nothing of it is left; False where the browser does not close it in time."""
        if self.gate is not None:
            self.gate.close()
        if self.member.gone is not None:
            return True
        try:
            async with self.member.within(CLOSE_S):
                await self.context.close()
        except TimeoutError:
            return self.member.gone is not None
        except failures():
            pass  # it is gone already
        return True
