"""Performs actions in a page. The outcome is a sentence; ToolError says why an action was not possible.

Playwright's own checks apply: an element is used once it is visible, still and enabled, and nothing covers it. `waits`
waits for the consequences of an action. Errors of a page that closes or crashes are not caught here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import msgspec

from windrow.envs.web.actions import Action, Click, Drag, Hover, Press, Scroll, Select, Type, name_of
from windrow.envs.web.document_script import Clipboard
from windrow.envs.web.page_report import Option, Unreadable, pair, read_options
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


class ActionTarget(msgspec.Struct, frozen=True):
    """The target of an action: an element, or a point on the screen."""

    element: ElementHandle | None
    point: tuple[float, float] | None
    name: str


class ActionExecutor:
    """Performs actions on the elements of a snapshot. `seconds` is the time limit of each action."""

    def __init__(
        self,
        page: Page,
        snapshot: PageSnapshot,
        clipboard: Clipboard,
        *,
        seconds: float,
        scale: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """`scale`: the factors from the policy's coordinates to pixels."""
        self._page = page
        self._snapshot = snapshot
        self._clipboard = clipboard
        self._ms = seconds * 1000
        self._scale = scale

    async def do(self, action: Action) -> str:
        """Perform the action; returns its outcome, in a sentence."""
        from playwright.async_api import TimeoutError as PlaywrightTimeout

        perform: Callable[[Any], Awaitable[str]] = getattr(self, f"_{name_of(action)}")
        try:
            async with asyncio.timeout(self._ms / 1000 * MOST_WAITS):  # a mouse has no time limit of its own
                return await perform(action)
        except (PlaywrightTimeout, TimeoutError) as problem:
            raise ToolError(
                f"{name_of(action)} was not possible within {self._ms / 1000:g} s{_reason(str(problem))}",
                kind="not_possible",
            ) from None
        except Unreadable as problem:
            raise ToolError(f"{name_of(action)} was not possible: {problem}", kind="not_possible") from None

    async def _click(self, action: Click) -> str:
        count = 2 if action.double else 1
        if action.element is not None and (point := await self._snapshot.point(action.element)) is not None:
            await self._page.mouse.click(*point, click_count=count)
            return f"Clicked [{action.element}] {self._snapshot.line(action.element)}."
        target = await self._target(action.element, action.x, action.y)
        if target.element is not None:
            await target.element.click(timeout=self._ms, click_count=count, no_wait_after=True)
        else:
            await self._page.mouse.click(*_point(target), click_count=count)
        return f"Clicked {target.name}."

    async def _type(self, action: Type) -> str:
        target = await self._target(action.element, action.x, action.y, optional=True)
        if target.element is not None:
            kind = str(
                await target.element.evaluate(
                    "el => el.tagName === 'INPUT' ? el.type : el.tagName.toLowerCase()"
                )
            )
            if kind == "file":
                raise ToolError("files cannot be uploaded", kind="not_possible")
            if kind == "select":
                raise ToolError("this is a list: use select", kind="not_possible")
            if kind in _FILLED:
                await self._fill(target.element, action.text, kind)
                return f"Set {target.name} to {short(action.text, 80)!r}.{await self._entered(action)}"
            await target.element.click(timeout=self._ms, no_wait_after=True)
            await target.element.select_text(timeout=self._ms)
        elif target.point is not None:
            await self._page.mouse.click(*target.point, click_count=3)
        await self._write(action.text)
        return f"Typed {short(action.text, 80)!r} into {target.name}.{await self._entered(action)}"

    async def _fill(self, element: ElementHandle, text: str, kind: str) -> None:
        """Set a field that takes no typed text, such as a date. It stays empty if it does not understand the value."""
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
        target = await self._target(action.element, None, None)
        assert target.element is not None
        options = read_options(
            await target.element.evaluate(
                "el => [...(el.options || [])].map(o => ({ label: o.label.trim(), value: o.value }))"
            )
        )
        if not options:
            raise ToolError(f"{target.name} is no list to choose from; click it instead", kind="not_possible")
        wanted = [action.option] if isinstance(action.option, str) else action.option
        if len(wanted) > 1 and not await target.element.evaluate("el => !!el.multiple"):
            raise ToolError(f"{target.name} takes one option, not {len(wanted)}", kind="no_option")
        chosen = [_option(options, text.strip(), target.name) for text in wanted]
        await target.element.select_option(index=chosen, timeout=self._ms, no_wait_after=True)
        return f"Chose {', '.join(repr(options[number].label) for number in chosen)} in {target.name}."

    async def _press(self, action: Press) -> str:
        from playwright.async_api import Error

        try:
            await self._clipboard.before(self._page, action.key)
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
        element_to_scroll = (
            await self._snapshot.element(action.element) if action.element is not None else None
        )
        by = {"x": across, "y": down}
        if element_to_scroll is not None:
            moved = await element_to_scroll.evaluate(_SCROLL, by)
        else:
            moved = await self._page.evaluate(f"by => ({_SCROLL})(null, by)", by)
        across, down = pair(moved)
        pixels = round(abs(across or down))
        if not pixels:
            return f"Scrolled {action.direction}: it is already at the end."
        return f"Scrolled {action.direction} by {pixels} pixels."

    async def _hover(self, action: Hover) -> str:
        target = await self._target(action.element, action.x, action.y)
        if target.element is not None:
            await target.element.hover(timeout=self._ms)
        else:
            await self._page.mouse.move(*_point(target))
        return f"The mouse is on {target.name}."

    async def _drag(self, action: Drag) -> str:
        source = await self._target(action.element, action.x, action.y)
        target = await self._target(action.to, action.to_x, action.to_y)
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

    async def _middle(self, target: ActionTarget) -> tuple[float, float]:
        if target.element is None:
            return _point(target)
        await target.element.scroll_into_view_if_needed(timeout=self._ms)
        box = await target.element.bounding_box()
        if box is None:
            raise ToolError(f"{target.name} is not visible", kind="not_possible")
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    async def _target(
        self, number: int | None, x: float | None, y: float | None, *, optional: bool = False
    ) -> ActionTarget:
        if number is not None:
            element = await self._snapshot.element(number)
            return ActionTarget(element, None, f"[{number}] {self._snapshot.line(number)}")
        if x is None or y is None:
            assert optional
            return ActionTarget(None, None, "what has the focus")
        point = x * self._scale[0], y * self._scale[1]
        size = self._page.viewport_size
        if size is not None and not (point[0] <= size["width"] and point[1] <= size["height"]):
            raise ToolError(f"({x:g}, {y:g}) is not on the screen", kind="bad_action")
        return ActionTarget(None, point, f"({x:g}, {y:g})")


def _option(options: list[Option], wanted: str, name: str) -> int:
    """The position of the option with this text or value; ToolError names those that there are."""
    for number, option in enumerate(options):
        if wanted in (option.label, option.value):
            return number
    shown = ", ".join(repr(short(option.label, 60)) for option in options[:20])
    raise ToolError(f"{name} has no option {wanted!r}; it has {shown}", kind="no_option")


def _point(target: ActionTarget) -> tuple[float, float]:
    assert target.point is not None
    return target.point


def _reason(problem: str) -> str:
    """The reason for which Playwright waited, if its log names one."""
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
    """The address that a policy gave: absolute, relative to the page, or without a scheme. ToolError if it is none."""
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
    """Chromium's code for a page that could not be opened, such as ERR_NAME_NOT_RESOLVED."""
    _, prefix, rest = problem.partition("net::")
    return rest.split()[0].rstrip(".,:") if prefix and rest.split() else None
