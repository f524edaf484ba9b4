"""One episode's browser: actions go in, what came of them and what is to be seen come out.

Every command goes through the lease. After an action the page is waited for until it is at rest; a tab that it opened
becomes the current one. A page that does not answer is told as such, and the episode goes on; a browser that is gone is not
caught here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from windrow.envs.web.action_executor import ActionExecutor, address, net_error
from windrow.envs.web.actions import Action, Back, Goto, Tab, Wait
from windrow.envs.web.failures import PageClosed, PageError, PageTimeout
from windrow.envs.web.launch import playwright
from windrow.envs.web.lease import Lease
from windrow.envs.web.page_report import Unreadable, one_line, whole
from windrow.envs.web.page_snapshot import MAX_TITLE_CHARS, MAX_URL_CHARS, Holders, PageSnapshot, look, short
from windrow.envs.web.screenshots import Picture
from windrow.envs.web.settings import WebOptions
from windrow.envs.web.waits import Departed, Mark, Traffic, Waits, went_away
from windrow.errors import ToolError

if TYPE_CHECKING:
    from playwright.async_api import Page

BLANK = "about:blank"
STUCK_SHARE = 0.2  # of the time of a look, for a page that did not answer just now
MAX_DIALOGS = 3  # that are told of a step
LOOKS = 3  # at a page that goes on to another document while it is looked at


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was to be seen. `look` is None where the page does not answer."""

    url: str
    title: str
    text: str  # in words: where one is, and where wanted what is there
    look: PageSnapshot | None
    picture: Picture | None
    tab: int
    tabs: int
    dialogs: tuple[str, ...]
    seconds: float


class Browsing:
    def __init__(self, lease: Lease, options: WebOptions) -> None:
        self.lease = lease
        self.options = options
        self.waits = Waits()
        self.start_url = BLANK
        self._look: PageSnapshot | None = None
        self._holders = Holders()
        self._stuck = False  # the page did not answer in time, after the last action
        self._mute = False  # nor when it was looked at
        self._been: list[str] = []  # addresses that were seen, the last one last
        self._traffic = Traffic(lease.context)
        self._known = list(lease.pages)
        self._dialogs = len(lease.dialogs)

    def close(self) -> None:
        self._traffic.close()

    async def open(self, url: str) -> None:
        """Open the episode's first page. Raises what opening it raises."""
        mark = self._traffic.mark()
        await self.lease.goto(url, wait_until="commit")
        await self._settle(mark)
        self.start_url = self.lease.page.url

    @property
    def cut_off(self) -> bool:
        """Whether the last page is none, because its host could not be reached: nobody can say what it would have shown."""
        gate = self.lease.gate
        if gate is None or gate.unreached is None or gate.unreached.kind == "no_such_host":
            return False
        return self.lease.page.url.startswith("chrome-error:")

    async def forget(self) -> None:
        """Leave nothing to go back to: what an earlier episode saw in this tab is none of this one's."""

        async def forget(page: Page) -> None:
            session = await page.context.new_cdp_session(page)
            await session.send("Page.resetNavigationHistory")
            await session.detach()

        await self.lease.do("page", forget)

    async def do(self, action: Action) -> str:
        """What came of the action, in words; ToolError says why it could not be done."""
        mark = self._traffic.mark()
        try:
            said = whole(await self._deed(action))
        except PageClosed:
            said = "The page closed itself."
        except PageError as problem:
            raise ToolError(str(problem), kind=problem.kind) from None
        except ToolError as problem:
            raise ToolError(whole(str(problem)), kind=problem.kind) from None
        except playwright().Error as problem:
            raise ToolError(whole(_first_line(str(problem))), kind="not_possible") from None
        finally:
            opened = await self._rest(mark, follow=not isinstance(action, Tab))
        return f"{said} A new tab opened." if opened else said

    async def _rest(self, mark: Mark, *, follow: bool) -> bool:
        """Wait for the page, and for the tab that it opened, if any; whether there is one. `follow`: go there."""
        if self._over:
            return False
        self._stuck = False
        if opened := follow and self._take_new_tab():
            mark = self._traffic.mark()
        await self._settle(mark)
        if follow and not opened and (opened := self._take_new_tab()):
            await self._settle(mark)
        if not self._over:
            self._known = self.lease.pages
        return opened

    @property
    def _over(self) -> bool:
        return self.lease.lost is not None

    async def _deed(self, action: Action) -> str:
        options = self.options
        if isinstance(action, Goto):
            return await self._goto(action)
        if isinstance(action, Back):
            return await self._back()
        if isinstance(action, Tab):
            return self._tab(action)
        if isinstance(action, Wait):
            seconds = min(action.seconds, options.max_wait_s)
            await self.waits.asked(seconds)
            return f"Waited {seconds:g} s."
        if self._look is None:
            raise ToolError(
                "the page does not answer: go back, or open another address"
                if self._mute
                else "the page is still loading: wait, or open another address",
                kind="page_timeout",
            )
        seen = self._look
        said: str = await self.lease.do(
            "page",
            lambda page: ActionExecutor(page, seen, seconds=options.action_s, scale=options.scale).do(action),
            seconds=options.action_s * 3 + 5,
        )
        return said

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
            earlier = [url for url in self._been if url != before]
            await self.lease.goto(earlier[-1] if earlier else self.start_url, wait_until="commit")
            return "Went back."
        if not await self.lease.do("page", _has_before):
            raise ToolError("there is no page to go back to", kind="nowhere")
        await self.lease.do("navigate", lambda page: page.go_back(wait_until="commit", timeout=0))
        return "Went back."

    async def _unstick(self) -> bool:
        """A page that does not answer does not even let itself be left: another takes its place."""
        if self._look is not None or not self._mute:
            return False
        await self.lease.renew_page()
        self._known = self.lease.pages
        return True

    def _tab(self, action: Tab) -> str:
        pages = self.lease.pages
        if action.number > len(pages):
            raise ToolError(f"there is no tab {action.number}; there are {len(pages)}", kind="bad_action")
        self.lease.show(pages[action.number - 1])
        return f"Switched to tab {action.number}."

    def _take_new_tab(self) -> bool:
        """The current tab is the newest that the action has opened, if it has."""
        if self._over:
            return False
        pages = self.lease.pages
        new = [page for page in pages if page not in self._known]
        self._known = pages
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
            pass  # the look that follows says what there is
        except playwright().Error as problem:
            if not went_away(problem):
                raise

    async def observe(self) -> Seen:
        """What is to be seen now. The numbers of earlier looks end with it."""
        began = time.monotonic()
        self._look = None
        shot: Picture | None = None
        self._mute = False
        if not self.loading:
            try:
                self._look = seen = await self._looked()
                shot = await self._pictured(seen) if self.options.picture else None
            except Departed:
                self._look = None  # its document goes away, too late for this look
            except (PageTimeout, PageClosed, Unreadable, playwright().Error):
                self._mute = not self.loading
        return self._seen(shot, time.monotonic() - began)

    @property
    def loading(self) -> bool:
        """Whether the page is between two documents, and cannot be asked anything."""
        return self._traffic.loading(self.lease.page)

    async def _pictured(self, seen: PageSnapshot) -> Picture:
        camera, options = self.lease.place.camera, self.options
        found: Picture = await self.lease.do(
            "page",
            lambda page: self._traffic.asked(
                page, camera.picture(page, seen, format=options.image, marked=options.marked)
            ),
            seconds=options.observe_s,
        )
        return found

    async def _looked(self) -> PageSnapshot:
        caps, left = self.options.caps, LOOKS
        seconds = self.options.observe_s * (STUCK_SHARE if self._stuck else 1.0)
        while True:
            left -= 1
            try:
                found: PageSnapshot = await self.lease.do(
                    "page",
                    lambda page: self._traffic.asked(page, look(page, caps, self._holders)),
                    seconds=seconds,
                )
                self._been = [*self._been[-50:], found.url]
                return found
            except playwright().Error as problem:
                if not left or not went_away(problem):
                    raise
                await self._settle(self._traffic.mark())

    def _seen(self, shot: Picture | None, seconds: float) -> Seen:
        page, pages, found = self.lease.page, self.lease.pages, self._look
        dialogs = tuple(self.lease.dialogs[self._dialogs :])
        self._dialogs = len(self.lease.dialogs)
        url = found.url if found is not None else page.url
        title = short(found.title, MAX_TITLE_CHARS) if found is not None else ""
        lines = [f"Page: {title or '(no title)'}", f"URL: {short(url, MAX_URL_CHARS)}"]
        if len(pages) > 1:
            shown = (
                f"[{n}] {short(tab.url, 100)}{' (current)' * (tab == page)}" for n, tab in _numbered(pages)
            )
            lines.append(f"Tabs: {', '.join(shown)}")
        lines += [
            f"A dialog was closed, which said: {short(one_line(said), 500)}" for said in dialogs[:MAX_DIALOGS]
        ]
        if len(dialogs) > MAX_DIALOGS:
            lines.append(f"({len(dialogs) - MAX_DIALOGS} more dialogs were closed)")
        if found is None:
            lines.append("The page does not answer." if self._mute else "The page is still loading.")
        elif url.startswith("chrome-error:"):
            lines.append("The page could not be opened.")
        else:
            top, height, screen = found.scroll
            if height > screen + 1:
                lines.append(f"Scrolled: {top} of {height - screen} pixels")
            if self.options.has_text:
                lines += ["", found.body()]
        return Seen(
            url=url,
            title=title,
            text="\n".join(lines),
            look=found,
            picture=shot,
            tab=pages.index(page) + 1 if page in pages else 0,
            tabs=len(pages),
            dialogs=dialogs,
            seconds=seconds,
        )


async def _has_before(page: Page) -> bool:
    """Whether the page came from another one; the blank page before the episode's first is none."""
    session = await page.context.new_cdp_session(page)
    history = await session.send("Page.getNavigationHistory")
    await session.detach()
    now = history["currentIndex"]
    return bool(now > 0 and history["entries"][now - 1]["url"] != BLANK)


def _numbered(pages: list[Page]) -> Any:
    return enumerate(pages, start=1)


def _first_line(problem: str) -> str:
    """Playwright's message without its call log."""
    return short(problem.strip().splitlines()[0] if problem.strip() else "it was not possible", 300)
