"""What runs in every document of a context before the page's own scripts, and the clipboard of the context.

Chromium has one clipboard for all contexts of a browser. So the events of copying and pasting are answered inside the
page: what was copied is told to `Clipboard`, and put into the document that has the focus before the keys are pressed that
paste it. A page can do no more to it than set the text of its own context.
"""

from __future__ import annotations

import secrets
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Frame, Page

NAME = f"_{secrets.token_hex(16)}"  # by which our scripts find each other: no page knows it
MAX_CLIPBOARD_CHARS = 1_000_000
MAX_DEPTH = 8  # of frames in frames
_PASTES = frozenset({"control+v", "control+shift+v", "shift+control+v", "shift+insert", "meta+v"})
_GIVE = "([name, held]) => { dispatchEvent(new CustomEvent(name, { detail: { held } })); }"


class Clipboard:
    """The text on the clipboard of one context. It is empty when a lease begins."""

    def __init__(self) -> None:
        self.text = ""

    async def install(self, context: BrowserContext) -> None:
        """Answer the clipboard events of all documents of this context from now on."""
        await context.expose_binding(NAME, self._copied)
        await context.add_init_script(script=f"({_script()})({NAME!r})")

    def clear(self) -> None:
        self.text = ""

    async def before(self, page: Page, key: str) -> None:
        """Make ready for a key that may paste: the document with the focus gets the text."""
        if key.replace(" ", "").lower() in _PASTES:
            await (await _focused(page)).evaluate(_GIVE, [NAME, self.text])

    def _copied(self, source: Any, text: Any = "") -> None:
        if isinstance(text, str) and len(text) <= MAX_CLIPBOARD_CHARS:
            self.text = text


async def _focused(page: Page) -> Frame:
    frame = page.main_frame
    for _ in range(MAX_DEPTH):
        element = (await frame.evaluate_handle("document.activeElement")).as_element()
        inner = await element.content_frame() if element is not None else None
        if inner is None:
            break
        frame = inner
    return frame


@cache
def _script() -> str:
    return files("windrow.envs.web").joinpath("document.js").read_text(encoding="utf-8")
