"""The browsers of a pool.

They are started when needed, one at a time; retired when they are old, much used or large; and replaced when they die,
after a pause that grows with every failure in a row.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from windrow.envs.web.failures import BrowserGone, LeaseLost
from windrow.envs.web.launch import Chromium, connect, failures, launch, playwright
from windrow.envs.web.pool_settings import PoolSettings
from windrow.envs.web.pooled_browser import CLOSE_S, PooledBrowser
from windrow.errors import OutageError, UsageError

if TYPE_CHECKING:
    from playwright.async_api import Playwright

PAUSE_S, MAX_PAUSE_S = 0.25, 30.0  # before a start, after a browser has died
STARTS, GIVE_UP_S = 3, 30.0  # failed starts in a row, and the time without a browser, before a run is stopped
WEIGH_S, PING_S = 5.0, 30.0  # between two checks of a browser's memory, and between two pings
SPREAD = 4  # leases that a browser gets before the next one is started
CRASHES = 3  # of its pages, after which a browser is retired


class Fleet:
    """Starts browsers when leases need them, checks their memory and that they answer, and retires them."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self.members: list[PooledBrowser] = []
        self.counts = dict.fromkeys(("started", "died", "retired"), 0)
        self._failures = 0  # in a row: starts that failed, and browsers that died
        self._failing_since: float | None = None  # when no browser could be started
        self._driver: Playwright | None = None
        self._starting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def pick(self, reuse: str | None = None) -> PooledBrowser:
        """The browser for the next lease: one that keeps a context for it, the least busy, or a new one.

        Raises OutageError if none can be started.
        """
        while not self._closed:
            usable = self._usable(reuse)
            if usable is not None:
                return usable
            if self._starting is None:
                self._starting = self.spawn(self._start())
                self._starting.add_done_callback(self._start_over)
            # Cancelling one waiter must not cancel the start for the others.
            await asyncio.shield(self._starting)
        raise LeaseLost("the browsers of the run were closed")

    def worked(self) -> None:
        """A browser has made a context: earlier failures no longer count."""
        self._failures = 0

    def lost(self, member: PooledBrowser, why: str) -> None:
        """Give up a browser: its leases end, and its process is killed."""
        if member not in self.members:
            return
        self.members.remove(member)
        self.counts["died"] += 1
        self._failures += 1
        member.end(why)
        member.chromium.kill()
        self._leave(member)

    def retire_if_due(self, member: PooledBrowser) -> None:
        """A browser past its limits gets no new leases, and is closed when it has none left."""
        if member.retired is None:
            self._retire(member, self._past_limits(member))
        if member.retired is not None and not member.busy and member in self.members:
            self.members.remove(member)
            self._leave(member)

    async def look_after(self, member: PooledBrowser) -> None:
        """Check its memory and, less often, whether it answers."""
        now = time.monotonic()
        if now - member.weighed >= WEIGH_S:
            member.weighed = now
            self._judge_size(member, await asyncio.to_thread(member.chromium.memory_mb))
        if now - member.asked >= PING_S:
            member.asked = now
            self.spawn(self._ping(member))

    async def close(self) -> None:
        """End every browser; return when nothing of them is left."""
        self._closed = True
        if self._starting is not None:
            await asyncio.wait([self._starting])
        for member in tuple(self.members):
            self.members.remove(member)
            self._leave(member)
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._stop_driver()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in the background; it ends before the fleet is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _usable(self, reuse: str | None) -> PooledBrowser | None:
        """The browser to use; None if another is to be started."""
        for member in tuple(self.members):
            self.retire_if_due(member)
            if not member.chromium.browser.is_connected():
                self.lost(member, "died")
        usable = [member for member in self.members if member.retired is None]
        for member in usable:
            if reuse is not None and member.keeps(reuse):
                return member
        least = min(usable, key=lambda member: member.busy, default=None)
        if least is None or least.busy >= self.settings.contexts:
            return None
        more = len(usable) < self.settings.browsers and self._failing_since is None
        return None if least.busy >= SPREAD and more else least

    def _start_over(self, started: asyncio.Task[None]) -> None:
        self._starting = None
        if not started.cancelled():
            started.exception()  # raised in those who wait; marked as retrieved if nobody does

    async def _start(self) -> None:
        if self._failures:
            await asyncio.sleep(min(PAUSE_S * 2 ** (self._failures - 1), MAX_PAUSE_S))
        if self._closed:
            return
        try:
            if self._driver is None:
                self._driver = await playwright().async_playwright().start()
            chromium = await self._one_more(self._driver)
        except UsageError as problem:  # there is none to start
            raise OutageError(str(problem)) from None
        except BrowserGone as problem:
            if not self.members:  # it may be the driver that is dead
                await self._stop_driver()
            self._not_started(problem)
            return
        self._failing_since = None
        member = PooledBrowser(chromium)
        self.members.append(member)
        self.counts["started"] += 1
        chromium.browser.on("disconnected", lambda _: self.lost(member, "died"))

    def _not_started(self, problem: BrowserGone) -> None:
        """Count a failed start. The callers wait for the next one, until the outage has lasted too long."""
        now = time.monotonic()
        self._failures += 1
        self._failing_since = self._failing_since or now
        if self._failures >= STARTS and now - self._failing_since >= GIVE_UP_S:
            raise OutageError(f"no browser could be had for {now - self._failing_since:.0f} s: {problem}")

    async def _one_more(self, driver: Playwright) -> Chromium:
        urls = self.settings.urls
        if urls:
            return await connect(driver, urls[self.counts["started"] % len(urls)], self.settings)
        return await launch(driver, self.settings)

    async def _stop_driver(self) -> None:
        driver, self._driver = self._driver, None
        if driver is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await driver.stop()
        except Exception:  # it has died before, which Playwright reports in many ways
            pass

    def _past_limits(self, member: PooledBrowser) -> str | None:
        if member.uses >= self.settings.max_uses:
            return "uses"
        if member.crashes >= CRASHES:
            return "crashes"
        return "age" if time.monotonic() - member.born >= self.settings.max_age_s else None

    def _retire(self, member: PooledBrowser, why: str | None) -> None:
        if why is not None and member.retired is None:
            member.retired = why
            self.counts["retired"] += 1

    def _leave(self, member: PooledBrowser) -> None:
        """Close a browser while others work."""
        for _, pooled in member.kept:
            if pooled.proxy is not None:
                pooled.proxy.close()
        self.spawn(member.chromium.close(CLOSE_S))

    def _judge_size(self, member: PooledBrowser, size_mb: float | None) -> None:
        limit = self.settings.max_memory_mb
        if size_mb is not None and size_mb > 2 * limit:
            self.lost(member, f"took {size_mb:,.0f} MB (max_memory_mb: {limit})")
        elif size_mb is not None and size_mb > limit:
            self._retire(member, "memory")
            self.retire_if_due(member)

    async def _ping(self, member: PooledBrowser) -> None:
        try:
            async with asyncio.timeout(self.settings.start_timeout_s):
                session = await member.chromium.browser.new_browser_cdp_session()
                await session.send("Browser.getVersion")
                await session.detach()
        except failures():
            self.lost(member, "does not answer")
