"""The browser pool: few Chromium processes with many contexts, each leased to one episode.

A lease waits, in order, until there is capacity. Only a few contexts are made at a time. The leases of a browser that
dies end with BrowserGone; a lease that has not begun yet begins in another browser.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from windrow.envs.web.command_limits import CommandLimits
from windrow.envs.web.document_script import Clipboard
from windrow.envs.web.failures import AddressRefused, BrowserGone, LeaseLost
from windrow.envs.web.fleet import Fleet
from windrow.envs.web.launch import failures, is_here
from windrow.envs.web.lease import Lease
from windrow.envs.web.network_policy import NetworkPolicy, context_options
from windrow.envs.web.pool_settings import PoolSettings, pool_settings
from windrow.envs.web.pooled_browser import PooledBrowser, PooledContext
from windrow.envs.web.socks_proxy import SocksProxy

if TYPE_CHECKING:
    from playwright.async_api import Route

LOOK_S = 1.0  # between two checks of leases and browsers
TRIES = 3  # to begin a lease


class BrowserPool:
    """Made by `browsers`, for its method `lease`."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self.network_policy = NetworkPolicy(settings.allow)
        self.held: dict[str, Lease] = {}
        self._counts = dict.fromkeys(("leases", "expired", "crashed_pages"), 0)
        self._fleet = Fleet(settings)
        self._limits = CommandLimits(settings)
        self._capacity = asyncio.Semaphore(settings.browsers * settings.contexts)
        self._starts = asyncio.Semaphore(settings.starts)
        self._keeper: asyncio.Task[None] | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Counts so far: browsers started, died and retired; leases, expired leases, crashed pages."""
        return self._fleet.counts | self._counts

    @property
    def pids(self) -> list[int]:
        """The process ids of the running browsers that were started here."""
        return [member.chromium.pid for member in self._fleet.members if member.chromium.pid is not None]

    def memory_mb(self) -> float:
        """The memory of those browsers that is not shared."""
        return sum(member.chromium.memory_mb() or 0.0 for member in self._fleet.members)

    @asynccontextmanager
    async def lease(
        self, *, seconds: float, context: Mapping[str, Any] | None = None, reuse: str | None = None
    ) -> AsyncIterator[Lease]:
        """A context for `seconds`, with one blank page; waits for capacity. `context` has Playwright's options.

        With the same `reuse`, an earlier lease's context and page may be used again as they were left, without cookies: for
        sites whose page can start afresh.
        """
        asked = time.monotonic()
        async with self._capacity:
            if self._keeper is None:
                self._keeper = asyncio.get_running_loop().create_task(self._keep_watch())
            pooled = await self._pooled_context(dict(context or {}), reuse)
            lease = self._begin(pooled, seconds, queued_s=time.monotonic() - asked)
            try:
                yield lease
            finally:
                await self._finish(lease, reuse)

    async def close(self) -> None:
        """End every lease and every browser; there are no new ones afterwards."""
        if self._keeper is not None:
            self._keeper.cancel()
        for lease in tuple(self.held.values()):
            lease.end(LeaseLost("the browsers of the run were closed"))
        self.held.clear()
        await self._fleet.close()

    # -- a lease's beginning

    async def _pooled_context(self, wanted: dict[str, Any], reuse: str | None) -> PooledContext:
        """A context in some browser. If the browser turns out to be dead, another is tried: the episode has not begun."""
        for attempt in range(1, TRIES + 1):
            try:
                member = await self._fleet.pick(reuse)
                return await self._pooled_context_in(member, wanted, reuse)
            except LeaseLost:
                raise
            except BrowserGone:
                if attempt == TRIES:
                    raise
        raise AssertionError("unreachable")

    async def _pooled_context_in(
        self, member: PooledBrowser, wanted: dict[str, Any], reuse: str | None
    ) -> PooledContext:
        member.busy += 1
        member.uses += 1
        try:
            reused = member.take(reuse)
            if reused is not None:
                # A page may have opened others meanwhile.
                if len(reused.context.pages) == 1 or await reused.sweep():
                    return reused
                await self._close(reused)
            self._make_room(member)
            return await self._fresh(member, wanted)
        except BaseException:
            member.busy -= 1
            self._fleet.retire_if_due(member)
            raise

    def _make_room(self, member: PooledBrowser) -> None:
        """Close kept contexts where a new lease needs their room."""
        while member.kept and member.busy + len(member.kept) > self.settings.contexts:
            _, oldest = member.kept.pop(0)
            self._fleet.spawn(self._close(oldest))

    async def _fresh(self, member: PooledBrowser, wanted: dict[str, Any]) -> PooledContext:
        """A new context. Only a few are made at a time: many at once would take longer than their time limits."""
        async with self._starts:
            making = asyncio.get_running_loop().create_task(self._made(member, wanted))
            try:
                return await asyncio.shield(making)
            except asyncio.CancelledError:  # the context is made anyway, and nobody will use it
                self._fleet.spawn(self._throw_away(making))
                raise

    async def _made(self, member: PooledBrowser, wanted: dict[str, Any]) -> PooledContext:
        proxy = self._new_proxy()
        try:
            async with member.within(self.settings.start_timeout_s):
                proxy_option = await proxy.start() if proxy is not None else None
                context = await member.chromium.browser.new_context(**context_options(proxy_option, wanted))
                context.set_default_timeout(self.settings.command_timeout_s * 1000)
                context.set_default_navigation_timeout(self.settings.navigate_timeout_s * 1000)
                if proxy is None and not self.network_policy.open:
                    await context.route("**/*", self._judge_request)
                clipboard = Clipboard()
                await clipboard.install(context)
                page = await context.new_page()
        except failures() as problem:
            if proxy is not None:
                proxy.close()
            self._fleet.lost(member, f"gave no context: {str(problem) or 'it took too long'}")
            raise member.gone or BrowserGone(f"the browser {member.chromium.where} was closed") from None
        self._fleet.worked()
        return PooledContext(member, context, page, proxy, clipboard)

    def _new_proxy(self) -> SocksProxy | None:
        """None if everything is allowed, and for browsers elsewhere, which could not reach it."""
        if self.network_policy.open or not all(is_here(url) for url in self.settings.urls):
            return None
        return SocksProxy(self.network_policy, max_bytes=self.settings.max_traffic_mb << 20)

    async def _judge_request(self, route: Route) -> None:
        """Check a request of a browser elsewhere by its URL alone: how its network resolves names is unknown."""
        try:
            self.network_policy.check(route.request.url)
        except AddressRefused:
            await route.abort("blockedbyclient")
        else:
            await route.continue_()

    def _begin(self, pooled: PooledContext, seconds: float, *, queued_s: float) -> Lease:
        pooled.clipboard.clear()
        lease = Lease(
            pooled,
            settings=self.settings,
            limits=self._limits,
            network_policy=self.network_policy,
            ledger=self.held,
            seconds=seconds,
            queued_s=queued_s,
        )
        self.held[lease.token] = lease
        pooled.member.leases.add(lease)
        self._counts["leases"] += 1
        return lease

    # -- its end

    async def _finish(self, lease: Lease, reuse: str | None) -> None:
        """Give a lease back. Its context is closed, or swept and kept for another lease."""
        member = lease.pooled.member
        self.held.pop(lease.token, None)
        member.leases.discard(lease)
        self._counts["crashed_pages"] += lease.crashed
        self._counts["expired"] += lease.expired
        member.crashes += lease.crashed
        spent = lease.proxy is not None and lease.proxy.spent  # nothing more would load there
        again = reuse if lease.lost is None and member.retired is None and not spent else None
        pooled = lease.give_back()
        try:
            if again is not None and await pooled.sweep():
                member.kept.append((again, pooled))
            else:
                await self._close(pooled)
        finally:
            member.busy -= 1
            self._fleet.retire_if_due(member)

    async def _close(self, pooled: PooledContext) -> None:
        if not await pooled.close():
            self._fleet.lost(pooled.member, "does not close a context")

    async def _throw_away(self, making: asyncio.Task[PooledContext]) -> None:
        try:
            pooled = await making
        except BrowserGone:
            return
        await self._close(pooled)

    # -- checks in the background

    async def _keep_watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for lease in tuple(self.held.values()):
                if lease.is_over():
                    await self._take_back(lease)
            for member in tuple(self._fleet.members):
                await self._fleet.look_after(member)

    async def _take_back(self, lease: Lease) -> None:
        """Close the context of a lease that has expired, whatever its holder is doing."""
        self.held.pop(lease.token, None)
        await self._close(lease.pooled)


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[PoolSettings, BrowserPool]] = WeakKeyDictionary()


async def browsers(settings: Mapping[str, Any] | PoolSettings) -> BrowserPool:
    """The pool of this event loop for these settings, which all callers share; `close_browsers` ends it."""
    pool_options = pool_settings(settings)
    pools = _pools.setdefault(asyncio.get_running_loop(), {})
    if pool_options not in pools:
        pools[pool_options] = BrowserPool(pool_options)
    return pools[pool_options]


async def close_browsers(settings: Mapping[str, Any] | PoolSettings | None = None) -> None:
    """Close the pool with these settings, or every pool of this loop; returns when nothing of it is left."""
    pools = _pools.get(asyncio.get_running_loop(), {})
    ending = tuple(pools) if settings is None else (pool_settings(settings),)
    closing = [pools.pop(pool_options) for pool_options in ending if pool_options in pools]
    await asyncio.gather(*(pool.close() for pool in closing))
