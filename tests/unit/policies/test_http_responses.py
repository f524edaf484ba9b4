"""Which responses the HTTP client takes and which it refuses, on real sockets; what it reads never meets the next request."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib

import pytest
import uvloop

from tests.support.http_clients import CHUNKED, EVIL, LIMIT, OK, STATUS, in_parts, scripted, then_close
from tests.support.raw_server import Deed, resetting
from windrow.policies.http_client import HttpError, ProtocolError, ResponseTooLarge, TruncatedContent

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")

LOOPS = {"asyncio": asyncio.DefaultEventLoopPolicy, "uvloop": uvloop.EventLoopPolicy}


@pytest.fixture(params=LOOPS)
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Users have uvloop, and asyncio's own loop where that is missing."""
    return LOOPS[request.param]()


# -- responses that are taken

TAKEN = {
    "a length": (OK, 200, b"ok"),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
    "another status": (b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nok", 503, b"ok"),
    "no body": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b""),
    "an empty body": (STATUS + b"Content-Length: 0\r\n\r\n", 200, b""),
    "chunks": (CHUNKED + b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n", 200, b"ok"),
    "chunks with extensions": (CHUNKED + b"2;a=b\r\nok\r\n0;c\r\n\r\n", 200, b"ok"),
    "trailers": (CHUNKED + b"2\r\nok\r\n0\r\nContent-Encoding: br\r\nX: 1\r\n\r\n", 200, b"ok"),
    "100 Continue": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok"),
    "103 Early Hints": (b"HTTP/1.1 103 Hints\r\nContent-Encoding: br\r\nLink: </x>\r\n\r\n" * 2 + OK, 200, b"ok"),
    "an upgrade that is offered": (
        STATUS + b"Upgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\nok",
        200,
        b"ok",
    ),
    "HTTP/1.0 that keeps alive": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
        200,
        b"ok",
    ),
    "gzip": (
        STATUS + b"Content-Encoding: GZip\r\nContent-Length: %d\r\n\r\n" % len(gzip.compress(b"ok")) + gzip.compress(b"ok"),
        200,
        b"ok",
    ),
    "gzip in two streams": (
        CHUNKED[:-2] + b"Content-Encoding: gzip\r\n\r\n"
        + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in map(gzip.compress, (b"o", b"k", b"")))
        + b"0\r\n\r\n",
        200,
        b"ok",
    ),
    "deflate": (
        STATUS + b"Content-Encoding: deflate\r\nContent-Length: %d\r\n\r\n" % len(zlib.compress(b"ok")) + zlib.compress(b"ok"),
        200,
        b"ok",
    ),
    "deflate without its header": (
        STATUS + b"Content-Encoding: deflate\r\nContent-Length: %d\r\n\r\n" % len(zlib.compress(b"ok")[2:-4])
        + zlib.compress(b"ok")[2:-4],
        200,
        b"ok",
    ),
    "nothing, packed": (STATUS + b"Content-Encoding: gzip\r\nContent-Length: 0\r\n\r\n", 200, b""),
    "identity": (STATUS + b"Content-Encoding: identity\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
async def test_a_proper_response_is_taken_and_its_connection_used_again(name: str) -> None:
    answer, status, body = TAKEN[name]
    async with scripted(answer, OK) as (client, server):
        response = await client.post(server.url, b"")
        assert (response.status, response.body) == (status, body)
        assert (await client.post(server.url, b"")).body == b"ok"
        assert server.connections == 1


@pytest.mark.parametrize("name", TAKEN)
async def test_it_does_not_matter_where_a_response_is_split(name: str) -> None:
    answer, status, body = TAKEN[name]
    bytewise = [answer[at : at + 1] for at in range(len(answer))]
    async with scripted(in_parts(bytewise), OK) as (client, server):
        response = await client.post(server.url, b"")
        assert (response.status, response.body) == (status, body)
        assert (await client.post(server.url, b"")).body == b"ok"
        assert server.connections == 1


async def test_headers_are_found_in_any_case_and_trailers_are_none_of_them() -> None:
    answer = CHUNKED[:-2] + b"RETRY-after: 7\r\nX-Empty:\r\n\r\n0\r\nRetry-After: 9\r\nX-Trailer: 1\r\n\r\n"
    async with scripted(answer, OK) as (client, server):
        response = await client.post(server.url, b"")
        assert response.header("retry-after") == "7"
        assert response.header("x-empty") == ""
        assert response.header("x-trailer") is None
        assert (await client.post(server.url, b"")).headers == {b"content-length": b"2"}


LAST = {
    "it says so": STATUS + b"Connection: close\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "a second response": OK + EVIL,
    "half a second response": OK + EVIL[:20],
    "more than its length": OK + b"evil",
    "a body where there is none": b"HTTP/1.1 204 No\r\n\r\nevil",
    "more after the last chunk": CHUNKED + b"2\r\nok\r\n0\r\n\r\n" + EVIL,
}


@pytest.mark.parametrize("name", LAST)
async def test_a_connection_with_more_or_without_keep_alive_is_not_used_again(name: str) -> None:
    async with scripted(LAST[name], OK) as (client, server):
        first = await client.post(server.url, b"")
        assert first.body == (b"" if first.status == 204 else b"ok")
        assert (await client.post(server.url, b"")).body == b"ok"
        assert server.connections == 2


async def test_a_body_may_end_with_its_connection() -> None:
    async with scripted(then_close(b"HTTP/1.1 200 OK\r\n\r\nall of it"), OK) as (client, server):
        assert (await client.post(server.url, b"")).body == b"all of it"
        assert (await client.post(server.url, b"")).body == b"ok"


# -- responses that are refused

PACKED = STATUS + b"Content-Encoding: gzip\r\n"
REFUSED: dict[str, tuple[bytes | Deed, type[HttpError]]] = {
    "cut in the status": (then_close(b"HTTP/1.1 20"), ProtocolError),
    "cut in the head": (then_close(OK[:25]), ProtocolError),
    "cut after the head": (then_close(OK[:-2]), ProtocolError),
    "cut in the body": (then_close(OK[:-1]), ProtocolError),
    "cut after 100": (then_close(b"HTTP/1.1 100 Continue\r\n\r\n"), ProtocolError),
    "cut in a chunk": (then_close(CHUNKED + b"5\r\nok"), ProtocolError),
    "cut in a chunk size": (then_close(CHUNKED + b"5"), ProtocolError),
    "cut between chunks": (then_close(CHUNKED + b"2\r\nok\r\n"), ProtocolError),
    "cut in the trailers": (then_close(CHUNKED + b"0\r\nX: 1\r\n"), ProtocolError),
    "reset in the body": (resetting(OK[:-1]), ProtocolError),
    "reset in a body until the close": (resetting(b"HTTP/1.1 200 OK\r\n\r\nall of"), ProtocolError),
    "two lengths": (STATUS + b"Content-Length: 2\r\nContent-Length: 4\r\n\r\nevil", ProtocolError),
    "the same length twice": (STATUS + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok", ProtocolError),
    "a list of lengths": (STATUS + b"Content-Length: 2, 2\r\n\r\nok", ProtocolError),
    "a negative length": (STATUS + b"Content-Length: -2\r\n\r\nok", ProtocolError),
    "an endless length": (STATUS + b"Content-Length: 99999999999999999999999\r\n\r\nok", ProtocolError),
    "a huge length": (STATUS + b"Content-Length: 9999999999999\r\n\r\nok", ResponseTooLarge),
    "no length": (STATUS + b"Content-Length:\r\n\r\nok", ProtocolError),
    "a length and chunks": (CHUNKED[:-2] + b"Content-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n", ProtocolError),
    "a length in the trailers": (CHUNKED + b"2\r\nok\r\n0\r\nContent-Length: 9\r\n\r\n", ProtocolError),
    "a transfer encoding besides": (STATUS + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", ProtocolError),
    "a transfer encoding nobody knows": (STATUS + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", ProtocolError),
    "a chunk of no size": (CHUNKED + b"zz\r\n", ProtocolError),
    "a negative chunk": (CHUNKED + b"-2\r\nok\r\n0\r\n\r\n", ProtocolError),
    "an endless chunk": (CHUNKED + b"f" * 20 + b"\r\nok", ProtocolError),
    "a head that is too long": (STATUS + b"X: " + b"x" * 100_000 + b"\r\n" + OK[17:], ProtocolError),
    "a head without an end": (STATUS + b"X: " + b"x" * 1_000_000, ProtocolError),
    "a flood of headers": (STATUS + b"".join(b"X-%d: 1\r\n" % n for n in range(50_000)), ProtocolError),
    "a flood of trailers": (CHUNKED + b"0\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(50_000)), ProtocolError),
    "a flood of interim responses": (b"HTTP/1.1 100 Continue\r\n\r\n" * 50_000, ProtocolError),
    "a chunk extension without an end": (CHUNKED + b"2;" + b"x" * 1_000_000, ProtocolError),
    "junk before the status": (b"junk" + OK, ProtocolError),
    "another protocol": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", ProtocolError),
    "TLS": (b"\x15\x03\x01\x00\x02\x02\x46", ProtocolError),
    "no carriage returns": (OK.replace(b"\r\n", b"\n"), ProtocolError),
    "a folded header": (STATUS + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\nok", ProtocolError),
    "a space before a colon": (STATUS + b"Content-Length : 2\r\n\r\nok", ProtocolError),
    "a NUL in a header": (STATUS + b"X: a\0b\r\nContent-Length: 2\r\n\r\nok", ProtocolError),
    "status 0": (b"HTTP/1.1 000 What\r\nContent-Length: 2\r\n\r\nok", ProtocolError),
    "status 1000": (b"HTTP/1.1 1000 What\r\nContent-Length: 2\r\n\r\nok", ProtocolError),
    "switching protocols": (
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nxyz",
        ProtocolError,
    ),
    "switching protocols without a word": (b"HTTP/1.1 101 Switching\r\n\r\n" + EVIL, ProtocolError),
    "broken gzip": (PACKED + b"Content-Length: 9\r\n\r\n\x1f\x8bno gzip", ProtocolError),
    "junk after gzip": (
        PACKED + b"Content-Length: %d\r\n\r\n%bjunk" % (len(gzip.compress(b"ok")) + 4, gzip.compress(b"ok")),
        ProtocolError,
    ),
    "a flood of packed streams": (
        PACKED + b"Content-Length: %d\r\n\r\n%b" % (20 * 1000, gzip.compress(b"") * 1000),
        ProtocolError,
    ),
    "cut gzip": (PACKED + b"Content-Length: 12\r\n\r\n" + gzip.compress(b"ok" * 99)[:12], TruncatedContent),
    "gzip cut by the close": (then_close(PACKED + b"\r\n" + gzip.compress(b"ok" * 99)[:12]), TruncatedContent),
    "an encoding nobody asked for": (STATUS + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\nok", ProtocolError),
    "two encodings": (STATUS + b"Content-Encoding: gzip, gzip\r\nContent-Length: 2\r\n\r\nok", ProtocolError),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
async def test_a_broken_response_is_an_error_and_the_next_request_gets_its_own(name: str) -> None:
    answer, error = REFUSED[name]
    async with scripted(answer, OK) as (client, server):
        with pytest.raises(HttpError) as refused:
            await client.post(server.url, b"")
        assert type(refused.value) is error
        assert (await client.post(server.url, b"")).body == b"ok"
        assert server.connections == 2


@pytest.mark.parametrize("framed", [b"Content-Length: %d\r\n\r\n" % (LIMIT + 1), b"\r\n"])
async def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_is_not(framed: bytes) -> None:
    full = framed.replace(b"%d" % (LIMIT + 1), b"%d" % LIMIT)
    async with scripted(
        then_close(STATUS + framed + b"x" * (LIMIT + 1)), then_close(STATUS + full + b"x" * LIMIT)
    ) as (client, server):
        with pytest.raises(ResponseTooLarge):
            await client.post(server.url, b"")
        assert len((await client.post(server.url, b"")).body) == LIMIT


async def test_a_body_takes_its_own_size_however_small_its_pieces_are() -> None:
    received = CHUNKED + b"2\r\nok\r\n" * (LIMIT // 2) + b"0\r\n\r\n"
    async with scripted(received) as (client, server):
        tracemalloc.start()
        try:
            body = (await client.post(server.url, b"")).body
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert body == b"ok" * (LIMIT // 2)
    assert peak < len(received) + 4 * LIMIT


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_bomb_is_refused_before_it_has_unpacked_more_than_the_limit(
    coding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    unpack = zlib.decompressobj

    class Counting:
        def __init__(self, bits: int) -> None:
            self._inside = unpack(bits)

        def __getattr__(self, name: str) -> object:
            return getattr(self._inside, name)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal made
            piece = self._inside.decompress(data, most)
            made += len(piece)
            return piece

    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31 if coding == "gzip" else 15)
    bomb = squeeze.compress(b"\0" * (200 << 20)) + squeeze.flush()
    assert len(bomb) < LIMIT
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    head = STATUS + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (coding.encode(), len(bomb))
    async with scripted(head + bomb) as (client, server):
        with pytest.raises(ResponseTooLarge):
            await client.post(server.url, b"")
    assert LIMIT < made <= LIMIT + 1
