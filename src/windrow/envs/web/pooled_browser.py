"""A browser of the pool, and its contexts, each of which serves one lease at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from windrow.envs.web.document_script import Clipboard
from windrow.envs.web.failures import BrowserGone
from windrow.envs.web.launch import Chromium, failures
from windrow.envs.web.screenshots import Camera
from windrow.envs.web.socks_proxy import SocksProxy

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page

    from windrow.envs.web.lease import Lease

CLOSE_S = 10.0  # for a browser or a context to close politely


def expire(limit: asyncio.Timeout) -> None:
    """End a time limit now, unless it has just expired."""
    if not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time())


class PooledBrowser:
    """A browser with its leases and the contexts that it keeps for later ones."""

    def __init__(self, chromium: Chromium) -> None:
        self.chromium = chromium
        self.born = time.monotonic()
        self.uses = 0
        self.crashes = 0
        self.busy = 0  # leases, and contexts that are being made for one
        self.leases: set[Lease] = set()
        # For the next lease with that `reuse`; the oldest first.
        self.kept: list[tuple[str, PooledContext]] = []
        self.retired: str | None = None  # why it gets no new leases
        self.gone: BrowserGone | None = None  # the reason, once it is gone
        self._waiting: set[asyncio.Timeout] = set()
        self.weighed = self.asked = self.born

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """A time limit that ends early when the browser dies: some calls of Playwright would not end by themselves."""
        async with asyncio.timeout(seconds) as waiting:
            self._waiting.add(waiting)
            try:
                yield
            finally:
                self._waiting.discard(waiting)

    def end(self, why: str) -> None:
        """Mark it as gone, and end its leases and all waits for it."""
        self.gone = BrowserGone(f"the browser {self.chromium.where} {why}")
        for lease in self.leases:
            lease.end(self.gone)
        for waiting in self._waiting:
            expire(waiting)

    def take(self, reuse: str | None) -> PooledContext | None:
        """A kept context of an earlier lease with the same `reuse`, if there is one."""
        for at, (name, pooled) in enumerate(self.kept):
            if name == reuse:
                del self.kept[at]
                return pooled
        return None

    def keeps(self, reuse: str | None) -> bool:
        return any(name == reuse for name, _ in self.kept)


class PooledContext:
    """A context with its page and its proxy, which outlives a lease if it is kept for another."""

    def __init__(
        self,
        member: PooledBrowser,
        context: BrowserContext,
        page: Page,
        proxy: SocksProxy | None,
        clipboard: Clipboard,
    ) -> None:
        self.member = member
        self.context = context
        self.page = page
        self.proxy = proxy
        self.camera = Camera()
        self.clipboard = clipboard

    def show(self, page: Page) -> None:
        """Make `page` the one that remains for the next lease."""
        self.page = page

    async def sweep(self) -> bool:
        """Leave one page, and no cookies; False if that is not possible."""
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
        """Close it; False if the browser does not do so in time."""
        if self.proxy is not None:
            self.proxy.close()
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
