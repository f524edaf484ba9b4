"""The browser pool: few Chromium processes, many contexts, each leased to one episode.

Capacity is back-pressure: who finds none waits, in order. Contexts are made a few at a time. What is lost with a browser
is told to its leases as BrowserGone; a lease that has not begun yet begins in another one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from windrow.envs.web.command_limits import Stages
from windrow.envs.web.failures import AddressRefused, BrowserGone, LeaseLost
from windrow.envs.web.fleet import Fleet
from windrow.envs.web.launch import failures, is_here
from windrow.envs.web.lease import Lease
from windrow.envs.web.network_policy import Guard, context_options
from windrow.envs.web.pool_settings import PoolSettings, pool_settings
from windrow.envs.web.pooled_browser import Member, Place
from windrow.envs.web.socks_proxy import SocksProxy

if TYPE_CHECKING:
    from playwright.async_api import Route

LOOK_S = 1.0  # between two looks at what has expired or grown
TRIES = 3  # at beginning a lease


class BrowserPool:
    """Made by `browsers`; `lease` is what it is for."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self.guard = Guard(settings.allow)
        self.held: dict[str, Lease] = {}
        self._counts = dict.fromkeys(("leases", "expired", "crashed_pages"), 0)
        self._fleet = Fleet(settings)
        self._stages = Stages(settings)
        self._capacity = asyncio.Semaphore(settings.browsers * settings.contexts)
        self._starts = asyncio.Semaphore(settings.starts)
        self._keeper: asyncio.Task[None] | None = None

    @property
    def counts(self) -> dict[str, int]:
        """What has happened so far: browsers started, died and retired; leases, expired ones, pages that crashed."""
        return self._fleet.counts | self._counts

    @property
    def pids(self) -> list[int]:
        """The browsers that were started here and run."""
        return [member.chromium.pid for member in self._fleet.members if member.chromium.pid is not None]

    def memory_mb(self) -> float:
        """What those have to themselves, pages and all."""
        return sum(member.chromium.memory_mb() or 0.0 for member in self._fleet.members)

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
            if self._keeper is None:
                self._keeper = asyncio.get_running_loop().create_task(self._keep_watch())
            place = await self._place(dict(context or {}), reuse)
            lease = self._begin(place, seconds)
            lease.queued_s = time.monotonic() - asked
            try:
                yield lease
            finally:
                await self._finish(lease, reuse)

    async def close(self) -> None:
        """End every lease and every browser; none can be had any more."""
        if self._keeper is not None:
            self._keeper.cancel()
        for lease in tuple(self.held.values()):
            lease.end(LeaseLost("the browsers of the run were closed"))
        self.held.clear()
        await self._fleet.close()

    # -- a lease's beginning

    async def _place(self, wanted: dict[str, Any], reuse: str | None) -> Place:
        """A browser that turns out to be dead is no reason to fail an episode that has not begun."""
        for attempt in range(1, TRIES + 1):
            try:
                member = await self._fleet.pick(reuse)
                return await self._place_in(member, wanted, reuse)
            except LeaseLost:
                raise
            except BrowserGone:
                if attempt == TRIES:
                    raise
        raise AssertionError("unreachable")

    async def _place_in(self, member: Member, wanted: dict[str, Any], reuse: str | None) -> Place:
        member.busy += 1
        member.uses += 1
        try:
            kept = member.take(reuse)
            if kept is not None:
                if len(kept.context.pages) == 1 or await kept.sweep():  # pages do things when nobody looks
                    return kept
                await self._close(kept)
            self._make_room(member)
            return await self._fresh(member, wanted)
        except BaseException:
            member.busy -= 1
            self._fleet.retire_if_due(member)
            raise

    def _make_room(self, member: Member) -> None:
        """What is kept for somebody gives way to somebody who is here."""
        while member.kept and member.busy + len(member.kept) > self.settings.contexts:
            _, oldest = member.kept.pop(0)
            self._fleet.own(self._close(oldest))

    async def _fresh(self, member: Member, wanted: dict[str, Any]) -> Place:
        """A new context, a few at a time: many at once take longer than their time limits."""
        async with self._starts:
            making = asyncio.get_running_loop().create_task(self._made(member, wanted))
            try:
                return await asyncio.shield(making)
            except asyncio.CancelledError:  # it will be there all the same, for nobody
                self._fleet.own(self._throw_away(making))
                raise

    async def _made(self, member: Member, wanted: dict[str, Any]) -> Place:
        gate = self._gate()
        try:
            async with member.within(self.settings.start_timeout_s):
                proxy = await gate.start() if gate is not None else None
                context = await member.chromium.browser.new_context(**context_options(proxy, wanted))
                context.set_default_timeout(self.settings.command_timeout_s * 1000)
                context.set_default_navigation_timeout(self.settings.navigate_timeout_s * 1000)
                if gate is None and not self.guard.open:
                    await context.route("**/*", self._judge_request)
                page = await context.new_page()
        except failures() as problem:
            if gate is not None:
                gate.close()
            self._fleet.lost(member, f"gave no context: {str(problem) or 'it took too long'}")
            raise member.gone or BrowserGone(f"the browser {member.chromium.where} was closed") from None
        self._fleet.worked()
        return Place(member, context, page, gate)

    def _gate(self) -> SocksProxy | None:
        """None where everything is allowed, and for browsers elsewhere, which could not reach it."""
        if self.guard.open or not all(is_here(url) for url in self.settings.urls):
            return None
        return SocksProxy(self.guard, max_bytes=self.settings.max_traffic_mb << 20)

    async def _judge_request(self, route: Route) -> None:
        """For a browser elsewhere: what its own network makes of a name cannot be seen, but what a URL spells can."""
        try:
            self.guard.check(route.request.url)
        except AddressRefused:
            await route.abort("blockedbyclient")
        else:
            await route.continue_()

    def _begin(self, place: Place, seconds: float) -> Lease:
        lease = Lease(
            place,
            settings=self.settings,
            stages=self._stages,
            guard=self.guard,
            ledger=self.held,
            seconds=seconds,
        )
        self.held[lease.token] = lease
        place.member.leases.add(lease)
        self._counts["leases"] += 1
        return lease

    # -- its end

    async def _finish(self, lease: Lease, reuse: str | None) -> None:
        """Give it back: nothing of an episode is left, unless it is to be used again."""
        member = lease.place.member
        self.held.pop(lease.token, None)
        member.leases.discard(lease)
        self._counts["crashed_pages"] += lease.crashed
        self._counts["expired"] += lease.expired
        member.crashes += lease.crashed
        spent = lease.gate is not None and lease.gate.spent  # nothing would load there any more
        again = reuse if lease.lost is None and member.retired is None and not spent else None
        place = lease.give_back()
        try:
            if again is not None and await place.sweep():
                member.kept.append((again, place))
            else:
                await self._close(place)
        finally:
            member.busy -= 1
            self._fleet.retire_if_due(member)

    async def _close(self, place: Place) -> None:
        if not await place.close():
            self._fleet.lost(place.member, "does not close a context")

    async def _throw_away(self, making: asyncio.Task[Place]) -> None:
        try:
            place = await making
        except BrowserGone:
            return
        await self._close(place)

    # -- what has expired or grown

    async def _keep_watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for lease in tuple(self.held.values()):
                if lease.is_over():
                    await self._take_back(lease)
            for member in tuple(self._fleet.members):
                await self._fleet.look_after(member)

    async def _take_back(self, lease: Lease) -> None:
        """Take the context from a holder that is late, whatever it is doing."""
        self.held.pop(lease.token, None)
        await self._close(lease.place)


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[PoolSettings, BrowserPool]] = WeakKeyDictionary()


async def browsers(settings: Mapping[str, Any] | PoolSettings) -> BrowserPool:
    """The pool of this process for these settings, shared by all who ask; `close_browsers` ends it."""
    own = pool_settings(settings)
    pools = _pools.setdefault(asyncio.get_running_loop(), {})
    if own not in pools:
        pools[own] = BrowserPool(own)
    return pools[own]


async def close_browsers(settings: Mapping[str, Any] | PoolSettings | None = None) -> None:
    """Close the pool with these settings, or every pool of this loop; nothing of it is left when this returns."""
    pools = _pools.get(asyncio.get_running_loop(), {})
    ending = tuple(pools) if settings is None else (pool_settings(settings),)
    closing = [pools.pop(own) for own in ending if own in pools]
    await asyncio.gather(*(pool.close() for pool in closing))
