"""Pages are hostile: what they cannot reach, keep, ask for or take, in a real Chromium."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.web.origins import Origin, Reply
from tests.web.pools import LONG_S, pooled
from windrow.envs.web.failures import AddressRefused, Unreachable
from windrow.envs.web.launch import playwright

pytestmark = pytest.mark.slow


@pytest.fixture
def private() -> Iterator[Origin]:
    """A server of this machine that no page may have."""
    with Origin() as started:
        yield started


@pytest.fixture
def site(private: Origin) -> Iterator[Origin]:
    """A site that may be visited, and wants more."""
    attachment = {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": "attachment; filename=a.bin",
    }
    replies = {
        "/redirect": Reply(status=302, headers={"Location": private.url("/redirected")}),
        "/frame": Reply(f'<title>here</title><iframe src="{private.url("/framed")}"></iframe>'),
        "/download": Reply(b"x" * 1000, headers=attachment),
        "/worker.js": Reply("", headers={"Content-Type": "text/javascript"}),
    }
    with Origin(replies) as started:
        yield started


ASK_FOR_EVERYTHING = """async ([private_url, socket_url]) => {
  const tried = {};
  tried.fetch = await fetch(private_url, {mode: "no-cors"}).then(() => "reached", () => "refused");
  tried.image = await new Promise(done => {
    const image = new Image();
    image.onload = () => done("reached"); image.onerror = () => done("refused");
    image.src = private_url;
  });
  tried.socket = await new Promise(done => {
    const socket = new WebSocket(socket_url);
    socket.onopen = () => done("reached"); socket.onerror = () => done("refused");
  });
  await navigator.serviceWorker.register("/worker.js").catch(() => 0);
  tried.worker = (await navigator.serviceWorker.getRegistrations()).length ? "reached" : "refused";
  for (const name of ["geolocation", "notifications", "camera", "clipboard-read"])
    tried[name] = (await navigator.permissions.query({name})).state;
  const peer = new RTCPeerConnection();
  const candidates = [];
  peer.createDataChannel("a");
  const gathered = new Promise(done => {
    peer.onicecandidate = event => event.candidate ? candidates.push(event.candidate.candidate) : done();
  });
  await peer.setLocalDescription(await peer.createOffer());
  await gathered;
  tried.candidates = candidates;
  return tried;
}"""


async def test_a_page_reaches_no_private_address_whatever_it_tries(
    private: Origin, site: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    secret = tmp_path / "secret.html"
    secret.write_text("<title>secret</title>")
    refused = pytest.raises(AddressRefused, match=f"{private.host} is not a public address")
    async with pooled(allow=[site.host]) as pool:
        async with pool.lease(seconds=LONG_S) as lease:
            with refused:
                await lease.goto(private.url("/asked"))
            with refused:
                await lease.goto(site.url("/redirect"))
        async with pool.lease(seconds=LONG_S) as lease:
            with refused:  # not by the pool's own door
                await lease.do("navigate", lambda page: page.goto(private.url("/direct")))
        async with pool.lease(seconds=LONG_S) as lease:
            await lease.goto(site.url("/frame"))
            wanted = [private.url("/wanted"), f"ws://{private.host}/socket"]
            tried = await lease.do("page", lambda page: page.evaluate(ASK_FOR_EVERYTHING, wanted))
            assert tried.pop("candidates") == []  # nothing that does not go through the gate
            assert {name for name, what in tried.items() if what not in ("refused", "denied")} == set()
            assert {str(problem).partition(" ")[0] for problem in lease.refused} == {private.host}
        assert (private.asked, site.asked["/worker.js"]) == ({}, 0)

        async with pool.lease(seconds=LONG_S) as lease:
            with pytest.raises(playwright().Error, match="Download"):
                await lease.do("navigate", lambda page: page.goto(site.url("/download")))
        for address in (secret.as_uri(), f"view-source:{secret.as_uri()}"):
            async with pool.lease(seconds=LONG_S) as lease:
                with pytest.raises((AddressRefused, playwright().Error)):
                    await lease.do("navigate", lambda page, address=address: page.goto(address))
                assert await lease.do("page", lambda page: page.title()) == ""
    assert [path.name for path in tmp_path.iterdir()] == ["secret.html"]


async def test_a_name_is_looked_at_each_time_that_it_is_resolved(
    private: Origin, site: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that means a public address first and a private one later is refused later; here, 127.0.0.2 is public."""
    resolve = socket.getaddrinfo
    means = {"rebinding.test": "127.0.0.2"}

    def resolving(host: Any, *rest: Any, **options: Any) -> Any:
        return resolve(means.get(host, host), *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolving)
    port = site.host.partition(":")[2]
    once = Reply(headers={"Connection": "close"})
    with Origin({"/first": once, "/second": once}, where="127.0.0.2", port=int(port)) as public:
        async with pooled(allow=["127.0.0.2/32"]) as pool, pool.lease(seconds=LONG_S) as lease:
            await lease.goto(f"http://rebinding.test:{port}/first")
            assert public.asked["/first"] == 1
            means["rebinding.test"] = "127.0.0.1"
            with pytest.raises(AddressRefused, match=rf"rebinding\.test:{port} is not a public address"):
                await _go_until_refused(lease, f"http://rebinding.test:{port}/second", site)
            assert site.asked == {}
            means["unknown.test"] = "no such name"
            with pytest.raises(Unreachable, match=r"unknown\.test:80 cannot be reached"):
                await lease.goto("http://unknown.test/")


async def _go_until_refused(lease: Any, url: str, never: Origin) -> None:
    """The connections that stand already are to the address that was looked at; a new one is refused."""
    for _ in range(20):
        await lease.goto(url)
        assert never.asked == {}


async def test_what_pages_load_is_bounded() -> None:
    with Origin({"/big": Reply(b"x" * (3 << 20))}) as site:
        async with pooled(allow=["127.0.0.0/8"], max_traffic_mb=1) as pool:
            async with pool.lease(seconds=LONG_S, reuse="same") as lease:
                await lease.goto(site.url())
                load = "fetch('/big').then(reply => reply.text()).then(text => text.length, () => 'cut off')"
                assert await lease.do("page", lambda page: page.evaluate(load)) == "cut off"
                assert "more than 1 MB (max_traffic_mb)" in str(lease.refused[-1])
                with pytest.raises(AddressRefused, match="more than 1 MB"):
                    await lease.goto(site.url("/more"))
            async with pool.lease(seconds=LONG_S, reuse="same") as lease:  # what is spent is not used again
                await lease.goto(site.url())
