"""Where the HTTP client finds a server, and whether it trusts it: addresses and certificates."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.collect_helpers import until
from tests.support.fake_clock import time_passes
from tests.support.http_clients import CERTIFICATES, LIMIT, OK, connected, scripted, serving_as
from tests.support.raw_server import wire
from windrow.errors import UsageError
from windrow.policies.http_client import (
    CertificateError,
    ConnectError,
    HttpError,
    Response,
    TlsError,
    http_client,
)

# -- where servers are


async def test_a_server_of_ipv6_is_asked() -> None:
    async with wire(lambda request: OK, host="[::1]") as server, connected(server.url) as client:
        assert (await client.post(server.url, b"")).body == b"ok"
        assert f"Host: [::1]:{server.port}\r\n" in server.requests[0].head


class Names:
    """In the place of DNS: the addresses of every name, and how often they were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *found: tuple[int, str, int]) -> None:
        self.asked: list[str] = []
        self.found = [(family, 1, 6, "", (host, port)) for family, host, port in found]
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self._look_up)

    async def _look_up(self, host: str, port: int, **options: object) -> list[object]:
        self.asked.append(host)
        await asyncio.sleep(0)
        return list(self.found)


async def test_the_first_address_that_takes_the_connection_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    closed_port = nobody.sockets[0].getsockname()[1]
    nobody.close()
    async with wire(lambda request: OK) as server:
        names = Names(monkeypatch, (2, "127.0.0.1", closed_port), (2, "127.0.0.1", server.port))
        async with connected(f"http://model.test:{server.port}/v1") as client:
            calls = [client.post(f"http://model.test:{server.port}/v1", b"") for _ in range(5)]
            assert [response.body for response in await asyncio.gather(*calls)] == [b"ok"] * 5
        assert names.asked == ["model.test"]  # one lookup serves all
        assert f"Host: model.test:{server.port}\r\n" in server.requests[0].head


async def test_a_server_that_has_moved_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    closed_port = nobody.sockets[0].getsockname()[1]
    nobody.close()
    async with wire(lambda request: OK) as server, connected("http://model.test/v1") as client:
        names = Names(monkeypatch, (2, "127.0.0.1", closed_port))
        with pytest.raises(ConnectError, match=r"^cannot connect to model.test:80 \(Connection refused\)$"):
            await client.post("http://model.test/v1", b"")
        names.found = [(2, 1, 6, "", ("127.0.0.1", server.port))]
        assert (await client.post("http://model.test/v1", b"")).body == b"ok"
        assert "Host: model.test\r\n" in server.requests[0].head
        assert len(names.asked) == 2


async def test_a_name_that_nobody_has_is_told() -> None:
    async with connected("http://no-such-host.invalid:8000/v1") as client:
        with pytest.raises(ConnectError, match=r"^cannot connect to no-such-host.invalid:8000 \(.+\)$"):
            await client.post("http://no-such-host.invalid:8000/v1", b"")


async def test_a_lookup_outlives_the_one_who_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with wire(lambda request: OK) as server, connected("http://model.test/v1") as client:
        names = Names(monkeypatch, (2, "127.0.0.1", server.port))
        first = asyncio.ensure_future(client.post("http://model.test/v1", b""))
        second: asyncio.Future[Response] = asyncio.ensure_future(client.post("http://model.test/v1", b""))
        await until(lambda: names.asked)
        first.cancel()
        assert (await second).body == b"ok"
        assert names.asked == ["model.test"]


async def test_closing_the_client_ends_a_lookup_and_who_waits_for_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = asyncio.Event()

    async def look_up(*_: object, **__: object) -> list[object]:
        asked.set()
        return await asyncio.Future()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    async with connected("http://model.test/v1") as client:
        call = asyncio.ensure_future(client.post("http://model.test/v1", b""))
        await asked.wait()
        await client.close()
        with pytest.raises(HttpError, match="the client is closed"):
            await call


@pytest.mark.parametrize("host", [f"ü{'x' * 70}.test", f"{'x' * 70}.test", "model..test", ".test"])
def test_a_host_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="is no host name"):
        http_client(f"http://{host}/v1", {}, max_body_bytes=LIMIT)


async def test_a_connection_that_was_idle_for_long_is_not_used_again() -> None:
    async with scripted(OK, OK, OK) as (client, server):
        await client.post(server.url, b"")
        await client.post(server.url, b"")
        assert server.connections == 1
        time_passes(16.0)
        await client.post(server.url, b"")
        assert server.connections == 2
        await until(lambda: server.open == 1)


# -- certificates


async def test_an_authority_of_ones_own_is_trusted_and_the_server_is_told_which_host_is_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))
    tls, meant = serving_as("model-test"), []
    tls.sni_callback = lambda connection, name, context: meant.append(name)
    async with wire(lambda request: OK, keep_alive=True, tls=tls) as server:
        Names(monkeypatch, (2, "127.0.0.1", server.port))
        async with connected("https://model.test/v1") as client:
            for _ in range(3):
                assert (await client.post("https://model.test/v1", b"x" * 300_000)).body == b"ok"
        assert meant == ["model.test"]
        assert "Host: model.test\r\n" in server.requests[0].head
        assert server.connections == 1


async def test_a_certificate_that_nobody_vouches_for_is_refused_before_anything_is_sent() -> None:
    async with wire(lambda request: OK, tls=serving_as("test-only")) as server:
        async with connected(server.url) as client:
            with pytest.raises(CertificateError, match="self-signed certificate"):
                await client.post(server.url, b"secret")
        assert not server.requests


async def test_a_certificate_for_another_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))
    async with wire(lambda request: OK, tls=serving_as("model-test")) as server:
        async with connected(server.url) as client:
            with pytest.raises(CertificateError, match=r"certificate is not valid for '127.0.0.1'"):
                await client.post(server.url, b"secret")
        Names(monkeypatch, (2, "127.0.0.1", server.port))
        async with connected("https://other.test/v1") as client:
            with pytest.raises(CertificateError, match=r"certificate is not valid for 'other.test'"):
                await client.post("https://other.test/v1", b"secret")
        assert not server.requests


async def test_a_server_without_tls_is_no_refused_certificate() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"https://127.0.0.1:{port}/v1"
    async with connected(url) as client:
        with pytest.raises(TlsError, match=f"^no TLS with 127.0.0.1:{port}") as refused:
            await client.post(url, b"")
    assert not isinstance(refused.value, CertificateError)
    server.close()
