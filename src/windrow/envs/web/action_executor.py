"""Doing what an action says, in a page. What comes of it is told in words; ToolError tells why it could not be done.

Playwright's own checks hold: an element is used once it is visible, still and enabled, and nothing lies on it. What
it sets off is waited for elsewhere (`waits`). What closes the page or kills its renderer is not caught here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import msgspec

from windrow.envs.web.actions import Action, Click, Drag, Hover, Press, Scroll, Select, Type, name_of
from windrow.envs.web.page_report import Unreadable, pair, read_options
from windrow.envs.web.page_snapshot import PageSnapshot, short
from windrow.errors import ToolError

if TYPE_CHECKING:
    from playwright.async_api import ElementHandle, Page

MOST_WAITS = 2  # of an action, for an element or for the page
MAX_KEYSTROKES = 500  # a longer text is put in at once
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!\d)")  # what follows a host's colon is its port
_FILLED = frozenset("date time month week datetime-local color range".split())  # no text to be typed

_SCROLL = """(given, { x, y }) => {
  const scrolls = el => {
    const style = getComputedStyle(el);
    const vertical = el.scrollHeight > el.clientHeight + 1 && /auto|scroll|overlay/.test(style.overflowY);
    const level = el.scrollWidth > el.clientWidth + 1 && /auto|scroll|overlay/.test(style.overflowX);
    return y ? vertical : level;
  };
  const root = document.scrollingElement || document.documentElement;
  let target = root;
  if (given) {
    for (let el = given; el && el !== root; el = el.parentElement) if (scrolls(el)) { target = el; break; }
  } else if (y ? root.scrollHeight <= root.clientHeight + 1 : root.scrollWidth <= root.clientWidth + 1) {
    let most = 0;
    for (const el of document.querySelectorAll("body *")) {
      if (!el.clientHeight || !scrolls(el)) continue;
      const area = el.clientWidth * el.clientHeight;
      if (area > most) { most = area; target = el; }
    }
  }
  const screen = target === root ? [innerWidth, innerHeight] : [target.clientWidth, target.clientHeight];
  const before = [target.scrollLeft, target.scrollTop];
  target.scrollBy({ left: x * screen[0], top: y * screen[1], behavior: "instant" });
  return [Math.round(target.scrollLeft - before[0]), Math.round(target.scrollTop - before[1])];
}"""


class Place(msgspec.Struct, frozen=True):
    """Where an action is meant: an element, or a point on the screen."""

    element: ElementHandle | None
    point: tuple[float, float] | None
    name: str


class ActionExecutor:
    """Works in a page, on the elements of a look. `seconds` is the time that each action has."""

    def __init__(
        self, page: Page, look: PageSnapshot, *, seconds: float, scale: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        """`scale`: what the policy's coordinates are multiplied by to be pixels."""
        self._page = page
        self._look = look
        self._ms = seconds * 1000
        self._scale = scale

    async def do(self, action: Action) -> str:
        """What came of it, in words."""
        from playwright.async_api import TimeoutError as PlaywrightTimeout

        deed: Callable[[Any], Awaitable[str]] = getattr(self, f"_{name_of(action)}")
        try:
            async with asyncio.timeout(self._ms / 1000 * MOST_WAITS):  # a mouse has no time limit of its own
                return await deed(action)
        except (PlaywrightTimeout, TimeoutError) as problem:
            raise ToolError(
                f"{name_of(action)} was not possible within {self._ms / 1000:g} s{_reason(str(problem))}",
                kind="not_possible",
            ) from None
        except Unreadable as problem:
            raise ToolError(f"{name_of(action)} was not possible: {problem}", kind="not_possible") from None

    async def _click(self, action: Click) -> str:
        count = 2 if action.double else 1
        if action.element is not None and (point := await self._look.point(action.element)) is not None:
            await self._page.mouse.click(*point, click_count=count)
            return f"Clicked [{action.element}] {self._look.line(action.element)}."
        place = await self._place(action.element, action.x, action.y)
        if place.element is not None:
            await place.element.click(timeout=self._ms, click_count=count, no_wait_after=True)
        else:
            await self._page.mouse.click(*_point(place), click_count=count)
        return f"Clicked {place.name}."

    async def _type(self, action: Type) -> str:
        place = await self._place(action.element, action.x, action.y, optional=True)
        if place.element is not None:
            kind = str(
                await place.element.evaluate(
                    "el => el.tagName === 'INPUT' ? el.type : el.tagName.toLowerCase()"
                )
            )
            if kind == "file":
                raise ToolError("files cannot be uploaded", kind="not_possible")
            if kind == "select":
                raise ToolError("this is a list: use select", kind="not_possible")
            if kind in _FILLED:
                await self._fill(place.element, action.text, kind)
                return f"Set {place.name} to {short(action.text, 80)!r}.{await self._entered(action)}"
            await place.element.click(timeout=self._ms, no_wait_after=True)
            await place.element.select_text(timeout=self._ms)
        elif place.point is not None:
            await self._page.mouse.click(*place.point, click_count=3)
        await self._write(action.text)
        return f"Typed {short(action.text, 80)!r} into {place.name}.{await self._entered(action)}"

    async def _fill(self, element: ElementHandle, text: str, kind: str) -> None:
        """Set a field that takes no text: one that does not understand the value stays empty."""
        from playwright.async_api import Error

        try:
            await element.fill(text, timeout=self._ms)
            understood = not text or await element.input_value(timeout=self._ms) != ""
        except Error as problem:
            if "Malformed value" not in str(problem):
                raise
            understood = False
        if not understood:
            raise ToolError(f"{short(text, 80)!r} is not a value of a {kind} field", kind="not_possible")

    async def _write(self, text: str) -> None:
        keyboard = self._page.keyboard
        if not text:
            await keyboard.press("Delete")
        elif len(text) > MAX_KEYSTROKES:
            await keyboard.insert_text(text)
        else:
            await keyboard.type(text)

    async def _entered(self, action: Type) -> str:
        if not action.enter:
            return ""
        await self._page.keyboard.press("Enter")
        return " Pressed Enter."

    async def _select(self, action: Select) -> str:
        place = await self._place(action.element, None, None)
        assert place.element is not None
        options = read_options(
            await place.element.evaluate(
                "el => [...(el.options || [])].map(o => ({ label: o.label.trim(), value: o.value }))"
            )
        )
        if not options:
            raise ToolError(f"{place.name} is no list to choose from; click it instead", kind="not_possible")
        wanted = action.option.strip()
        chosen = next(
            (n for n, option in enumerate(options) if option.label == wanted or option.value == wanted),
            None,
        )
        if chosen is None:
            shown = ", ".join(repr(short(option.label, 60)) for option in options[:20])
            raise ToolError(f"{place.name} has no option {wanted!r}; it has {shown}", kind="no_option")
        await place.element.select_option(index=chosen, timeout=self._ms, no_wait_after=True)
        return f"Chose {options[chosen].label!r} in {place.name}."

    async def _press(self, action: Press) -> str:
        from playwright.async_api import Error

        try:
            await self._page.keyboard.press(action.key)
        except Error as problem:
            if "Unknown key" not in str(problem):
                raise
            raise ToolError(
                f"there is no key {action.key!r}; keys are such as Enter, Tab, Escape, ArrowDown, a, Control+a",
                kind="bad_action",
            ) from None
        return f"Pressed {action.key}."

    async def _scroll(self, action: Scroll) -> str:
        across = {"left": -1, "right": 1}.get(action.direction, 0) * action.screens
        down = {"up": -1, "down": 1}.get(action.direction, 0) * action.screens
        given = await self._look.element(action.element) if action.element is not None else None
        by = {"x": across, "y": down}
        if given is not None:
            moved = await given.evaluate(_SCROLL, by)
        else:
            moved = await self._page.evaluate(f"by => ({_SCROLL})(null, by)", by)
        across, down = pair(moved)
        pixels = round(abs(across or down))
        if not pixels:
            return f"Scrolled {action.direction}: it is already at the end."
        return f"Scrolled {action.direction} by {pixels} pixels."

    async def _hover(self, action: Hover) -> str:
        place = await self._place(action.element, action.x, action.y)
        if place.element is not None:
            await place.element.hover(timeout=self._ms)
        else:
            await self._page.mouse.move(*_point(place))
        return f"The mouse is on {place.name}."

    async def _drag(self, action: Drag) -> str:
        source = await self._place(action.element, action.x, action.y)
        target = await self._place(action.to, action.to_x, action.to_y)
        start, end = await self._middle(source), await self._middle(target)
        mouse = self._page.mouse
        await mouse.move(*start)
        await mouse.down()
        try:
            await mouse.move(*end, steps=5)
        finally:
            async with asyncio.timeout(self._ms / 1000):  # a page that is stuck does not take it
                await mouse.up()
        return f"Dragged {source.name} onto {target.name}."

    async def _middle(self, place: Place) -> tuple[float, float]:
        if place.element is None:
            return _point(place)
        await place.element.scroll_into_view_if_needed(timeout=self._ms)
        box = await place.element.bounding_box()
        if box is None:
            raise ToolError(f"{place.name} is not visible", kind="not_possible")
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    async def _place(
        self, number: int | None, x: float | None, y: float | None, *, optional: bool = False
    ) -> Place:
        if number is not None:
            element = await self._look.element(number)
            return Place(element, None, f"[{number}] {self._look.line(number)}")
        if x is None or y is None:
            assert optional
            return Place(None, None, "what has the focus")
        point = x * self._scale[0], y * self._scale[1]
        size = self._page.viewport_size
        if size is not None and not (point[0] <= size["width"] and point[1] <= size["height"]):
            raise ToolError(f"({x:g}, {y:g}) is not on the screen", kind="bad_action")
        return Place(None, point, f"({x:g}, {y:g})")


def _point(place: Place) -> tuple[float, float]:
    assert place.point is not None
    return place.point


def _reason(problem: str) -> str:
    """Why Playwright waited, where its log says so."""
    for sign, words in (
        ("intercepts pointer events", "something else lies on it"),
        ("not visible", "it is not visible"),
        ("not enabled", "it is disabled"),
        ("outside of the viewport", "it is outside of the screen"),
        ("not stable", "it keeps moving"),
        ("not editable", "it cannot be edited"),
        ("detached", "it is no longer on the page"),
    ):
        if sign in problem:
            return f": {words}"
    return ""


def address(url: str, page_url: str) -> str:
    """The address that a policy means: as it is, relative to the page, or without its scheme. ToolError: it is none."""
    text = url.strip()
    if text.startswith(("/", "?", "#", "./", "../")):
        text = urljoin(page_url, text)
    elif not _SCHEME.match(text):
        text = f"https://{text}"
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ToolError(f"{short(url, 200)!r} is not an address", kind="invalid_url") from None
    if parts.scheme not in ("http", "https") or not host or any(sign.isspace() for sign in text):
        raise ToolError(
            f"{short(url, 200)!r} is not an address such as https://example.com", kind="invalid_url"
        )
    return text


def net_error(problem: str) -> str | None:
    """Chromium's word for why a page could not be opened, such as ERR_NAME_NOT_RESOLVED."""
    _, found, rest = problem.partition("net::")
    return rest.split()[0].rstrip(".,:") if found and rest.split() else None
