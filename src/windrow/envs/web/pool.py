"""The browser pool: few Chromium processes, many contexts, each leased to one episode.

Capacity is back-pressure: who finds none waits, in order. Browsers are started when they are needed, one at a time;
contexts a few at a time. A browser that is old, much used or large gets no new leases and is closed with its last one; one
that died is replaced after a pause that grows with every start that fails. What is lost with it is told to its leases as
BrowserGone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from windrow.envs.web.failures import BrowserGone, LeaseLost
from windrow.envs.web.gate import Gate
from windrow.envs.web.guard import Guard, context_options
from windrow.envs.web.launch import Chromium, connect, is_here, launch, playwright
from windrow.envs.web.lease import Lease
from windrow.envs.web.settings import PoolSettings, pool_settings
from windrow.envs.web.stages import Stages
from windrow.errors import WindrowError

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page, Playwright

LOOK_S = 1.0  # between two looks at what has expired or grown
CLOSE_S = 10.0  # for a browser or a context to close politely
PAUSE_S, MAX_PAUSE_S = 0.25, 30.0  # before a browser is started after one that died
TRIES = 3  # at beginning a lease
SPREAD = 4  # leases that a browser gets before the next one is started


class Member:
    """A browser of the pool, and what it is busy with."""

    def __init__(self, chromium: Chromium) -> None:
        self.chromium = chromium
        self.born = time.monotonic()
        self.uses = 0
        self.busy = 0  # leases, and contexts that are being made for one
        self.kept: dict[str, list[Kept]] = {}  # contexts that the next lease with that `reuse` takes over
        self.retired: str | None = None  # why it gets no new leases
        self.leases: set[Lease] = set()

    @property
    def contexts(self) -> int:
        return self.busy + sum(len(kept) for kept in self.kept.values())


class Kept:
    """A context between two leases."""

    def __init__(self, context: BrowserContext, page: Page, gate: Gate | None) -> None:
        self.context = context
        self.page = page
        self.gate = gate


class BrowserPool:
    """Made by `browsers`; `lease` is what it is for."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self.guard = Guard(settings.allow)
        self.held: dict[str, Lease] = {}
        self.counts = dict.fromkeys(("started", "died", "retired", "leases", "expired", "crashed_pages"), 0)
        self._members: list[Member] = []
        self._stages = Stages(settings)
        self._capacity = asyncio.Semaphore(settings.browsers * settings.contexts)
        self._starts = asyncio.Semaphore(settings.starts)
        self._launching = asyncio.Lock()
        self._failures = 0  # starts and deaths since a browser last gave a context
        self._started = 0
        self._driver: Playwright | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    @asynccontextmanager
    async def lease(
        self, *, seconds: float, context: Mapping[str, Any] | None = None, reuse: str | None = None
    ) -> AsyncIterator[Lease]:
        """A context for `seconds`, with one blank page; waits for capacity. `context` are Playwright's options.

        Under the same `reuse`, an earlier lease's context and page may come back as they were left, for sites that
        start afresh on their own page; only its cookies are gone.
        """
        asked = time.monotonic()
        async with self._capacity:
            lease, member = await self._begin_somewhere(seconds, dict(context or {}), reuse)
            lease.queued_s = time.monotonic() - asked
            try:
                yield lease
            finally:
                await self._finish(lease, member, reuse)

    async def close(self) -> None:
        """End every lease and every browser; none can be had any more."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
        for lease in tuple(self.held.values()):
            lease.end(LeaseLost("the browsers of the run were closed"))
        self.held.clear()
        members, self._members = self._members, []
        await asyncio.gather(*(member.chromium.close(CLOSE_S) for member in members), *self._leaving)
        await self._stop_driver()

    def memory_mb(self) -> float:
        """Of all browsers that run here."""
        return sum(member.chromium.memory_mb() or 0.0 for member in self._members)

    # ── a lease's beginning and end

    async def _begin_somewhere(
        self, seconds: float, wanted: dict[str, Any], reuse: str | None
    ) -> tuple[Lease, Member]:
        """A browser that turns out to be dead is no reason to fail an episode that has not begun."""
        for _ in range(TRIES - 1):
            try:
                return await self._begin(seconds, wanted, reuse)
            except BrowserGone:
                continue
        return await self._begin(seconds, wanted, reuse)

    async def _begin(self, seconds: float, wanted: dict[str, Any], reuse: str | None) -> tuple[Lease, Member]:
        member = await self._member()
        member.busy += 1
        member.uses += 1
        try:
            kept = member.kept.get(reuse, []) if reuse is not None else []
            place = kept.pop() if kept else await self._fresh(member, wanted)
        except BaseException:
            member.busy -= 1
            self._retire_if_due(member)
            raise
        lease = Lease(
            place.context,
            place.page,
            settings=self.settings,
            stages=self._stages,
            guard=self.guard,
            gate=place.gate,
            ledger=self.held,
            seconds=seconds,
            where=member.chromium.where,
        )
        self.held[lease.token] = lease
        member.leases.add(lease)
        self.counts["leases"] += 1
        return lease, member

    async def _fresh(self, member: Member, wanted: dict[str, Any]) -> Kept:
        """A new context, a few at a time: many at once take longer than their time limits."""
        async with self._starts:
            gate = self._gate(member)
            try:
                async with asyncio.timeout(self.settings.start_timeout_s):
                    proxy = await gate.start() if gate is not None else None
                    context = await member.chromium.browser.new_context(**context_options(proxy, wanted))
                    context.set_default_timeout(self.settings.command_timeout_s * 1000)
                    context.set_default_navigation_timeout(self.settings.navigate_timeout_s * 1000)
                    page = await context.new_page()
            except (playwright().Error, TimeoutError) as problem:
                if gate is not None:
                    gate.close()
                self._lost(member, "gave no context" if isinstance(problem, TimeoutError) else "died")
                raise BrowserGone(f"the browser {member.chromium.where} gave no context: {problem}") from None
            self._failures = 0
            return Kept(context, page, gate)

    def _gate(self, member: Member) -> Gate | None:
        """None where everything is allowed, or where a browser elsewhere could not reach it."""
        urls = self.settings.urls
        if self.guard.open or (urls and not all(is_here(url) for url in urls)):
            return None
        return Gate(self.guard, max_bytes=self.settings.max_traffic_mb << 20)

    async def _finish(self, lease: Lease, member: Member, reuse: str | None) -> None:
        """Give it back: nothing of an episode is left, unless it is to be used again."""
        self.held.pop(lease.token, None)
        member.leases.discard(lease)
        self.counts["crashed_pages"] += lease.crashed
        clean = reuse is not None and lease.lost is None and not lease.crashed and member.retired is None
        lease.end(LeaseLost("the lease of a browser was given back, and can do nothing any more"))
        try:
            if not (clean and reuse is not None and await self._keep(lease, member, reuse)):
                await self._close_context(lease, member)
        finally:
            member.busy -= 1
            self._retire_if_due(member)

    async def _keep(self, lease: Lease, member: Member, reuse: str) -> bool:
        page = lease.current
        if page.is_closed() or member not in self._members:
            return False
        lease.leave()
        try:
            async with asyncio.timeout(CLOSE_S):
                for other in lease.context.pages:
                    if other is not page:
                        await other.close()
                await lease.context.clear_cookies()
        except (playwright().Error, TimeoutError):
            return False
        member.kept.setdefault(reuse, []).append(Kept(lease.context, page, lease.gate))
        return True

    async def _close_context(self, lease: Lease, member: Member) -> None:
        if lease.gate is not None:
            lease.gate.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await lease.context.close()
        except TimeoutError:
            self._lost(member, "does not close a context")
        except playwright().Error:
            pass  # it is gone already

    # ── browsers

    async def _member(self) -> Member:
        """The browser that the next lease is in: the one with fewest, or a new one."""
        while True:
            if self._closed:
                raise LeaseLost("the browsers of the run were closed")
            found = self._least_busy()
            if found is not None:
                return found
            async with self._launching:
                if self._least_busy() is None:
                    await self._start()

    def _least_busy(self) -> Member | None:
        """None where a browser is to be started."""
        for member in tuple(self._members):
            self._retire_if_due(member)
            if not member.chromium.browser.is_connected():
                self._lost(member, "died")
        usable = [member for member in self._members if member.retired is None]
        least = min(usable, key=lambda member: member.busy, default=None)
        if least is None or least.busy >= self.settings.contexts:
            return None
        return None if least.busy >= SPREAD and len(usable) < self.settings.browsers else least

    async def _start(self) -> None:
        if self._failures:
            await asyncio.sleep(min(PAUSE_S * 2 ** (self._failures - 1), MAX_PAUSE_S))
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep_watch())
        try:
            if self._driver is None:
                self._driver = await playwright().async_playwright().start()
            chromium = await self._one_more(self._driver)
        except WindrowError:
            self._failures += 1
            if not self._members:  # it may be the driver that is dead
                await self._stop_driver()
            raise
        member = Member(chromium)
        self._members.append(member)
        self._started += 1
        self.counts["started"] += 1
        chromium.browser.on("disconnected", lambda _: self._lost(member, "died"))

    async def _stop_driver(self) -> None:
        driver, self._driver = self._driver, None
        if driver is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await driver.stop()
        except Exception:  # it died before, which Playwright says in many ways
            pass

    async def _one_more(self, driver: Playwright) -> Chromium:
        urls = self.settings.urls
        if urls:
            return await connect(driver, urls[self._started % len(urls)], self.settings)
        return await launch(driver, self.settings)

    def _lost(self, member: Member, why: str) -> None:
        """A browser is of no use any more: its leases are told, and what is left of it is killed."""
        if member not in self._members:
            return
        self._members.remove(member)
        self.counts["died"] += 1
        self._failures += 1
        for lease in member.leases:
            lease.end(BrowserGone(f"the browser {member.chromium.where} {why}"))
        member.chromium.kill()
        self._leave(member)

    def _retire_if_due(self, member: Member) -> None:
        """A browser past its limits gets no new leases; without any, it is closed."""
        if member.retired is None:
            member.retired = self._past_limits(member)
            self.counts["retired"] += member.retired is not None
        if member.retired is not None and not member.busy and member in self._members:
            self._members.remove(member)
            self._leave(member)

    def _past_limits(self, member: Member) -> str | None:
        if member.uses >= self.settings.max_uses:
            return "uses"
        return "age" if time.monotonic() - member.born >= self.settings.max_age_s else None

    def _leave(self, member: Member) -> None:
        """Close a browser while others work."""
        for kept in member.kept.values():
            for place in kept:
                if place.gate is not None:
                    place.gate.close()
        task = asyncio.get_running_loop().create_task(member.chromium.close(CLOSE_S))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    # ── what has expired or grown

    async def _keep_watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for lease in tuple(self.held.values()):
                if time.monotonic() >= lease.expires_at:
                    await self._expire(lease)
            for member in tuple(self._members):
                await self._weigh(member)

    async def _expire(self, lease: Lease) -> None:
        """Take the browser from a holder that is late, whatever it is doing."""
        self.counts["expired"] += 1
        self.held.pop(lease.token, None)
        try:
            lease.check()
        except BrowserGone:
            pass
        if lease.gate is not None:
            lease.gate.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await lease.context.close()
        except (playwright().Error, TimeoutError):
            pass  # the holder's own end of it sees to the browser

    async def _weigh(self, member: Member) -> None:
        size = await asyncio.to_thread(member.chromium.memory_mb)
        if size is None or member not in self._members:
            return
        if size > 2 * self.settings.max_memory_mb:
            self._lost(member, f"took {size:,.0f} MB (max_memory_mb: {self.settings.max_memory_mb})")
        elif size > self.settings.max_memory_mb and member.retired is None:
            member.retired = "memory"
            self.counts["retired"] += 1
            self._retire_if_due(member)


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[PoolSettings, BrowserPool]] = WeakKeyDictionary()


async def browsers(settings: Mapping[str, Any] | PoolSettings) -> BrowserPool:
    """The pool of this process for these settings, shared by all who ask; `close_browsers` ends it."""
    own = pool_settings(settings)
    pools = _pools.setdefault(asyncio.get_running_loop(), {})
    if own not in pools:
        pools[own] = BrowserPool(own)
    return pools[own]


async def close_browsers() -> None:
    """Close every pool of this loop: nothing of it is left when this returns."""
    pools = _pools.pop(asyncio.get_running_loop(), {})
    await asyncio.gather(*(pool.close() for pool in pools.values()))
