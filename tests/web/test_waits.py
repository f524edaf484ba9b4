"""Waiting for pages in a real Chromium: what is waited for, and what is not asked twice."""

from __future__ import annotations

import pytest

from tests.web.pools import LONG_S, pooled
from tests.web.sites import Sites
from windrow.envs.web.waits import Traffic

pytestmark = pytest.mark.slow
SOON_S, LATER_S = 0.05, 60.0


async def test_each_document_of_a_page_is_waited_for_until_it_is_loaded() -> None:
    with Sites() as sites:
        async with pooled(allow=[sites.host]) as pool, pool.lease(seconds=LONG_S) as lease:
            traffic = Traffic(lease.context)
            await lease.goto(sites.url("/apples"))
            assert await traffic.loaded(lease.page, LATER_S)
            assert await traffic.loaded(lease.page, SOON_S)  # the same document
            await lease.page.evaluate("history.pushState(null, '', '/elsewhere')")
            assert await traffic.loaded(lease.page, LATER_S)  # still the same one
            await lease.goto(sites.url("/unfinished"), wait_until="commit")
            assert not await traffic.loaded(lease.page, SOON_S)  # its picture is held
            sites.release()
            assert await traffic.loaded(lease.page, LATER_S)
            traffic.close()
