"""Screenshots of a page: as it is, or with the numbers of its elements drawn onto it.

The numbers are drawn in a layer above the page that takes no clicks, and removed at once. The picture comes directly from
Chromium: Playwright's own screenshot takes five round trips and a PNG whose compression takes as long as everything else.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Page

    from windrow.envs.web.page_snapshot import PageSnapshot

Format = Literal["png", "jpeg"]
JPEG_QUALITY = 75
MAX_BYTES = 4_000_000  # of a PNG; one that is larger is taken as JPEG
FONTS_MS = 3_000  # for fonts: Chromium shows no text before its fonts have loaded, up to this limit

_FONTS = "ms => Promise.race([document.fonts.ready.then(() => 0), new Promise(done => setTimeout(done, ms))])"

_DRAW = """boxes => {
  const layer = document.createElement("div");
  layer.style.cssText = "all:initial;position:fixed;inset:0;margin:0;padding:0;border:0;width:100vw;height:100vh;"
    + "background:transparent;pointer-events:none;z-index:2147483647;overflow:hidden;display:block";
  const inside = layer.attachShadow({ mode: "closed" });
  const colours = ["#c00", "#06c", "#070", "#90c", "#a50", "#077"];
  for (const [number, [x, y, width, height]] of boxes) {
    if (x + width < 0 || y + height < 0 || x > innerWidth || y > innerHeight) continue;
    const colour = colours[number % colours.length];
    const frame = document.createElement("div");
    frame.style.cssText = `position:absolute;box-sizing:border-box;border:1px solid ${colour};`
      + `left:${x}px;top:${y}px;width:${width}px;height:${height}px`;
    const label = document.createElement("div");
    label.textContent = number;
    label.style.cssText = `position:absolute;background:${colour};color:#fff;font:bold 11px/13px sans-serif;padding:0 2px;`
      + `left:${Math.max(0, Math.min(x, innerWidth - 16))}px;top:${Math.max(0, Math.min(y - 10, innerHeight - 13))}px`;
    inside.append(frame, label);
  }
  document.documentElement.append(layer);
  if (layer.showPopover) {  // above dialogs too
    layer.popover = "manual";
    layer.showPopover();
  }
  return layer;
}"""


class Picture(msgspec.Struct, frozen=True):
    data: bytes
    media_type: str
    width: int
    height: int


class Camera:
    """Takes pictures of the pages of one browser context. Each page has a debugging session, made for its first picture."""

    def __init__(self) -> None:
        self._sessions: dict[Page, CDPSession] = {}

    async def picture(
        self, page: Page, snapshot: PageSnapshot, *, format: Format, marked: bool = False
    ) -> Picture:
        """The screen after its fonts have loaded; `marked`: with the element numbers of this snapshot."""
        from playwright.async_api import Error

        if snapshot.fonts_loading:
            await page.evaluate(_FONTS, FONTS_MS)
        layer = await page.evaluate_handle(_DRAW, snapshot.boxes()) if marked else None
        try:
            data, kind = await self._taken(page, format)
        finally:
            if layer is not None:
                try:
                    await layer.evaluate("layer => layer.remove()")
                except Error:
                    pass  # the page went on to another document, and the layer with it
        size = page.viewport_size or {"width": 0, "height": 0}
        return Picture(data, f"image/{kind}", size["width"], size["height"])

    async def _taken(self, page: Page, format: Format) -> tuple[bytes, Format]:
        if format == "png":
            for quickly in (True, False):  # compressed well, it may be small enough
                data = await self._captured(page, {"format": "png", "optimizeForSpeed": quickly})
                if len(data) <= MAX_BYTES:
                    return data, "png"
        return await self._captured(page, {"format": "jpeg", "quality": JPEG_QUALITY}), "jpeg"

    async def _captured(self, page: Page, how: dict[str, Any]) -> bytes:
        from playwright.async_api import Error

        session = self._sessions.get(page)
        if session is None:
            self._sessions = {
                open_page: session_of_page
                for open_page, session_of_page in self._sessions.items()
                if not open_page.is_closed()
            }
            session = self._sessions[page] = await page.context.new_cdp_session(page)
        try:
            reply = await session.send("Page.captureScreenshot", how)
        except Error:
            # It may have ended with a renderer; the next picture has a new one.
            self._sessions.pop(page, None)
            raise
        return base64.b64decode(reply["data"])
