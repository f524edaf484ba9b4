"""Endpoints behind a proxy: which ones, what the proxy is told, and that nothing else is different."""

from __future__ import annotations

import asyncio
import gzip
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.http_clients import CERTIFICATES, LIMIT, OK, STATUS, connected, serving_as, then_close
from tests.support.raw_server import Deed, wire
from windrow.errors import UsageError
from windrow.policies.http_client import (
    CertificateError,
    ConnectError,
    HttpError,
    ProtocolError,
    ResponseTooLarge,
    TruncatedContent,
    http_client,
)
from windrow.policies.http_client.direct import DirectClient
from windrow.policies.http_client.proxies import proxy_for


def gzipped(body: bytes, most: int | None = None) -> bytes:
    packed = gzip.compress(body)[:most]
    return STATUS + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(packed), packed)


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
