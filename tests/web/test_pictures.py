"""Pictures of pages in a real Chromium: what is on the screen, to the pixel."""

from __future__ import annotations

import asyncio
import base64
import struct
import zlib
from typing import Any

import pytest

from tests.web.origins import Origin, Reply
from tests.web.pools import LONG_S, pooled
from tests.web.sites import Sites
from windrow.envs.web import screenshots
from windrow.envs.web.page_snapshot import ElementHolders, SnapshotLimits, take_snapshot
from windrow.envs.web.screenshots import Picture

pytestmark = pytest.mark.slow

SIZE = {"width": 500, "height": 420}
COLOURFUL = """<style>body {margin: 0; height: 3000px; background: linear-gradient(30deg, #124, #eb6, #2c8 900px)}</style>
<h1>A title</h1><p>Words, and <a href="/">a link</a></p><button>Press</button>"""
# How many bytes of two pictures differ, as Chromium itself decodes them.
COMPARE = """async urls => {
  const pixels = async url => {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.width, image.height];
    const drawing = canvas.getContext("2d");
    drawing.drawImage(image, 0, 0);
    return drawing.getImageData(0, 0, image.width, image.height).data;
  };
  const [one, other] = [await pixels(urls[0]), await pixels(urls[1])];
  return one.length === other.length ? one.reduce((sum, byte, at) => sum + (byte !== other[at]), 0) : -1;
}"""


async def taken(lease: Any, **options: Any) -> Picture:
    """A picture of the lease's page, after a look at it."""
    found = await lease.do("page", lambda page: take_snapshot(page, SnapshotLimits(), ElementHolders()))
    camera = lease.pooled.camera
    return await lease.do("page", lambda page: camera.picture(page, found, **{"format": "png", **options}))


async def differing(lease: Any, one: bytes, other: bytes) -> int:
    urls = [f"data:;base64,{base64.b64encode(data).decode()}" for data in (one, other)]
    blank = await lease.context.new_page()
    try:
        return int(await blank.evaluate(COMPARE, urls))
    finally:
        await blank.close()


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    return struct.unpack(">II", png[16:24])


def first_pixel(png: bytes) -> bytes:
    """The colour in the top left corner, which no filter changes."""
    at, data = 8, b""
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        data += png[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += size + 12
    return zlib.decompress(data)[1:4]


async def test_a_picture_has_the_pixels_of_playwrights_own_and_the_same_page_the_same_bytes() -> None:
    with Origin({"/": Reply(COLOURFUL)}) as site:
        async with (
            pooled(allow=[site.host]) as pool,
            pool.lease(seconds=LONG_S, context={"viewport": SIZE}) as lease,
        ):
            await lease.goto(site.url())
            for scrolled in (0, 700):
                await lease.page.evaluate(f"scrollTo(0, {scrolled})")
                expected = await lease.page.screenshot(animations="allow", caret="initial", scale="css")
                picture = await taken(lease)
                assert (picture.media_type, picture.width, picture.height) == ("image/png", 500, 420)
                assert size_of(picture.data) == (500, 420)
                assert await differing(lease, picture.data, expected) == 0
                assert (await taken(lease)).data == picture.data
            marked = await taken(lease, marked=True)
            assert (
                await differing(lease, marked.data, picture.data) == 0
            )  # what is numbered is above the screen
            await lease.page.evaluate("scrollTo(0, 0)")
            marked, bare = await taken(lease, marked=True), await taken(lease)
            assert await differing(lease, marked.data, bare.data) > 0
            assert (await taken(lease, format="jpeg")).data.startswith(b"\xff\xd8")


async def test_a_png_that_is_too_large_is_compressed_better_and_then_taken_as_jpeg(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Origin({"/": Reply(COLOURFUL)}) as site:
        async with (
            pooled(allow=[site.host]) as pool,
            pool.lease(seconds=LONG_S, context={"viewport": SIZE}) as lease,
        ):
            await lease.goto(site.url())
            quick = await taken(lease)
            monkeypatch.setattr(screenshots, "MAX_BYTES", len(quick.data) - 1)
            better = await taken(lease)
            assert better.media_type == "image/png"
            assert len(better.data) < len(quick.data)
            assert await differing(lease, better.data, quick.data) == 0
            monkeypatch.setattr(screenshots, "MAX_BYTES", len(better.data) - 1)
            assert (await taken(lease)).media_type == "image/jpeg"


async def test_a_picture_waits_for_the_fonts_of_the_page_and_a_page_that_was_left_has_one_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(screenshots, "FONTS_MS", 60_000)
    loading = """async url => {
      document.body.style.background = "#0000ff";
      const font = new FontFace("late", `url(${url})`);
      document.fonts.add(font);
      font.load().catch(() => { document.body.style.background = "#00ff00"; });
    }"""
    with Sites() as sites:
        async with pooled(allow=[sites.host]) as pool, pool.lease(seconds=LONG_S) as lease:
            await lease.goto(sites.url())
            first = lease.page
            await first.evaluate(loading, sites.url("/held/font"))

            async def release() -> None:
                for _ in range(20):
                    await first.evaluate("new Promise(requestAnimationFrame)")
                sites.release()

            waited, _ = await asyncio.gather(taken(lease), release())
            assert first_pixel(waited.data) == b"\x00\xff\x00"
            other = await lease.context.new_page()
            lease.show(other)
            assert first_pixel((await taken(lease)).data) == b"\xff\xff\xff"
            await other.close()  # and its session with it
            assert first_pixel((await taken(lease)).data) == b"\x00\xff\x00"


async def test_a_font_that_never_comes_does_not_keep_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screenshots, "FONTS_MS", 50)
    with Sites() as sites:
        async with pooled(allow=[sites.host]) as pool, pool.lease(seconds=LONG_S) as lease:
            await lease.goto(sites.url())
            never = f"new FontFace('never', 'url({sites.url('/held/font')})')"
            await lease.page.evaluate(f"const font = {never}; document.fonts.add(font); void font.load()")
            assert await lease.page.evaluate("document.fonts.status") == "loading"
            assert size_of((await taken(lease)).data) == (1280, 720)
            assert await lease.page.evaluate("document.fonts.status") == "loading"
