"""A lease: one browser context for one episode, for a limited time.

Every command is checked against the lease's token and expiry, waits for its turn, is bounded in time and is recorded as a
span. A command of a lease that is over never reaches the browser, which may belong to another lease by then.
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
from windrow.envs.web.network_policy import NetworkPolicy
from windrow.envs.web.pool_settings import PoolSettings
from windrow.envs.web.pooled_browser import PooledContext, expire

if TYPE_CHECKING:
    from playwright.async_api import Dialog, Page

    from windrow.envs.web.command_limits import CommandLimits

T = TypeVar("T")
SETTLE_MS = 5_000
OVERTAKEN, OVERTAKEN_TIMES = "interrupted by another navigation to", 4
MAX_DIALOGS = 50  # that a page may open after one action
MAX_RECORDED, MAX_DIALOG_CHARS = 1_000, 1_000


class Span(msgspec.Struct, frozen=True):
    """One command: its stage, the time of the call, how long it waited for its turn, and how long it took."""

    stage: str
    started_at: float
    queued_s: float
    seconds: float
    failed: str | None = None


class Lease:
    """`page` is the target of commands; `pages` are all pages, including pop-ups and tabs."""

    def __init__(
        self,
        pooled: PooledContext,
        *,
        settings: PoolSettings,
        limits: CommandLimits,
        network_policy: NetworkPolicy,
        ledger: dict[str, Lease],
        seconds: float,
        queued_s: float,
    ) -> None:
        self.token = secrets.token_hex(16)
        self.expires_at = time.monotonic() + seconds
        self.spans: list[Span] = []
        self.dialogs: list[str] = []
        self.accepts_dialogs = False
        self.recent_dialogs = 0  # since the last action
        self.queued_s = queued_s  # waiting for capacity, before it began
        self.pooled = pooled
        self.context = pooled.context
        self.proxy = pooled.proxy
        self.lost: BrowserGone | None = None  # the reason, once it is over
        self.crashed = False
        self.expired = False
        self._ledger = ledger
        self._seconds = seconds
        self._page = pooled.page
        self._excess: set[Page] = set()  # opened over `max_pages`, and about to be closed
        self.unopened = 0  # how many those were since they were last told
        self._checked = ""  # the page address that was checked last
        self._settings = settings
        self._limits = limits
        self._network_policy = network_policy
        self._running: set[asyncio.Timeout] = set()
        self._closing: set[asyncio.Task[None]] = set()
        if self.proxy is not None:
            self.proxy.forget()
        self.context.on("page", self._opened)
        self.context.on("dialog", self._asked)
        for page in self.context.pages:
            page.on("crash", self._page_crashed)

    @property
    def page(self) -> Page:
        """The target of commands; if it has been closed, the newest open page."""
        self.check()
        if self._page.is_closed() and self.pages:
            self._page = self.pages[-1]
        return self._page

    @property
    def pages(self) -> list[Page]:
        self.check()
        return [page for page in self.context.pages if page not in self._excess and not page.is_closed()]

    @property
    def refused(self) -> list[AddressRefused]:
        """The addresses that pages were refused."""
        return self.proxy.refused if self.proxy is not None else []

    def show(self, page: Page) -> None:
        """Make `page` the target of commands."""
        self.check()
        self._page = page

    def check(self) -> None:
        """Raise if the lease is over."""
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
        """End the lease: running commands are given up, and no other is done."""
        if self.lost is None:
            self.lost = why
            for running in self._running:
                expire(running)

    def give_back(self) -> PooledContext:
        """Its context, for the next lease. This lease does nothing more and listens to nothing more."""
        self.end(_given_back())
        self.context.remove_listener("page", self._opened)
        self.context.remove_listener("dialog", self._asked)
        for page in self.context.pages:
            page.remove_listener("crash", self._page_crashed)
        self.pooled.show(self._page)
        return self.pooled

    async def do(
        self, stage: str, command: Callable[[Page], Awaitable[T]], *, seconds: float | None = None
    ) -> T:
        """Run `command` with the page. The stage `navigate` and all other stages have separate limits.

        Raises BrowserGone if the browser, the page's renderer or the lease is lost; PageTimeout after `seconds`;
        PageClosed; AddressRefused and Unreachable if it ended at such an address; and Playwright's own errors.
        """
        self.check()
        asked_at, asked = time.time(), time.monotonic()
        failed: str | None = None
        started = asked
        try:
            async with self._limits.turn(stage, self.expires_at):
                started = time.monotonic()
                return await self._run(stage, command, seconds)
        except BaseException as problem:
            failed = getattr(problem, "kind", None) or type(problem).__name__
            raise
        finally:
            now = time.monotonic()
            self.spans.append(Span(stage, asked_at, started - asked, now - started, failed))

    async def goto(self, url: str, *, seconds: float | None = None, **options: Any) -> None:
        """Navigate the page to an address that pages may visit."""
        self._network_policy.check(url)

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
        """Replace the current page, which may be stuck, by a new one."""
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
        refusals = self.proxy.refusals if self.proxy is not None else 0
        api = playwright()
        try:
            async with self._limited(min(limit, left)):
                page = self.page
                if page.is_closed():
                    page = self._page = await self.context.new_page()
                result = await command(page)
        except (TimeoutError, api.TimeoutError):
            self.check()  # the lease itself may have expired
            raise PageTimeout(
                f"the page did not do it in {limit:g} s ({stage} of {_at(self._page)})"
            ) from None
        except api.Error as problem:
            await self._settle(str(problem))
            raise await self._typed(problem, refusals) from None
        except (RuntimeError, ConnectionError):  # these may mean that the driver has just died
            if self.lost is None and await self._answers():
                raise
            self.end(BrowserGone(f"the browser {self.pooled.member.chromium.where} died"))
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

    async def _settle(self, message: str) -> None:
        """Wait for the browser's error page, which comes after the failure and would otherwise interrupt the next navigation."""
        if "net::ERR_" in message and "net::ERR_ABORTED" not in message:
            try:
                await self._page.wait_for_url("chrome-error://**", wait_until="commit", timeout=SETTLE_MS)
            except playwright().Error:
                pass

    async def _typed(self, problem: Exception, refusals: int) -> Exception:
        """The error that stands for Playwright's."""
        message = str(problem)
        if self.lost is None and "crashed" in message:
            self.end(self._renderer_gone())
        elif self.lost is None and ("has been closed" in message or "Connection closed" in message):
            if await self._answers():
                return PageClosed("the page was closed while it was asked")
            self.end(BrowserGone(f"the browser {self.pooled.member.chromium.where} died"))
        if self.lost is not None:
            return self.lost
        if self.proxy is not None and self.proxy.spent and "net::ERR_" in message:
            return self.proxy.refused[-1]
        if self.proxy is None or "net::ERR_SOCKS" not in message:
            return problem
        return self.proxy.refused[-1] if self.proxy.refusals > refusals else self.proxy.unreached or problem

    async def _answers(self) -> bool:
        """Whether the context still answers, after a page has not."""
        try:
            async with asyncio.timeout(self._settings.command_timeout_s):
                await self.context.cookies("http://localhost")
        except failures():
            return False
        return True

    def _renderer_gone(self) -> BrowserGone:
        return BrowserGone(f"the renderer of a page crashed ({_at(self._page)})", kind="page_crashed")

    async def _look(self) -> None:
        """Raise if the lease was lost meanwhile, and close pages at addresses that are not allowed, such as files."""
        self.check()
        if len(self.context.pages) == 1 and self._page.url == self._checked:
            return
        for page in self.context.pages:
            problem = self._network_policy.objection(page.url)
            if problem is not None:
                await page.close()
                raise problem
        self._checked = self._page.url

    def _opened(self, page: Page) -> None:
        page.on("crash", self._page_crashed)
        if len(self.pages) > self._settings.max_pages:
            self._excess.add(page)
            self.unopened += 1
            self._later(page.close())

    def _page_crashed(self, page: Page) -> None:
        self.crashed = True
        self.end(self._renderer_gone())

    def _asked(self, dialog: Dialog) -> None:
        if self.recent_dialogs < MAX_DIALOGS and len(self.dialogs) < MAX_RECORDED:
            self.dialogs.append(f"{dialog.type}: {dialog.message[:MAX_DIALOG_CHARS]}")
        self.recent_dialogs += 1
        if self.recent_dialogs > MAX_DIALOGS:
            return  # it stays open: a page that asks for ever does not answer, and can be left
        leaving = dialog.type == "beforeunload"  # a page that asks the user to stay is left anyway
        self._later(dialog.accept() if leaving or self.accepts_dialogs else dialog.dismiss())

    def _later(self, work: Any) -> None:
        """Do something for a page in the background; it does not matter if the page is gone by then."""

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
