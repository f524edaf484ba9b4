"""Where the HTTP client finds a server, and whether it trusts it: addresses, certificates, proxies."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.clocks import time_passes
from tests.collecting import until
from tests.httpclients import LIMIT, OK, STATUS, connected, scripted, then_close
from tests.wire import Deed, wire
from windrow.errors import UsageError
from windrow.policies.http_client import (
    CertificateError,
    ConnectError,
    HttpError,
    ProtocolError,
    Response,
    ResponseTooLarge,
    TlsError,
    TruncatedContent,
    http_client,
)
from windrow.policies.http_client.direct import DirectClient
from windrow.policies.http_client.proxies import proxy_for


def gzipped(body: bytes, most: int | None = None) -> bytes:
    packed = gzip.compress(body)[:most]
    return STATUS + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(packed), packed)


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


def test_a_host_that_is_no_name_is_refused() -> None:
    with pytest.raises(UsageError, match="is no host name"):
        http_client(f"http://ü{'x' * 70}.test/v1", {}, max_body_bytes=LIMIT)


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

CERTIFICATES = Path(__file__).parent.parent / "faults" / "certificate"


def serving_as(name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / f"{name}.pem", CERTIFICATES / f"{name}.key")
    return context


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


# -- proxies

NAMES = [
    name for word in ("http", "https", "all", "no") for name in (f"{word}_proxy", f"{word}_proxy".upper())
]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def tunnelling(port: int) -> AsyncIterator[tuple[str, list[str]]]:
    """A proxy that leads every CONNECT to this port: its address, and what it was asked for."""
    heads: list[str] = []
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        for work in (copy(reader, inner_writer), copy(inner_reader, writer)):
            tasks.add(asyncio.ensure_future(work))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
async def test_a_proxy_is_asked_in_the_place_of_the_server(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wire(lambda request: OK, keep_alive=True) as proxy:
        monkeypatch.setenv(name, f"http://user:p%40ss@127.0.0.1:{proxy.port}")
        async with connected("http://model.test/v1", {"Authorization": "Bearer k"}) as client:
            response = await client.post("http://model.test/v1/chat", b"body")
            assert (response.status, response.body) == (200, b"ok")
            assert (await client.get("http://model.test/v1/models")).body == b"ok"
    post, get = proxy.requests
    assert (post.method, post.path, post.body) == ("POST", "http://model.test/v1/chat", b"body")
    assert "Authorization: Bearer k\r\n" in post.head
    assert f"Proxy-Authorization: Basic {b64encode(b'user:p@ss').decode()}\r\n" in post.head
    assert (get.method, get.path) == ("GET", "http://model.test/v1/models")


async def test_a_secure_server_is_reached_through_a_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))
    async with wire(lambda request: OK, keep_alive=True, tls=serving_as("model-test")) as server:
        async with tunnelling(server.port) as (address, asked):
            monkeypatch.setenv(
                "HTTPS_PROXY", f"user:p%40ss@{address}"
            )  # without http://, as curl takes it too
            async with connected("https://model.test/v1", {"Authorization": "Bearer k"}) as client:
                assert (await client.post("https://model.test/v1", b"body")).body == b"ok"
    [head] = asked
    assert head.startswith("CONNECT model.test:443 HTTP/1.1\r\n")
    assert f"Proxy-Authorization: Basic {b64encode(b'user:p@ss').decode()}\r\n" in head
    assert "Bearer" not in head
    assert "Proxy" not in server.requests[0].head
    assert "Authorization: Bearer k\r\n" in server.requests[0].head
    assert server.requests[0].body == b"body"


async def test_a_certificate_is_refused_behind_a_proxy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with wire(lambda request: OK, tls=serving_as("model-test")) as server:
        async with tunnelling(server.port) as (address, _):
            monkeypatch.setenv("HTTPS_PROXY", f"http://{address}")
            async with connected("https://model.test/v1") as client:
                with pytest.raises(CertificateError):
                    await client.post("https://model.test/v1", b"secret")
        assert not server.requests


DIRECT = [
    ("http://model.test:8000/v1", "model.test"),
    ("http://model.test:8000/v1", "other.test, .test"),
    ("http://model.test:8000/v1", "model.test:8000"),
    ("http://model.test:8000/v1", "*"),
    ("http://10.1.2.3/v1", "10.1.2.3"),
    ("http://localhost:8000/v1", ""),
    ("http://127.0.0.1:8000/v1", ""),
    ("http://127.8.9.1/v1", ""),
    ("http://[::1]:8000/v1", ""),
]


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
@pytest.mark.parametrize(("url", "hosts"), DIRECT)
def test_no_proxy_leads_to_loopback_nor_to_hosts_that_are_excepted(
    url: str, hosts: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.test:3128")
    monkeypatch.setenv(name, hosts)
    assert isinstance(http_client(url, {}, max_body_bytes=LIMIT), DirectClient)


async def test_a_proxy_for_http_is_none_for_https_and_other_hosts_are_not_excepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.test:3128")
    monkeypatch.setenv("NO_PROXY", "other.test,model.test:9")
    assert proxy_for("https://model.test/v1") is None
    assert proxy_for("http://model.test/v1") == ("http://proxy.test:3128", None, "")


@pytest.mark.parametrize("proxy", ["socks5://u:secret@h:1", "http://u:secret@:80", "http://u:secret@h:port"])
def test_a_proxy_that_cannot_be_used_is_refused_and_its_password_is_not_shown(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(UsageError, match="HTTPS_PROXY or ALL_PROXY") as refused:
        http_client("https://model.test/v1", {}, max_body_bytes=LIMIT)
    assert "secret" not in str(refused.value)


BEHIND: dict[str, tuple[bytes | Deed, type[HttpError]]] = {
    "a bomb": (gzipped(b"\0" * (50 << 20)), ResponseTooLarge),
    "a huge length": (STATUS + b"Content-Length: 9999999999\r\n\r\n", ResponseTooLarge),
    "cut gzip": (gzipped(b"ok" * 99, 12), TruncatedContent),
    "broken gzip": (STATUS + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok", ProtocolError),
    "cut in the body": (then_close(OK[:-1]), HttpError),
    "closed without a word": (then_close(b""), HttpError),
    "junk": (b"junk\r\n\r\n", HttpError),
}


@pytest.mark.parametrize("name", BEHIND)
async def test_a_broken_response_through_a_proxy_is_the_same_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, error = BEHIND[name]
    answers = iter([answer, OK])
    async with wire(lambda request: next(answers), keep_alive=True) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        async with connected("http://model.test/v1") as client:
            with pytest.raises(HttpError) as refused:
                await client.post("http://model.test/v1", b"")
            assert type(refused.value) is error
            assert len(proxy.requests) == 1
            assert (await client.post("http://model.test/v1", b"")).body == b"ok"


async def test_a_proxy_that_is_not_there_or_refuses_is_told_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@127.0.0.1:1")
    async with connected("http://model.test/v1") as client:
        with pytest.raises(
            ConnectError, match=r"^cannot connect to the proxy http://127.0.0.1:1 "
        ) as refused:
            await client.post("http://model.test/v1", b"")
        assert "secret" not in str(refused.value)
    async with wire(lambda request: b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@127.0.0.1:{proxy.port}")
        async with connected("https://model.test/v1") as client:
            with pytest.raises(
                ConnectError, match=r"^the proxy http://127.0.0.1:\d+ answered 407"
            ) as refused:
                await client.post("https://model.test/v1", b"")
            assert "secret" not in str(refused.value)
