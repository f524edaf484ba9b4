"""Browsers that run elsewhere, by their CDP address."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web.origins import Origin, Reply
from tests.web.pools import LONG_S, NEVER, pooled, until, wait_until
from windrow.envs.web import fleet
from windrow.envs.web.failures import AddressRefused, BrowserGone
from windrow.envs.web.launch import SWITCHES, find_chromium, playwright
from windrow.errors import OutageError

pytestmark = pytest.mark.slow


class Elsewhere:
    """A Chromium that somebody else has started."""

    def __init__(self, folder: Path) -> None:
        chromium = find_chromium()
        assert chromium is not None
        said = folder / "DevToolsActivePort"
        switches = [*SWITCHES, "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={folder}"]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen([chromium, *switches], stderr=log, start_new_session=True)
        wait_until(lambda: said.exists() and said.read_text().count("\n"), "the browser to listen")
        self.port = int(said.read_text().splitlines()[0])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token=sk-very-secret"

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    started = Elsewhere(tmp_path)
    yield started
    started.kill()


async def test_a_browser_elsewhere_is_leased_guarded_left_alone_and_missed_when_it_is_gone(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Origin() as site, Origin() as private:
        settings = {"cdp_url": elsewhere.url, "allow": [site.host]}
        async with pooled(**settings) as pool, pool.lease(seconds=LONG_S) as lease:
            await lease.goto(site.url())
            with pytest.raises(AddressRefused):
                await lease.do("navigate", lambda page: page.goto(private.url()))
            assert private.asked == {}
        assert elsewhere.process.poll() is None

        async with pooled(**settings) as pool:
            async with pool.lease(seconds=LONG_S) as lease:
                await lease.goto(site.url())
                elsewhere.kill()
                with pytest.raises(BrowserGone, match="died"):
                    await lease.do("page", lambda page: page.evaluate(NEVER), seconds=LONG_S)
            await until(lambda: pool.counts["died"] == 1, "the loss to be noticed")
            monkeypatch.setattr(fleet, "GIVE_UP_S", 0.0)
            with pytest.raises(OutageError, match=r"no browser answers at http://127.0.0.1:\d+: ") as missed:
                async with pool.lease(seconds=LONG_S):
                    pass
        assert "secret" not in str(missed.value)


async def test_a_browser_that_cannot_reach_our_gate_is_still_kept_from_private_addresses(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.envs.web.pool.is_here", lambda url: False)
    with Origin() as private:
        away = {"/away": Reply(status=302, headers={"Location": private.url()})}
        with Origin(away) as site:
            async with pooled(cdp_url=elsewhere.url, allow=[site.host]) as pool:
                async with pool.lease(seconds=LONG_S) as lease:
                    await lease.goto(site.url())
                    with pytest.raises(playwright().Error, match="ERR_BLOCKED_BY_CLIENT"):
                        await lease.do("navigate", lambda page: page.goto(private.url()))
                    assert private.asked == {}
                async with pool.lease(seconds=LONG_S) as lease:
                    with pytest.raises(AddressRefused):  # it got there, but nobody sees it
                        await lease.goto(site.url("/away"))
                    assert lease.pages == []
