"""A lease: one browser context, for one episode, for a time.

Every command is checked against the lease's token and its expiry, waits for its stage's turn, is bounded in time and is
written down as a span. A command of a lease that is over never reaches a browser, which may be somebody else's by then.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from windrow.envs.web.failures import AddressRefused, BrowserGone, LeaseLost, PageClosed, PageTimeout
from windrow.envs.web.launch import failures, playwright
from windrow.envs.web.network_policy import Guard
from windrow.envs.web.pool_settings import PoolSettings
from windrow.envs.web.pooled_browser import Place, expire

if TYPE_CHECKING:
    from playwright.async_api import Dialog, Page

    from windrow.envs.web.command_limits import Stages

T = TypeVar("T")
SETTLE_MS = 5_000
OVERTAKEN, OVERTAKEN_TIMES = "interrupted by another navigation to", 4
KEPT = 50  # dialogs that are remembered, and a dialog's characters × 20


class Span(msgspec.Struct, frozen=True):
    """One command: its stage, when it was asked for, how long it waited for its turn, and how long it took."""

    stage: str
    started_at: float
    queued_s: float
    seconds: float
    failed: str | None = None


class Lease:
    """`page` is the one that commands are for; `pages` are all, pop-ups and tabs too."""

    def __init__(
        self,
        place: Place,
        *,
        settings: PoolSettings,
        stages: Stages,
        guard: Guard,
        ledger: dict[str, Lease],
        seconds: float,
    ) -> None:
        self.token = secrets.token_hex(16)
        self.expires_at = time.monotonic() + seconds
        self.spans: list[Span] = []
        self.dialogs: list[str] = []
        self.queued_s = 0.0  # for capacity, before it began
        self.place = place
        self.context = place.context
        self.gate = place.gate
        self.lost: BrowserGone | None = None  # why it is over, once it is
        self.crashed = False
        self.expired = False
        self._ledger = ledger
        self._seconds = seconds
        self._page = place.page
        self._checked = ""  # the address of the page that was looked at last
        self._settings = settings
        self._stages = stages
        self._guard = guard
        self._running: set[asyncio.Timeout] = set()
        self._closing: set[asyncio.Task[None]] = set()
        if self.gate is not None:
            self.gate.forget()
        self.context.on("page", self._opened)
        self.context.on("dialog", self._asked)
        for page in self.context.pages:
            page.on("crash", self._page_crashed)

    @property
    def page(self) -> Page:
        """The page that commands are for; where it has been closed, the newest that is open."""
        self.check()
        if self._page.is_closed() and self.pages:
            self._page = self.pages[-1]
        return self._page

    @property
    def pages(self) -> list[Page]:
        self.check()
        return [page for page in self.context.pages if not page.is_closed()]

    @property
    def refused(self) -> list[AddressRefused]:
        """What the pages were not let through to."""
        return self.gate.refused if self.gate is not None else []

    def show(self, page: Page) -> None:
        """Make `page` the one that commands are for."""
        self.check()
        self._page = page

    def check(self) -> None:
        """Raise where the lease is over."""
        if self.is_over() and self.lost is not None:
            raise self.lost

    def is_over(self) -> bool:
        """Whether it has expired, was given back, or lost its browser."""
        if self.lost is None and time.monotonic() >= self.expires_at:
            self.expired = True
            self.end(LeaseLost(f"the lease of a browser was for {self._seconds:g} s and has expired"))
        if self.lost is None and self._ledger.get(self.token) is not self:
            self.end(_given_back())
        return self.lost is not None

    def end(self, why: BrowserGone) -> None:
        """From now on, nothing is done for it; what is being done is given up."""
        if self.lost is None:
            self.lost = why
            for running in self._running:
                expire(running)

    def give_back(self) -> Place:
        """Its place, for whoever is next: this lease acts and listens no more."""
        self.end(_given_back())
        self.context.remove_listener("page", self._opened)
        self.context.remove_listener("dialog", self._asked)
        for page in self.context.pages:
            page.remove_listener("crash", self._page_crashed)
        self.place.page = self._page
        return self.place

    async def do(
        self, stage: str, command: Callable[[Page], Awaitable[T]], *, seconds: float | None = None
    ) -> T:
        """What `command` makes of the page. `navigate` and any other stage have limits of their own.

        Raises BrowserGone where the browser, the page's renderer or the lease is lost; PageTimeout after `seconds`;
        PageClosed; AddressRefused and Unreachable where it ended at such an address; and Playwright's own errors.
        """
        self.check()
        asked_at, asked = time.time(), time.monotonic()
        failed: str | None = None
        started = asked
        try:
            async with self._stages.turn(stage, self.expires_at):
                started = time.monotonic()
                return await self._run(stage, command, seconds)
        except BaseException as problem:
            failed = getattr(problem, "kind", None) or type(problem).__name__
            raise
        finally:
            now = time.monotonic()
            self.spans.append(Span(stage, asked_at, started - asked, now - started, failed))

    async def goto(self, url: str, *, seconds: float | None = None, **options: Any) -> None:
        """Send the page to an address, where pages may go there."""
        self._guard.check(url)

        async def go(page: Page) -> None:
            for _ in range(OVERTAKEN_TIMES):
                try:
                    await page.goto(url, **options)
                except playwright().Error as problem:
                    if not any(f'{OVERTAKEN} "{by}' in str(problem) for by in ("chrome-error:", url)):
                        raise
                else:
                    return
            await page.goto(url, **options)

        await self.do("navigate", go, seconds=seconds)

    async def renew_page(self) -> Page:
        """A new page in the place of the current one, which may be stuck: what it was doing is over."""
        self.check()
        old = self._page

        async def swap(page: Page) -> Page:
            self._page = await self.context.new_page()
            await old.close()
            return self._page

        return await self.do("page", swap)

    async def _run(self, stage: str, command: Callable[[Page], Awaitable[T]], seconds: float | None) -> T:
        self.check()
        usual = self._settings.navigate_timeout_s if stage == "navigate" else self._settings.command_timeout_s
        limit = usual if seconds is None else seconds
        left = self.expires_at - time.monotonic()
        refusals = self.gate.refusals if self.gate is not None else 0
        api = playwright()
        try:
            async with self._limited(min(limit, left)):
                page = self.page
                if page.is_closed():
                    page = self._page = await self.context.new_page()
                result = await command(page)
        except (TimeoutError, api.TimeoutError):
            self.check()  # the lease's own time, perhaps
            raise PageTimeout(
                f"the page did not do it in {limit:g} s ({stage} of {_at(self._page)})"
            ) from None
        except api.Error as problem:
            await self._settle(str(problem))
            raise await self._typed(problem, refusals) from None
        except (RuntimeError, ConnectionError):  # how it may show that the driver has just died
            if self.lost is None and await self._answers():
                raise
            self.end(BrowserGone(f"the browser {self.place.member.chromium.where} died"))
            self.check()
        await self._look()
        return result

    @asynccontextmanager
    async def _limited(self, seconds: float) -> AsyncIterator[None]:
        async with asyncio.timeout(seconds) as running:
            self._running.add(running)
            try:
                yield
            finally:
                self._running.discard(running)

    async def _settle(self, said: str) -> None:
        """The page that says why a navigation failed comes after the failure: let it, or it overtakes the next one."""
        if "net::ERR_" in said and "net::ERR_ABORTED" not in said:
            try:
                await self._page.wait_for_url("chrome-error://**", wait_until="commit", timeout=SETTLE_MS)
            except playwright().Error:
                pass

    async def _typed(self, problem: Exception, refusals: int) -> Exception:
        """What Playwright's error means."""
        said = str(problem)
        if self.lost is None and "crashed" in said:
            self.end(self._renderer_gone())
        elif self.lost is None and ("has been closed" in said or "Connection closed" in said):
            if await self._answers():
                return PageClosed("the page was closed while it was asked")
            self.end(BrowserGone(f"the browser {self.place.member.chromium.where} died"))
        if self.lost is not None:
            return self.lost
        if self.gate is not None and self.gate.spent and "net::ERR_" in said:
            return self.gate.refused[-1]
        if self.gate is None or "net::ERR_SOCKS" not in said:
            return problem
        return self.gate.refused[-1] if self.gate.refusals > refusals else self.gate.unreached or problem

    async def _answers(self) -> bool:
        """Whether the context is still there, when a page is not."""
        try:
            async with asyncio.timeout(self._settings.command_timeout_s):
                await self.context.cookies("http://localhost")
        except failures():
            return False
        return True

    def _renderer_gone(self) -> BrowserGone:
        return BrowserGone(f"the renderer of a page crashed ({_at(self._page)})", kind="page_crashed")

    async def _look(self) -> None:
        """What was lost meanwhile is told at once, and no page stays where pages may not be (a file)."""
        self.check()
        if len(self.context.pages) == 1 and self._page.url == self._checked:
            return
        for page in self.context.pages:
            problem = self._guard.objection(page.url)
            if problem is not None:
                await page.close()
                raise problem
        self._checked = self._page.url

    def _opened(self, page: Page) -> None:
        page.on("crash", self._page_crashed)
        if len(self.context.pages) > self._settings.max_pages:
            self._later(page.close())

    def _page_crashed(self, page: Page) -> None:
        self.crashed = True
        self.end(self._renderer_gone())

    def _asked(self, dialog: Dialog) -> None:
        if len(self.dialogs) < KEPT:
            self.dialogs.append(f"{dialog.type}: {dialog.message[: KEPT * 20]}")
        leaving = dialog.type == "beforeunload"  # a page that asks to be stayed with is left all the same
        self._later(dialog.accept() if leaving else dialog.dismiss())

    def _later(self, work: Any) -> None:
        """Done for a page while nobody waits for it; a page that is gone by then needs it no more."""

        async def quietly() -> None:
            try:
                await work
            except playwright().Error:
                pass

        task = asyncio.get_running_loop().create_task(quietly())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _given_back() -> LeaseLost:
    return LeaseLost("the lease of a browser was given back, and can do nothing any more")


def _at(page: Page) -> str:
    return page.url[:200]
