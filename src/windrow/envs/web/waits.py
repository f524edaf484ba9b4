"""Waits until a page is at rest: by conditions with time limits instead of fixed sleeps. Each wait is recorded.

After an action the page may fetch something, go to another document, or change itself. It is at rest when no request that
began since is still under way, its document is loaded, and its DOM has not changed for a moment. A page that never rests is
observed when the time limit is reached, and the record says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from windrow.records import Json

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Frame, Page, Request, Response

T = TypeVar("T")
Do = Callable[..., Any]  # a lease's: (stage, command of a page, seconds=…)
Mark = frozenset["Request"]
RESTLESS_S = 1.0  # a page that changes all the time, such as a clock, is waited for no longer

# A page itself waits for these; pictures, fonts and beacons may come later.
AWAITED = frozenset({"document", "xhr", "fetch", "script", "stylesheet"})

_QUIET = """(quietMs, capMs) => new Promise(resolve => {
  const began = performance.now();
  let changed = began;
  const watch = new MutationObserver(() => { changed = performance.now(); });
  watch.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  const check = () => {
    const now = performance.now();
    const quiet = now - changed >= quietMs;
    if (quiet || now - began >= capMs) { watch.disconnect(); resolve(quiet); }
    else setTimeout(check, Math.max(1, Math.min(quietMs - (now - changed), capMs - (now - began))));
  };
  setTimeout(check, quietMs);
})"""


class Departed(Exception):
    """The page has left its document, and the next one is not there yet."""


class WaitRecord(msgspec.Struct, frozen=True):
    """One wait: its condition, its duration, and whether the condition came true."""

    what: str
    seconds: float
    reached: bool

    def as_record(self) -> Json:
        return {"what": self.what, "seconds": round(self.seconds, 4), "reached": self.reached}


class Traffic:
    """The requests of a context that are under way, and which of its pages have loaded their document."""

    def __init__(self, context: BrowserContext) -> None:
        self._under_way: set[Request] = set()
        self._unanswered: set[Request] = set()  # those for a document that the server has not answered
        self._loaded: set[Page] = set()  # until they go to another document
        self._changed = asyncio.Event()
        self._context = context
        self._listeners: dict[Any, Callable[..., None]] = {
            "request": self._began,
            "response": self._answered,
            "requestfinished": self._ended,
            "requestfailed": self._ended,
        }
        for event, listener in self._listeners.items():
            context.on(event, listener)

    def close(self) -> None:
        for event, listener in self._listeners.items():
            self._context.remove_listener(event, listener)
        for page in self._loaded:
            page.remove_listener("framenavigated", self._navigated)

    def mark(self) -> Mark:
        """The requests that are under way now, and so are no consequence of the next action."""
        return frozenset(self._under_way)

    def since(self, mark: Mark, page: Page) -> bool:
        """Whether a request that this page began after `mark` is still under way."""
        return any(request not in mark and _of(request, page) for request in self._under_way)

    def loading(self, page: Page) -> bool:
        """Whether the page is between two documents: Chromium does not answer until the next one comes."""
        return any(_frame(request) == page.main_frame for request in self._unanswered)

    async def asked(self, page: Page, question: Awaitable[T]) -> T:
        """The page's answer; Departed as soon as it is between two documents, since then there is none."""
        answer = asyncio.ensure_future(question)
        leaving = asyncio.ensure_future(self._until(lambda: self.loading(page)))
        try:
            await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise Departed
            return answer.result()
        finally:
            for task in (answer, leaving):
                task.cancel()

    async def loaded(self, page: Page, cap_s: float) -> bool:
        """Wait until the page has loaded its document, at most `cap_s`. It is asked once per document."""
        from playwright.async_api import Error

        if page in self._loaded:
            return True
        try:
            await page.wait_for_load_state("load", timeout=max(1.0, cap_s * 1000))
        except Error:
            return False  # the cap; a page that is closed or gone is found out by the next command
        self._loaded.add(page)
        page.on("framenavigated", self._navigated)
        return True

    def _navigated(self, frame: Frame) -> None:
        """A frame has gone to another document, or to a part of the same one: the page may no longer be loaded."""
        page = frame.page
        if page in self._loaded:
            self._loaded.discard(page)
            page.remove_listener("framenavigated", self._navigated)

    async def rest(self, mark: Mark, page: Page, cap_s: float) -> bool:
        """Wait until no request that began after `mark` is under way, at most `cap_s`."""
        try:
            async with asyncio.timeout(cap_s):
                await self._until(lambda: not self.since(mark, page))
        except TimeoutError:
            return False
        return True

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            changed = self._changed
            await changed.wait()

    def _tell(self) -> None:
        """Wake the tasks that wait for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _began(self, request: Request) -> None:
        if request.resource_type in AWAITED:
            self._under_way.add(request)
        if request.is_navigation_request():
            self._unanswered.add(request)
        self._tell()

    def _answered(self, response: Response) -> None:
        self._unanswered.discard(response.request)
        self._tell()

    def _ended(self, request: Request) -> None:
        self._under_way.discard(request)
        self._unanswered.discard(request)
        self._tell()


def _of(request: Request, page: Page) -> bool:
    frame = _frame(request)
    if frame is None:
        return request.is_navigation_request()  # of a tab that is being opened
    return frame.page == page


def _frame(request: Request) -> Frame | None:
    """None for a request of a service worker or of a tab that is being opened."""
    from playwright.async_api import Error

    try:
        return request.frame
    except Error:
        return None


class Waits:
    """The waits of one step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.done: list[WaitRecord] = []

    async def settle(
        self,
        do: Do,
        page: Page,
        traffic: Traffic,
        mark: Mark,
        *,
        quiet_s: float,
        cap_s: float,
        stuck_s: float,
    ) -> bool:
        """Wait until the page is at rest, at most `cap_s`; returns whether it is. Only questions to the page go through `do`.

        A stuck page cannot keep the limit itself: it gets `stuck_s` more.
        """
        deadline = self._clock() + cap_s
        while (left := deadline - self._clock()) > 0:
            if traffic.since(mark, page) and not await self._timed(
                "requests", traffic.rest(mark, page, left)
            ):
                return False
            if not await self._timed("load", traffic.loaded(page, deadline - self._clock())):
                return False
            cap = max(0.001, min(deadline - self._clock(), quiet_s + RESTLESS_S))
            ask = partial(_still, traffic=traffic, quiet_s=quiet_s, cap_s=cap)
            still = await self._timed("quiet", do("page", ask, seconds=cap + stuck_s))
            if still is not None and not traffic.since(mark, page):
                return bool(still)
        return False

    async def asked(self, seconds: float) -> None:
        """A wait that the policy asked for."""
        await self._timed("asked", asyncio.sleep(seconds, True))

    async def _timed(self, what: str, wait: Awaitable[bool | None]) -> bool | None:
        began = self._clock()
        reached: bool | None = None
        try:
            reached = await wait
        finally:
            self.done.append(WaitRecord(what, self._clock() - began, bool(reached)))
        return reached

    def taken(self) -> list[Json]:
        """The waits since the last call, for the record."""
        done, self.done = self.done, []
        return [wait.as_record() for wait in done]


async def _still(page: Page, *, traffic: Traffic, quiet_s: float, cap_s: float) -> bool | None:
    """Whether the DOM came to rest; None if the document went away meanwhile: then the next one is asked."""
    from playwright.async_api import Error

    try:
        quiet = page.evaluate(f"({_QUIET})({quiet_s * 1000:.3f}, {cap_s * 1000:.3f})")
        return bool(await traffic.asked(page, quiet))
    except Departed:
        return None
    except Error as problem:
        if went_away(problem):
            return None
        raise


def went_away(problem: Exception) -> bool:
    """Whether a page could not answer because it went on to another document."""
    message = str(problem)
    return (
        "context was destroyed" in message
        or "because of a navigation" in message
        or "frame was detached" in message.lower()
    )
