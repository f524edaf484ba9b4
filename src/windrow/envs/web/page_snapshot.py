"""A snapshot of a page: its text in reading order, with numbered elements.

It is one walk over each document, bounded in nodes, time and characters; the page is not changed. The element numbers of a
snapshot are valid until the next one. If the policy only gets a picture, no document is walked: the snapshot then has the
page's address and state.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from windrow.envs.web.document_script import NAME
from windrow.envs.web.page_report import Unreadable, max_reply, pair, read
from windrow.envs.web.waits import went_away
from windrow.errors import ToolError
from windrow.records import Json

if TYPE_CHECKING:
    from playwright.async_api import ElementHandle, Frame, JSHandle, Page

T = TypeVar("T")

MAX_FRAMES = 8  # of a page, its own document among them
MAX_URL_CHARS = 300
MAX_TITLE_CHARS = 120


MOST_HELD = 32  # documents

_TAKE = """(holder, place) => {
  const el = holder.elements[place];
  return !el || !el.isConnected ? null : el.disabled ? "disabled" : el;
}"""
# The middle of its visible part, if a click there hits the element.
_AIM = """(holder, place) => {
  const el = holder.elements[place];
  if (!el || !el.isConnected || el.disabled) return null;
  let box = el.getBoundingClientRect();
  if (box.top < 0 || box.left < 0 || box.bottom > innerHeight || box.right > innerWidth) {
    el.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
    box = el.getBoundingClientRect();
  }
  const x = (Math.max(0, box.left) + Math.min(innerWidth, box.right)) / 2;
  const y = (Math.max(0, box.top) + Math.min(innerHeight, box.bottom)) / 2;
  let hit = document.elementFromPoint(x, y);
  while (hit && hit.shadowRoot && hit !== el) {
    const deeper = hit.shadowRoot.elementFromPoint(x, y);
    if (!deeper || deeper === hit) break;
    hit = deeper;
  }
  return hit && (hit === el || el.contains(hit)) && getComputedStyle(el).visibility === "visible" ? [x, y] : null;
}"""
_ROLE_AND_NAME = re.compile(r'\[\d+\] (\S+(?: "[^"]*")?)')


class SnapshotLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a page is read. `walk`: also its text and its elements."""

    walk: bool = True
    max_chars: int = 8_000
    max_elements: int = 200
    max_nodes: int = 50_000
    budget_ms: int = 2_000


class Part(msgspec.Struct):
    """The snapshot of one document. `handle` holds its elements; their numbers begin after `first`."""

    frame: Frame
    handle: JSHandle
    first: int
    seen: dict[str, Any]
    offset: tuple[float, float] = (0.0, 0.0)


class ElementHolders:
    """The object that is held in each document between two snapshots: our script, and the elements that it found.

    No script of the page can reach it. It ends with its document.
    """

    def __init__(self) -> None:
        self._of: dict[Frame, JSHandle] = {}

    async def ask(self, frame: Frame, bounds: dict[str, int | bool]) -> tuple[JSHandle, Any]:
        """The holder of the elements of the frame's document, and our script's report on it."""
        from playwright.async_api import Error

        # Part of the expression: Playwright would check an argument value by value.
        ask = f"holder => holder.look(holder, {msgspec.json.encode(bounds).decode()})"
        holder = self._of.get(frame)
        if holder is not None:
            try:
                return holder, await holder.evaluate(ask)
            except Error:  # it belonged to an earlier document; any other error is raised again below
                del self._of[frame]
        if len(self._of) > MOST_HELD:
            self._of.clear()
        holder = self._of[frame] = await frame.evaluate_handle(_holder())
        return holder, await holder.evaluate(ask)


class PageSnapshot:
    """One snapshot of a page. Its element numbers are valid until the next one."""

    def __init__(self, parts: list[Part], *, walked: bool = True) -> None:
        self._parts = parts
        self._walked = walked
        top = parts[0].seen
        self.url = str(top["url"])
        self.title = str(top["title"])
        self.status: int | None = top["status"]
        self.beginning = str(top["beginning"])
        self.text_chars = int(top["text"])
        self.captcha = sum(int(part.seen["captcha"]) for part in parts)
        self.scroll: tuple[int, int, int] = tuple(top["scroll"])
        self.fonts_loading = bool(top["fonts"])
        self.elements = sum(int(part.seen["found"]) for part in parts)

    @property
    def cut(self) -> bool:
        """Whether a part of the page is left out."""
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
        """The listed elements with their boxes on the screen: number, [x, y, width, height]."""
        boxes: list[tuple[int, list[float]]] = []
        for part in self._parts:
            for number, (x, y, width, height) in part.seen["boxes"]:
                boxes.append((number, [x + part.offset[0], y + part.offset[1], width, height]))
        return boxes

    def line(self, number: int) -> str:
        """The description of the element with this number: `link "Apples"`."""
        for part in self._parts:
            for text, element_number in part.seen["lines"]:
                if element_number == number and (match := _ROLE_AND_NAME.match(text)):
                    return short(match[1], 80)
        return "element"

    async def element(self, number: int) -> ElementHandle:
        """The element with this number; ToolError tells the policy if it is gone or disabled."""
        part, position = self._position(number)
        handle = await _unless_gone(part.handle.evaluate_handle(_TAKE, position))
        element = handle.as_element() if handle is not None else None
        if element is not None:
            return element
        if handle is not None and await handle.json_value() == "disabled":
            raise ToolError(f"[{number}] {self.line(number)} is disabled", kind="not_possible")
        raise ToolError(f"element {number} is no longer on the page", kind="no_element")

    async def point(self, number: int) -> tuple[float, float] | None:
        """A point where a click hits this element and nothing that covers it; None if there is no such point."""
        part, position = self._position(number)
        if part is not self._parts[0]:
            return None  # in a frame, whose coordinates are not the screen's
        point = await _unless_gone(part.handle.evaluate(_AIM, position))
        return pair(point) if point is not None else None

    def _position(self, number: int) -> tuple[Part, int]:
        for part in self._parts:
            position = number - part.first - 1
            if 0 <= position < part.seen["found"]:
                return part, position
        raise ToolError(
            f"there is no element {number}; they are numbered 1 to {self.elements}", kind="no_element"
        )

    def as_record(self) -> dict[str, Json]:
        """For the record: how much of the page was read, and how much of it was listed; only where it was walked."""
        if not self._walked:
            return {"frames": len(self._parts)}
        return {
            "elements": self.elements,
            "listed": self.listed,
            "cut": self.cut,
            "frames": len(self._parts),
            "nodes": sum(int(part.seen["nodes"]) for part in self._parts),
        }


async def take_snapshot(page: Page, caps: SnapshotLimits, holders: ElementHolders) -> PageSnapshot:
    """A snapshot of the page and its frames. A frame that goes away meanwhile is left out; if the page does, this raises."""
    parts = [await _part(page.main_frame, caps, 0, caps.max_chars, holders)]
    left = caps.max_chars - sum(len(text) + 1 for text, _ in parts[0].seen["lines"])
    for frame in page.frames[1:MAX_FRAMES]:
        first = parts[-1].first + parts[-1].seen["found"]
        part = await _inner(frame, caps, first, left, holders)
        if part is not None:
            parts.append(part)
            left -= sum(len(text) + 1 for text, _ in part.seen["lines"])
    return PageSnapshot(parts, walked=caps.walk)


async def _inner(
    frame: Frame, caps: SnapshotLimits, first: int, left: int, holders: ElementHolders
) -> Part | None:
    from playwright.async_api import Error

    if left < 100:
        return None
    try:
        holder = await frame.frame_element()
        box = await holder.bounding_box()
        if box is None or box["width"] < 2 or box["height"] < 2 or not await holder.is_visible():
            return None
        async with asyncio.timeout(caps.budget_ms / 1000 + 1):  # a frame of another site may be stuck
            part = await _part(frame, caps, first, left, holders)
        edge = pair(await holder.evaluate("el => [el.clientLeft, el.clientTop]"))
        part.offset = (box["x"] + edge[0], box["y"] + edge[1])
        return part
    except (Error, TimeoutError, Unreadable):
        return None


async def _part(
    frame: Frame, caps: SnapshotLimits, first: int, max_chars: int, holders: ElementHolders
) -> Part:
    bounds = {
        "walk": caps.walk,
        "maxNodes": caps.max_nodes,
        "budgetMs": caps.budget_ms,
        "maxChars": max_chars,
        "maxElements": caps.max_elements,
        "maxReply": max_reply(max_chars, caps.max_elements),
        "first": first,
    }
    handle, reply = await holders.ask(frame, bounds)
    return Part(frame, handle, first, read(reply, max_chars, caps.max_elements))


async def _unless_gone(answer: Awaitable[T]) -> T | None:
    """The page's answer; None if it has gone to another document."""
    from playwright.async_api import Error

    try:
        return await answer
    except Error as problem:
        if went_away(problem):
            return None
        raise


@cache
def _holder() -> str:
    script = files("windrow.envs.web").joinpath("page.js").read_text(encoding="utf-8")
    return f"""() => {{
      const request = {{}};
      dispatchEvent(new CustomEvent({NAME!r}, {{ detail: request }}));
      const signs = request.signs || {{ heard: new WeakSet(), svg: true }};  // it has not run here: a page of before
      return {{ elements: [], signs, look: {script} }};
    }}"""


def short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
