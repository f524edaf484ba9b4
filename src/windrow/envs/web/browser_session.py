"""The browser of one episode: performs actions and observes the page.

Every command goes through the lease. After an action, the session waits until the page is at rest; a tab that the action
opened becomes the current one. An observation says if the page does not answer, and the episode goes on. The loss of the
browser is not caught here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from windrow.envs.web.action_executor import ActionExecutor, address, net_error
from windrow.envs.web.actions import Action, Back, Close, Goto, Tab, Wait
from windrow.envs.web.failures import PageClosed, PageError, PageTimeout
from windrow.envs.web.launch import playwright
from windrow.envs.web.lease import Lease
from windrow.envs.web.page_observation import PageObservation, observation_of
from windrow.envs.web.page_report import Unreadable, whole
from windrow.envs.web.page_snapshot import MAX_URL_CHARS, ElementHolders, PageSnapshot, short, take_snapshot
from windrow.envs.web.screenshots import Picture
from windrow.envs.web.settings import WebOptions
from windrow.envs.web.waits import Departed, Mark, Traffic, Waits, went_away
from windrow.errors import ToolError

if TYPE_CHECKING:
    from playwright.async_api import Page

BLANK = "about:blank"
STUCK_SHARE = 0.2  # of the time of a snapshot, for a page that has just not answered
LOOKS = 3  # tries at a snapshot of a page that goes to another document meanwhile


class BrowserSession:
    """One episode in a leased browser context: its pages, the last snapshot, and the waits between actions."""

    def __init__(self, lease: Lease, options: WebOptions) -> None:
        self.lease = lease
        self.options = options
        self.waits = Waits()
        self.start_url = BLANK
        self._snapshot: PageSnapshot | None = None
        self._holders = ElementHolders()
        self._stuck = False  # the page did not answer in time, after the last action
        self._mute = False  # nor for the last snapshot
        self._visited_urls: list[str] = []  # the last one last
        self._traffic = Traffic(lease.context)
        self._known_pages = list(lease.pages)
        self._dialogs = len(lease.dialogs)
        lease.accepts_dialogs = options.dialogs == "accept"

    def close(self) -> None:
        self._traffic.close()

    async def open(self, url: str) -> None:
        """Open the episode's first page, unless it is there already. Errors of the navigation are raised."""
        if self.lease.page.url != url:
            mark = self._traffic.mark()
            await self.lease.goto(url, wait_until="commit")
            await self._settle(mark)
        self.start_url = self.lease.page.url

    @property
    def cut_off(self) -> bool:
        """Whether the last page is missing because its host could not be reached: its content is unknown."""
        proxy = self.lease.proxy
        if proxy is None or proxy.unreached is None or proxy.unreached.kind == "no_such_host":
            return False
        return self.lease.page.url.startswith("chrome-error:")

    async def forget(self) -> None:
        """Clear the history of the tab, which may have pages of an earlier episode."""

        async def forget(page: Page) -> None:
            session = await page.context.new_cdp_session(page)
            await session.send("Page.resetNavigationHistory")
            await session.detach()

        await self.lease.do("page", forget)

    async def do(self, action: Action) -> str:
        """Perform the action; returns its outcome, in a sentence. ToolError says why it was not possible."""
        mark = self._traffic.mark()
        self.lease.recent_dialogs = 0
        try:
            outcome = whole(await self._perform(action))
        except PageClosed:
            outcome = "The page closed itself."
        except PageError as problem:
            raise ToolError(str(problem), kind=problem.kind) from None
        except ToolError as problem:
            raise ToolError(whole(str(problem)), kind=problem.kind) from None
        except playwright().Error as problem:
            raise ToolError(whole(_first_line(str(problem))), kind="not_possible") from None
        finally:
            opened = await self._rest(mark, follow=not isinstance(action, Tab | Close))
        return f"{outcome} A new tab opened." if opened else outcome

    async def _rest(self, mark: Mark, *, follow: bool) -> bool:
        """Wait for the page, and with `follow` for a tab that it opened; returns whether it opened one."""
        if self._over:
            return False
        self._stuck = False
        if opened := follow and self._take_new_tab():
            mark = self._traffic.mark()
        await self._settle(mark)
        if follow and not opened and (opened := self._take_new_tab()):
            await self._settle(mark)
        if not self._over:
            self._known_pages = self.lease.pages
        return opened

    @property
    def _over(self) -> bool:
        return self.lease.lost is not None

    async def _perform(self, action: Action) -> str:
        options = self.options
        if isinstance(action, Goto):
            return await self._goto(action)
        if isinstance(action, Back):
            return await self._back()
        if isinstance(action, Tab):
            return self._tab(action)
        if isinstance(action, Close):
            return await self._close_tab(action)
        if isinstance(action, Wait):
            seconds = min(action.seconds, options.max_wait_s)
            await self.waits.asked(seconds)
            return f"Waited {seconds:g} s."
        if self._snapshot is None:
            raise ToolError(
                "the page does not answer: go back, or open another address"
                if self._mute
                else "the page is still loading: wait, or open another address",
                kind="page_timeout",
            )
        snapshot = self._snapshot
        outcome: str = await self.lease.do(
            "page",
            lambda page: ActionExecutor(
                page,
                snapshot,
                self.lease.pooled.clipboard,
                seconds=options.action_s,
                scale=options.scale,
            ).do(action),
            seconds=options.action_s * 3 + 5,
        )
        return outcome

    async def _goto(self, action: Goto) -> str:
        url = address(action.url, self.lease.page.url)
        await self._unstick()
        try:
            await self.lease.goto(url, wait_until="commit")
        except playwright().Error as problem:
            why = net_error(str(problem)) or _first_line(str(problem))
            if why == "ERR_ABORTED":  # a download, or the page went elsewhere at once
                return f"{short(url, MAX_URL_CHARS)} gave no page."
            kind = "invalid_url" if why in ("ERR_NAME_NOT_RESOLVED", "ERR_INVALID_URL") else "navigation"
            raise ToolError(f"{short(url, MAX_URL_CHARS)} could not be opened: {why}", kind=kind) from None
        return f"Opened {short(url, MAX_URL_CHARS)}."

    async def _back(self) -> str:
        before = self.lease.page.url
        if await self._unstick():
            earlier = [url for url in self._visited_urls if url != before]
            await self.lease.goto(earlier[-1] if earlier else self.start_url, wait_until="commit")
            return "Went back."
        if not await self.lease.do("page", _has_before):
            raise ToolError("there is no page to go back to", kind="nowhere")
        await self.lease.do("navigate", lambda page: page.go_back(wait_until="commit", timeout=0))
        return "Went back."

    async def _unstick(self) -> bool:
        """Replace a page that does not answer: it cannot even be navigated away from."""
        if self._snapshot is not None or not self._mute:
            return False
        await self.lease.renew_page()
        self._known_pages = self.lease.pages
        return True

    def _tab(self, action: Tab) -> str:
        self.lease.show(self._numbered_tab(action.number))
        return f"Switched to tab {action.number}."

    async def _close_tab(self, action: Close) -> str:
        closing = self._numbered_tab(action.number)
        if len(self.lease.pages) == 1:
            raise ToolError("this is the only tab: go to another address instead", kind="not_possible")
        await self.lease.do("page", lambda _: closing.close())
        return f"Closed tab {action.number}."

    def _numbered_tab(self, number: int) -> Page:
        pages = self.lease.pages
        if number > len(pages):
            raise ToolError(f"there is no tab {number}; there are {len(pages)}", kind="bad_action")
        return pages[number - 1]

    def _take_new_tab(self) -> bool:
        """Make the newest tab that the action has opened the current one, if there is any."""
        if self._over:
            return False
        pages = self.lease.pages
        new = [page for page in pages if page not in self._known_pages]
        self._known_pages = pages
        if new:
            self.lease.show(new[-1])
        return bool(new)

    async def _settle(self, mark: Mark) -> None:
        options = self.options
        try:
            await self.waits.settle(
                self.lease.do,
                self.lease.page,
                self._traffic,
                mark,
                quiet_s=options.quiet_s,
                cap_s=options.settle_s,
                stuck_s=options.action_s,
            )
        except PageTimeout:
            self._stuck = True
        except PageClosed:
            pass  # the next snapshot shows the current state
        except playwright().Error as problem:
            if not went_away(problem):
                raise

    async def observe(self) -> PageObservation:
        """Observe the current page. The element numbers of earlier snapshots are invalid afterwards."""
        began = time.monotonic()
        self._snapshot = None
        shot: Picture | None = None
        self._mute = False
        if not self.loading:
            try:
                self._snapshot = snapshot = await self._taken_snapshot()
                shot = await self._pictured(snapshot) if self.options.picture else None
            except Departed:
                self._snapshot = None  # its document goes away during the snapshot
            except (PageTimeout, PageClosed, Unreadable, playwright().Error):
                self._mute = not self.loading
        return self._observation(shot, time.monotonic() - began)

    @property
    def loading(self) -> bool:
        """Whether the page is between two documents, and cannot answer."""
        return self._traffic.loading(self.lease.page)

    async def _pictured(self, snapshot: PageSnapshot) -> Picture:
        camera, options = self.lease.pooled.camera, self.options
        picture: Picture = await self.lease.do(
            "page",
            lambda page: self._traffic.asked(
                page, camera.picture(page, snapshot, format=options.image, marked=options.marked)
            ),
            seconds=options.observe_s,
        )
        return picture

    async def _taken_snapshot(self) -> PageSnapshot:
        caps, left = self.options.caps, LOOKS
        seconds = self.options.observe_s * (STUCK_SHARE if self._stuck else 1.0)
        while True:
            left -= 1
            try:
                snapshot: PageSnapshot = await self.lease.do(
                    "page",
                    lambda page: self._traffic.asked(page, take_snapshot(page, caps, self._holders)),
                    seconds=seconds,
                )
                self._visited_urls = [*self._visited_urls[-50:], snapshot.url]
                return snapshot
            except playwright().Error as problem:
                if not left or not went_away(problem):
                    raise
                await self._settle(self._traffic.mark())

    def _observation(self, shot: Picture | None, seconds: float) -> PageObservation:
        dialogs = tuple(self.lease.dialogs[self._dialogs :])
        self._dialogs = len(self.lease.dialogs)
        unopened, self.lease.unopened = self.lease.unopened, 0
        return observation_of(
            self.lease.page,
            self.lease.pages,
            self._snapshot,
            picture=shot,
            dialogs=dialogs,
            unopened=unopened,
            state="The page does not answer." if self._mute else "The page is still loading.",
            has_text=self.options.has_text,
            seconds=seconds,
        )


async def _has_before(page: Page) -> bool:
    """Whether there is a page to go back to. The blank page before the episode's first one does not count."""
    session = await page.context.new_cdp_session(page)
    history = await session.send("Page.getNavigationHistory")
    await session.detach()
    now = history["currentIndex"]
    return bool(now > 0 and history["entries"][now - 1]["url"] != BLANK)


def _first_line(problem: str) -> str:
    """Playwright's message without its call log."""
    return short(problem.strip().splitlines()[0] if problem.strip() else "it was not possible", 300)
