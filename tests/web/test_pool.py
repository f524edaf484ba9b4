"""The browser pool on a real Chromium: leases, what is lost, what is recycled, and that nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.web.origins import Origin, Reply
from tests.web.pools import LONG_S, NEVER, alive, pooled, renderers, until
from windrow.envs.web import fleet
from windrow.envs.web.env import WebEnv
from windrow.envs.web.failures import BrowserGone, LeaseLost, PageClosed, PageTimeout
from windrow.envs.web.launch import launch
from windrow.envs.web.lease import Lease
from windrow.envs.web.pool import BrowserPool, browsers, close_browsers
from windrow.envs.web.pool_settings import pool_settings
from windrow.errors import OutageError
from windrow.util.reaper import descendants

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin({"/cookie": Reply(headers={"Set-Cookie": "who=me"})}) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(origin: Origin) -> AsyncIterator[BrowserPool]:
    async with pooled(contexts=16, allow=[origin.host]) as made:
        yield made


def crash(page: Any) -> Any:
    async def send() -> None:
        session = await page.context.new_cdp_session(page)
        await session.send("Page.crash")

    return send()


async def test_sixteen_leases_at_once_share_nothing_and_the_next_one_waits(
    pool: BrowserPool, origin: Origin
) -> None:
    all_there, leave = asyncio.Barrier(17), asyncio.Event()
    waited = False

    async def hold(number: int) -> tuple[str, str]:
        async with pool.lease(seconds=LONG_S) as lease:
            await lease.goto(origin.url("/cookie" if number == 0 else f"/{number}"))
            await lease.do("page", lambda page: page.evaluate(f"localStorage.n ??= {number}"))
            await all_there.wait()
            await leave.wait()
            seen = "[document.cookie, localStorage.n]"
            cookie, kept = await lease.do("page", lambda page: page.evaluate(seen))
            return cookie, kept

    async def come_late() -> None:
        async with pool.lease(seconds=LONG_S):
            assert waited

    async with asyncio.TaskGroup() as group:
        held = [group.create_task(hold(number)) for number in range(16)]
        await all_there.wait()
        group.create_task(come_late())
        await asyncio.sleep(0)  # let it ask
        assert len(pool.held) == 16
        waited = True
        leave.set()
    found = [task.result() for task in held]
    assert found[0] == ("who=me", "0")
    assert found[1:] == [("", str(number)) for number in range(1, 16)]
    assert len(pool.pids) == pool.counts["started"] == 1
    assert pool.held == {}


async def test_a_lease_that_is_over_does_nothing_any_more(pool: BrowserPool, origin: Origin) -> None:
    async with pool.lease(seconds=LONG_S) as given_back:
        await given_back.goto(origin.url())
    async with pool.lease(seconds=1) as expiring:
        page = expiring.pooled.page
        with pytest.raises(LeaseLost, match="was for 1 s and has expired"):
            await expiring.do("page", lambda page: page.evaluate(NEVER), seconds=LONG_S)
        await until(page.is_closed, "the context to be taken from who is late")
        reached: list[Lease] = []

        async def reach(_: Any) -> None:
            reached.append(expiring)

        for lease in (expiring, given_back):
            with pytest.raises(LeaseLost) as lost:
                await lease.do("page", reach)
            assert (lost.value.owner, lost.value.retryable) == ("infra", True)
            with pytest.raises(LeaseLost):
                _ = lease.page
        assert reached == []


async def test_a_page_that_hangs_is_a_timeout_of_the_page_and_the_lease_goes_on(
    pool: BrowserPool, origin: Origin
) -> None:
    async with pool.lease(seconds=LONG_S) as lease:
        await lease.goto(origin.url())
        with pytest.raises(PageTimeout, match="did not do it in 1 s") as late:
            await lease.do("page", lambda page: page.evaluate("for (;;) {}"), seconds=1)
        assert (late.value.owner, late.value.kind) == ("env", "page_timeout")
        await lease.renew_page()
        await lease.goto(origin.url())
        assert await lease.do("page", lambda page: page.title()) == "here"
        spans = [(span.stage, span.failed) for span in lease.spans]
        rest = [("page", None), ("navigate", None), ("page", None)]
        assert spans == [("navigate", None), ("page", "page_timeout"), *rest]
        assert all(span.seconds > 0 and span.queued_s >= 0 for span in lease.spans)


async def test_a_page_that_closes_itself_leaves_the_lease_with_the_others(
    pool: BrowserPool, origin: Origin
) -> None:
    async with pool.lease(seconds=LONG_S) as lease:
        await lease.goto(origin.url())
        await lease.do("page", lambda page: page.evaluate("window.open('/pop')"))
        await until(lambda: len(lease.pages) == 2, "the pop-up")
        first, pop_up = lease.pages
        lease.show(pop_up)
        with pytest.raises(PageClosed):
            await lease.do("page", lambda page: page.evaluate(f"window.close(); {NEVER}"))
        assert lease.page is first
        await lease.do("page", lambda page: page.close())
        await lease.goto(origin.url("/again"))
        assert lease.page.url == origin.url("/again")


async def test_dialogs_are_dismissed_and_remembered_and_pop_ups_are_bounded(
    pool: BrowserPool, origin: Origin
) -> None:
    async with pool.lease(seconds=LONG_S) as lease:
        await lease.goto(origin.url())
        assert await lease.do("page", lambda page: page.evaluate("confirm('Sure?')")) is False
        assert lease.dialogs == ["confirm: Sure?"]
        opening = "for (let n = 0; n < 12; n++) window.open('/pop' + n)"
        await lease.do("page", lambda page: page.evaluate(opening))
        await until(lambda: len(lease.pages) == 8, "the pop-ups over max_pages to be closed")
        lease.show(lease.pages[-1])
        assert lease.page is lease.pages[-1]


async def test_a_page_that_is_used_again_is_as_it_was_left_but_for_its_cookies(
    pool: BrowserPool, origin: Origin
) -> None:
    async with pool.lease(seconds=LONG_S, reuse="game") as lease:
        first = lease.page
        await lease.goto(origin.url("/cookie"))
        await lease.do("page", lambda page: page.evaluate("window.open('/pop')"))
        await until(lambda: len(lease.pages) == 2, "the pop-up")
    async with pool.lease(seconds=LONG_S) as other:
        assert other.page is not first
    async with pool.lease(seconds=LONG_S, reuse="game") as lease:
        assert lease.pages == [first]
        assert first.url == origin.url("/cookie")
        assert await lease.do("page", lambda page: page.evaluate("document.cookie")) == ""
        with pytest.raises(BrowserGone):
            await lease.do("page", crash)
    async with pool.lease(seconds=LONG_S, reuse="game") as lease:
        assert lease.page is not first


async def test_a_crashed_renderer_is_lost_at_once_and_its_neighbours_go_on(
    pool: BrowserPool, origin: Origin
) -> None:
    async with pool.lease(seconds=LONG_S) as lease, pool.lease(seconds=LONG_S) as neighbour:
        for each in (lease, neighbour):
            await each.goto(origin.url())
        with pytest.raises(BrowserGone) as lost:
            await lease.do("page", crash, seconds=LONG_S)
        assert (lost.value.owner, lost.value.kind, lost.value.retryable) == ("infra", "page_crashed", True)
        assert await neighbour.do("page", lambda page: page.title()) == "here"


async def test_killed_renderers_fail_their_leases_and_the_next_lease_works(origin: Origin) -> None:
    async with pooled(allow=[origin.host]) as pool:
        async with pool.lease(seconds=LONG_S) as lease:
            await lease.goto(origin.url())
            stuck = asyncio.ensure_future(lease.do("page", lambda page: page.evaluate(NEVER), seconds=LONG_S))
            await until(lambda: renderers(pool.pids[0]), "a renderer")
            for pid in renderers(pool.pids[0]):
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(BrowserGone, match="renderer"):
                await stuck
        async with pool.lease(seconds=LONG_S) as lease:
            await lease.goto(origin.url())
        assert pool.counts["started"] == 1


async def test_a_killed_browser_and_a_killed_driver_fail_their_leases_and_are_replaced(
    origin: Origin,
) -> None:
    async with pooled(allow=[origin.host]) as pool:
        for who, started in (("browser", 2), ("driver", 3)):
            async with pool.lease(seconds=LONG_S) as one, pool.lease(seconds=LONG_S) as two:
                work = [
                    asyncio.ensure_future(lease.do("page", lambda page: page.evaluate(NEVER), seconds=LONG_S))
                    for lease in (one, two)
                ]
                await asyncio.sleep(0)  # let them ask
                chromium = pool.pids[0]
                everything = [chromium, *descendants(chromium)]
                driver = next(pid for pid in descendants(os.getpid()) if chromium in descendants(pid))
                os.kill(chromium if who == "browser" else driver, signal.SIGKILL)
                for task in work:
                    with pytest.raises(BrowserGone, match="died"):
                        await task
            async with pool.lease(seconds=LONG_S) as lease:
                await lease.goto(origin.url())
            assert pool.counts["started"] == started
            assert pool.counts["died"] == started - 1
            await until(lambda left=everything: not alive(left), "all of the old browser to end")


@pytest.mark.parametrize("limit", [{"max_uses": 2}, {"max_age_s": 0.001}])
async def test_a_browser_past_its_limits_is_replaced_and_closed(limit: dict[str, Any]) -> None:
    async with pooled(**limit) as pool:
        async with pool.lease(seconds=LONG_S) as early:
            [first] = pool.pids
            async with pool.lease(seconds=LONG_S):
                pass
            async with pool.lease(seconds=LONG_S):
                assert pool.pids != [first]
            assert await early.do("page", lambda page: page.evaluate("1 + 1")) == 2
        await until(lambda: not alive([first]), "the retired browser to end")
        assert pool.counts["retired"] >= 1
        assert pool.counts["died"] == 0


async def test_a_browser_that_takes_far_too_much_memory_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fill(pool: BrowserPool) -> None:
        async with pool.lease(seconds=LONG_S) as lease:
            await lease.do("page", lambda page: page.evaluate(NEVER), seconds=LONG_S)

    monkeypatch.setattr(fleet, "WEIGH_S", 0)
    async with pooled(max_memory_mb=1) as pool:
        with pytest.raises(BrowserGone, match=r"took \d+ MB \(max_memory_mb: 1\)"):
            await fill(pool)


async def test_who_gives_up_waiting_for_a_browser_leaks_none(origin: Origin) -> None:
    async def come_and_go() -> None:
        async with asyncio.timeout(0), pool.lease(seconds=LONG_S):
            raise AssertionError("there was no time for that")

    async with pooled() as pool:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await come_and_go()
        async with pool.lease(seconds=LONG_S) as lease:
            assert lease.context.browser is not None
            await until(lambda: len(lease.context.browser.contexts) == 1, "contexts for nobody to go")
        assert pool.counts["started"] == 1


async def test_a_browser_that_does_not_start_stops_the_run_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "chromium"
    broken.write_text(
        "#!/bin/sh\necho 'chromium: error while loading shared libraries: libnss3.so' >&2\nexit 127\n"
    )
    broken.chmod(0o755)
    monkeypatch.setattr(fleet, "GIVE_UP_S", 0.0)
    async with pooled(chromium=str(broken)) as pool:
        with pytest.raises(OutageError, match=r"did not start: .*libnss3\.so") as outage:
            async with pool.lease(seconds=LONG_S):
                pass
        assert (outage.value.owner, outage.value.kind) == ("infra", "outage")
    async with pooled(chromium=str(tmp_path / "absent")) as pool:
        with pytest.raises(OutageError, match="no browser to execute"):
            async with pool.lease(seconds=LONG_S):
                pass


async def test_a_browser_that_finds_no_room_is_infrastructures_and_none_of_the_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    nobody: Any = None  # the driver is not asked
    with pytest.raises(BrowserGone, match="did not start: there is no place for its folder"):
        await launch(nobody, pool_settings({"chromium": sys.executable}))


async def test_a_run_that_ends_leaves_the_browsers_of_others_alone() -> None:
    ours, theirs = {"browsers": 1}, {"browsers": 3}
    pools = [await browsers(ours), await browsers(theirs)]
    await WebEnv.finish(ours)
    assert [await browsers(ours) is pools[0], await browsers(theirs) is pools[1]] == [False, True]
    await close_browsers()


async def test_one_pool_a_process_and_settings_and_nothing_is_left_of_it() -> None:
    before = set(descendants(os.getpid()))
    settings = {"browsers": 1, "sandbox": False, "viewport": [800, 600]}
    pool = await browsers(settings)
    assert await browsers({**settings, "viewport": [1, 1]}) is pool
    assert await browsers({**settings, "contexts": 1}) is not pool
    async with pool.lease(seconds=LONG_S) as lease:
        started = [pid for pid in descendants(os.getpid()) if pid not in before]
        assert set(pool.pids) <= set(started)
        await close_browsers()
        with pytest.raises(LeaseLost):
            await lease.do("page", lambda page: page.title())
    assert alive(started) == []
    with pytest.raises(LeaseLost, match="closed"):
        async with pool.lease(seconds=LONG_S):
            pass
