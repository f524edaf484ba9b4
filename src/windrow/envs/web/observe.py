"""What a policy gets to see of a page: its text in reading order with numbered elements, a picture of it, or both.

A look is one walk over each document, bounded in nodes, time and characters; nothing is changed in the page. The
numbers of a look hold until the next one.
"""

from __future__ import annotations

import asyncio
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec

from windrow.envs.web.waits import went_away
from windrow.errors import ToolError
from windrow.records import Json

if TYPE_CHECKING:
    from playwright.async_api import ElementHandle, Frame, JSHandle, Page

MAX_FRAMES = 8  # of a page, its own document among them
MAX_URL_CHARS = 300
MAX_TITLE_CHARS = 120


_ROLE_AND_NAME = re.compile(r'\[\d+\] (\S+(?: "[^"]*")?)')


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a page is looked at."""

    max_chars: int = 8_000
    max_elements: int = 200
    max_nodes: int = 50_000
    budget_ms: int = 2_000


class Part(msgspec.Struct):
    """What was seen of one document; `first` is the number before its first element's."""

    frame: Frame
    handle: JSHandle
    first: int
    seen: dict[str, Any]
    offset: tuple[float, float] = (0.0, 0.0)


class Look:
    """One look at a page. `close` lets go of its elements."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts
        top = parts[0].seen
        self.url = str(top["url"])
        self.title = str(top["title"])
        self.status: int | None = top["status"]
        self.beginning = str(top["beginning"])
        self.text_chars = int(top["text"])
        self.captcha = sum(int(part.seen["captcha"]) for part in parts)
        self.scroll: tuple[int, int, int] = tuple(top["scroll"])
        self.elements = sum(int(part.seen["found"]) for part in parts)

    @property
    def cut(self) -> bool:
        """Whether something of the page is not told."""
        return any(part.seen["cut"] or part.seen["above"] or part.seen["below"] for part in self._parts)

    @property
    def listed(self) -> int:
        return sum(bool(number) for part in self._parts for _, number in part.seen["lines"])

    def body(self) -> str:
        """The page in words: its text and its elements, in reading order."""
        lines: list[str] = []
        for part in self._parts:
            seen = part.seen
            if part is not self._parts[0] and seen["lines"]:
                lines.append(f"(frame {short(part.frame.url, MAX_URL_CHARS)})")
            if seen["above"]:
                lines.append(f"(… {seen['above']} lines above the screen are left out: scroll up)")
            lines += [text for text, _ in seen["lines"]]
            if seen["below"]:
                lines.append(f"(… {seen['below']} more lines are left out: scroll down)")
            elif seen["cut"]:
                lines.append("(… the page is larger than what is looked at)")
        return "\n".join(lines) or "(nothing to read or to use)"

    def boxes(self) -> list[tuple[int, list[float]]]:
        """The elements that are told of, with their place on the screen: number, [x, y, width, height]."""
        found: list[tuple[int, list[float]]] = []
        for part in self._parts:
            for number, (x, y, width, height) in part.seen["boxes"]:
                found.append((number, [x + part.offset[0], y + part.offset[1], width, height]))
        return found

    def line(self, number: int) -> str:
        """How the element with this number was told of: `link "Apples"`."""
        for part in self._parts:
            for text, told in part.seen["lines"]:
                if told == number and (found := _ROLE_AND_NAME.match(text)):
                    return short(found[1], 80)
        return "element"

    async def element(self, number: int) -> ElementHandle:
        """The element with this number, if the page still has it; ToolError says so to the policy."""
        for part in self._parts:
            place = number - part.first - 1
            if 0 <= place < part.seen["found"]:
                found = await _taken(part, place)
                if found is None:
                    raise ToolError(f"element {number} is no longer on the page", kind="no_element")
                return found
        raise ToolError(
            f"there is no element {number}; they are numbered 1 to {self.elements}", kind="no_element"
        )

    async def close(self) -> None:
        for part in self._parts:
            await _dispose(part.handle)

    def told(self) -> dict[str, Json]:
        """For the record: how much was seen, and how much of it was told."""
        return {
            "elements": self.elements,
            "listed": self.listed,
            "cut": self.cut,
            "frames": len(self._parts),
            "nodes": sum(int(part.seen["nodes"]) for part in self._parts),
        }


async def look(page: Page, caps: Caps) -> Look:
    """Look at the page and the frames in it. A frame that goes away meanwhile is left out; the page itself raises."""
    parts = [await _part(page.main_frame, caps, 0, caps.max_chars)]
    left = caps.max_chars - sum(len(text) + 1 for text, _ in parts[0].seen["lines"])
    for frame in page.frames[1:MAX_FRAMES]:
        found = parts[-1].first + parts[-1].seen["found"]
        part = await _inner(frame, caps, found, left)
        if part is not None:
            parts.append(part)
            left -= sum(len(text) + 1 for text, _ in part.seen["lines"])
    return Look(parts)


async def _inner(frame: Frame, caps: Caps, first: int, left: int) -> Part | None:
    from playwright.async_api import Error

    if left < 100:
        return None
    try:
        holder = await frame.frame_element()
        box = await holder.bounding_box()
        if box is None or box["width"] < 2 or box["height"] < 2 or not await holder.is_visible():
            return None
        async with asyncio.timeout(caps.budget_ms / 1000 + 1):  # a frame of another site may be stuck
            part = await _part(frame, caps, first, left)
        edge = await holder.evaluate("el => [el.clientLeft, el.clientTop]")
        part.offset = (box["x"] + edge[0], box["y"] + edge[1])
        return part
    except (Error, TimeoutError):
        return None


async def _part(frame: Frame, caps: Caps, first: int, max_chars: int) -> Part:
    handle = await frame.evaluate_handle(
        _script(),
        {
            "maxNodes": caps.max_nodes,
            "budgetMs": caps.budget_ms,
            "maxChars": max_chars,
            "maxElements": caps.max_elements,
            "first": first,
        },
    )
    seen = await handle.evaluate("found => found.seen")
    return Part(frame, handle, first, seen)


async def _taken(part: Part, place: int) -> ElementHandle | None:
    from playwright.async_api import Error

    try:
        found = await part.handle.evaluate_handle(
            "(found, place) => found.elements[place].isConnected ? found.elements[place] : null", place
        )
    except Error as problem:
        if went_away(problem):
            return None
        raise
    return found.as_element()


async def _dispose(handle: JSHandle) -> None:
    from playwright.async_api import Error

    try:
        await handle.dispose()
    except Error:
        pass  # its document is gone, and everything in it


@cache
def _script() -> str:
    return files("windrow.envs.web").joinpath("page.js").read_text(encoding="utf-8")


def short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
