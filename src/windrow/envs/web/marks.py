"""Pictures of a page: as it is, or with the numbers of its elements drawn onto it.

The numbers are drawn in a layer above the page that takes no clicks, and taken away before anything else happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from playwright.async_api import Page

    from windrow.envs.web.observe import Look

Format = Literal["png", "jpeg"]
JPEG_QUALITY = 75
MAX_BYTES = 4_000_000  # of a PNG; one that is larger is taken as JPEG

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


async def picture(page: Page, *, format: Format, marked: Look | None = None) -> Picture:
    """What is on the screen. `marked`: with the numbers of this look."""
    from playwright.async_api import Error

    layer = await page.evaluate_handle(_DRAW, marked.boxes()) if marked is not None else None
    try:
        data, kind = await _taken(page, format), format
        if format == "png" and len(data) > MAX_BYTES:
            data, kind = await _taken(page, "jpeg"), "jpeg"
    finally:
        if layer is not None:
            try:
                await layer.evaluate("layer => layer.remove()")
            except Error:
                pass  # the page went on to another document, and the layer with it
    size = page.viewport_size or {"width": 0, "height": 0}
    return Picture(data, f"image/{kind}", size["width"], size["height"])


async def _taken(page: Page, format: Format) -> bytes:
    quality = JPEG_QUALITY if format == "jpeg" else None
    return await page.screenshot(
        type=format, quality=quality, scale="css", animations="allow", caret="initial"
    )
