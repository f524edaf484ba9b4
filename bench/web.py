"""Many browser contexts at once: a bare Playwright loop, leases of Windrow's pool, or a whole run, over the same page.

    python bench/web.py --side bare --contexts 64 --steps 10 --look png
    python bench/web.py --side pool --contexts 64 --steps 10 --look png
    python bench/web.py --side collect --contexts 64 --steps 10 --look png

A step is a real click, a value read back, and a look at the page. `--look png-fast` is a PNG that Chromium compresses for
speed, as in `collect`. Prints one JSON line. The clicks are counted in the pages: a side that loses one has failed. `collect`
is `windrow.collect` in the environment `web`, with a policy that answers at once: it also waits for the page to rest, reads
every turn's reply, and keeps the record and its images.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import uvloop
from playwright.async_api import CDPSession, Page, async_playwright

import windrow
from windrow import Request
from windrow.envs.web.launch import SWITCHES, find_chromium
from windrow.envs.web.pool import BrowserPool
from windrow.envs.web.pool_settings import PoolSettings
from windrow.policies.scripted import CallablePolicy
from windrow.util.reaper import descendants

VIEW = {"width": 1280, "height": 768}
STARTS = 4  # contexts made at a time, on both sides: 64 at once pass their time limits
TICK = os.sysconf("SC_CLK_TCK")
ROWS = "".join(f'<li><a href="/item/{n}">item {n}</a> <button>buy {n}</button></li>' for n in range(40))
PAGE = f"""<!doctype html><title>shop</title><style>#go {{position: fixed; left: 900px; top: 20px}}</style>
<button id="go" onclick="this.textContent = window.clicks = (window.clicks || 0) + 1">0</button><ul>{ROWS}</ul>"""

SESSIONS: dict[Page, CDPSession] = {}

Do = Callable[[Callable[[Page], Awaitable[Any]]], Awaitable[Any]]  # a command, to its result
Open = Callable[[], Any]  # a context with the page loaded, as a context manager that gives a Do


@asynccontextmanager
async def bare(url: str, host: str) -> AsyncIterator[Open]:
    gate = asyncio.Semaphore(STARTS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(), args=list(SWITCHES), chromium_sandbox=False
        )

        @asynccontextmanager
        async def opened() -> AsyncIterator[Do]:
            async with gate:
                context = await browser.new_context(viewport=VIEW)
                page = await context.new_page()
                await page.goto(url)
            yield lambda command: command(page)
            await context.close()

        yield opened
        await browser.close()


@asynccontextmanager
async def pooled(url: str, host: str, reuse: str | None = None) -> AsyncIterator[Open]:
    pool = BrowserPool(PoolSettings(browsers=1, contexts=64, starts=STARTS, allow=(host,), sandbox=False))

    @asynccontextmanager
    async def opened() -> AsyncIterator[Do]:
        async with pool.lease(seconds=3600, context={"viewport": VIEW}, reuse=reuse) as lease:
            if lease.page.url != url:
                await lease.goto(url)
            yield lambda command: lease.do("page", command)

    try:
        yield opened
    finally:
        await pool.close()


def reusing(url: str, host: str) -> Any:
    return pooled(url, host, reuse="shop")


SIDES = {"bare": bare, "pool": pooled, "reuse": reusing}


async def click(page: Page) -> int:
    await page.mouse.click(910, 30)
    return int(await page.evaluate("window.clicks"))


async def look_png(page: Page) -> None:
    await page.screenshot(type="png")


async def look_png_fast(page: Page) -> None:
    if page not in SESSIONS:
        SESSIONS[page] = await page.context.new_cdp_session(page)
    how = {"format": "png", "optimizeForSpeed": True}
    base64.b64decode((await SESSIONS[page].send("Page.captureScreenshot", how))["data"])


async def look_text(page: Page) -> None:
    await page.locator("body").aria_snapshot()


LOOKS = {"png": look_png, "png-fast": look_png_fast, "text": look_text}


async def steps(do: Do, count: int, look: Callable[[Page], Awaitable[None]]) -> None:
    for number in range(count):
        clicks = await do(click)
        if clicks != number + 1:
            raise SystemExit(f"{clicks} clicks arrived where {number + 1} were made")
        await do(look)


async def measure(side: str, url: str, host: str, contexts: int, count: int, look: str) -> dict[str, float]:
    async with SIDES[side](url, host) as opened, AsyncExitStack() as stack:
        async with opened() as do:  # the first one pays for the browser
            await do(click)
        idle_mb = memory_mb()
        began = time.perf_counter()
        ready = await asyncio.gather(*(stack.enter_async_context(opened()) for _ in range(contexts)))
        created = time.perf_counter() - began
        if side == "reuse":  # it left its clicks in the page
            await ready[0](lambda page: page.evaluate("delete window.clicks"))
        held_mb = memory_mb()
        cpu, began = cpu_seconds(), time.perf_counter()
        await asyncio.gather(*(steps(do, count, LOOKS[look]) for do in ready))
        seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    return {
        "steps_per_s": contexts * count / seconds,
        "cpu_ms_per_step": 1000 * cpu / (contexts * count),
        "contexts_per_s": contexts / created,
        "mb_per_context": (held_mb - idle_mb) / contexts,
    }


async def episodes(side: str, url: str, host: str, count: int) -> dict[str, float]:
    """Contexts one after the other, eight at a time: loaded, clicked once, given back."""
    places = asyncio.Semaphore(8)

    async def play(opened: Open) -> None:
        async with places, opened() as do:
            await do(click)

    async with SIDES[side](url, host) as opened:
        await play(opened)
        cpu, began = cpu_seconds(), time.perf_counter()
        await asyncio.gather(*(play(opened) for _ in range(count)))
        seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    return {"episodes_per_s": count / seconds, "cpu_ms_per_episode": 1000 * cpu / count}


class Clicking:
    """A policy that clicks `count` times and answers. The clock runs from when all are ready to when the last answers."""

    def __init__(self, contexts: int, count: int, look: str) -> None:
        self.began = self.ended = self.cpu = 0.0
        self._count = count
        self._action = "Action: click(x=910, y=30)" if look != "text" else "Action: click(1)"
        self._ready = asyncio.Barrier(contexts)

    async def __call__(self, request: Request) -> str:
        if request.turn == 0:
            if await self._ready.wait() == 0:
                self.cpu, self.began = cpu_seconds(), time.perf_counter()
            await self._ready.wait()
        if request.turn < self._count:
            return self._action
        self.ended = time.perf_counter()
        return "Action: answer('done')"


async def collecting(url: str, host: str, contexts: int, count: int, look: str) -> dict[str, float]:
    policy = Clicking(contexts, count, look)
    settings = {"allow": [host], "browsers": 1, "contexts": contexts, "starts": STARTS, "sandbox": False}
    settings |= {"observe": "screenshot" if look != "text" else "text"}
    rows = [{"start_url": url, "instruction": f"click {n}"} for n in range(contexts)]
    cpu = 0.0
    with tempfile.TemporaryDirectory(prefix="windrow-bench-") as folder:
        async for rollout in windrow.collect(
            rows,
            env="web",
            policy=CallablePolicy(policy, name="clicking"),
            out=folder + "/run",
            concurrency=contexts,
            max_turns=count + 1,
            sets=[f"env.settings={json.dumps(settings)}"],
        ):
            cpu = cpu_seconds() - policy.cpu
            calls = [call.failed for turn in rollout.turns for call in turn.tool_calls]
            if rollout.status != "completed" or calls != [False] * (count + 1):
                raise SystemExit(f"an episode went wrong: {rollout.status}, {rollout.error}, {calls}")
    return {
        "steps_per_s": contexts * count / (policy.ended - policy.began),
        "cpu_ms_per_step": 1000 * cpu / (contexts * count),
    }


def cpu_seconds() -> float:
    """Of this process and all below it, also of what has ended and was waited for."""
    return sum(_cpu(pid) for pid in (os.getpid(), *descendants(os.getpid())))


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return sum(int(ticks) for ticks in fields[11:15]) / TICK


def memory_mb() -> float:
    """What all below this process take, shared pages by their share."""
    return sum(_pss_kb(pid) for pid in descendants(os.getpid())) / 1024


def _pss_kb(pid: int) -> int:
    try:
        said = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in said.splitlines() if line.startswith("Pss:"))


class Shop(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, *_: object) -> None:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", choices=(*SIDES, "collect"), required=True)
    parser.add_argument("--contexts", type=int, default=64, help="at once")
    parser.add_argument("--steps", type=int, default=10, help="in each")
    parser.add_argument("--look", choices=tuple(LOOKS), default="png")
    parser.add_argument("--episodes", type=int, help="instead: this many, each in a context of its own")
    given = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host = f"127.0.0.1:{server.server_address[1]}"
    url = f"http://{host}/"
    if given.side == "collect":
        found = uvloop.run(collecting(url, host, given.contexts, given.steps, given.look))
    elif given.episodes:
        found = uvloop.run(episodes(given.side, url, host, given.episodes))
    else:
        found = uvloop.run(measure(given.side, url, host, given.contexts, given.steps, given.look))
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    main()
