"""Responses of any bytes, in any pieces: a response comes out or an error of ours, and nothing of it meets the next one."""

from __future__ import annotations

import asyncio
import gzip
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutations import fuzz, mutated_bytes
from tests.support.http_clients import CHUNKED, EVIL, OK, STATUS
from tests.support.raw_server import WireRequest, wired
from windrow.policies.http_client import HttpError, Response, http_client
from windrow.policies.http_client.connection import Connection

LIMIT = 5000
PACKED = gzip.compress(b"packed")
RESPONSES = [
    OK,
    OK + EVIL,
    STATUS + b"Connection: close\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the close",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: </x>\r\n\r\n" + OK,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 429 Busy\r\nRetry-After: 3\r\nContent-Length: 4\r\n\r\nbusy",
    CHUNKED + b"2\r\nok\r\n3;x=y\r\nok!\r\n0\r\nX-Trailer: 1\r\n\r\n",
    STATUS + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(PACKED) + PACKED,
    CHUNKED[:-2] + b"Content-Encoding: gzip\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(PACKED), PACKED),
]
TOKENS = [
    b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" ", b":", b"0\r\n\r\n", b"5\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"HTTP/1.1 ",
    b"Content-Length: 3\r\n", b"Content-Length: 99999\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n",
    b"Content-Encoding: deflate\r\n", b"Content-Encoding: gzip\r\n", b"Connection: close\r\n", b"Connection: upgrade\r\n",
    b"Upgrade: x\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 101 Switching\r\n\r\n", b"HTTP/1.1 200 OK\r\n", OK, EVIL,
    b"x" * 70_000, b"y" * 6000, b"\0",
]  # fmt: skip


def spliced(data: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    for where, token in changes:
        at = where % (len(data) + 1)
        data = data[:at] + token + data[at:]
    return data


places = st.tuples(st.integers(0, 400), st.sampled_from(TOKENS))
streams = st.builds(spliced, mutated_bytes(RESPONSES), st.lists(places, max_size=3))
cuts = st.lists(st.integers(0, 2000), max_size=8)


class Sink(asyncio.Transport):
    """A transport that sends to nowhere."""

    closing = False

    def write(self, data: object) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.closing = True


class Talk:
    """A connection that is fed by hand; what comes after it was aborted is lost, as on a socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.connection = Connection(LIMIT, lambda connection: None)
        self._transport = Sink()
        self.connection.connection_made(self._transport)

    def ask(self) -> asyncio.Future[Response]:
        return self.connection.request(b"GET / HTTP/1.1\r\n\r\n", self._loop)

    def feed(self, data: bytes) -> None:
        if data and not self._transport.closing:
            self.connection.data_received(data)

    def end(self) -> None:
        self.connection.connection_lost(None)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def pieces(data: bytes, at: list[int]) -> Iterator[bytes]:
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in at)})
    for start, end in itertools.pairwise(edges):
        yield data[start:end]


def outcome(pending: asyncio.Future[Response]) -> Response | None:
    """The response, or None for an error of the client's; whatever else is raised is a failure."""
    assert pending.done()
    if isinstance(pending.exception(), HttpError):
        return None
    response = pending.result()
    assert 200 <= response.status <= 999
    assert len(response.body) <= LIMIT
    return response


@fuzz(2000)
@given(stream=streams, at=cuts)
def test_any_bytes_are_a_response_or_an_error_however_they_are_split(
    stream: bytes, at: list[int], loop: asyncio.AbstractEventLoop
) -> None:
    split, whole = Talk(loop), Talk(loop)
    pending, at_once = split.ask(), whole.ask()
    for piece in pieces(stream, at):
        split.feed(piece)
    whole.feed(stream)
    for talk in (split, whole):
        talk.end()
    assert outcome(pending) == outcome(at_once)


@fuzz(2000)
@given(stream=streams, at=cuts)
def test_nothing_of_a_response_meets_the_next_request(
    stream: bytes, at: list[int], loop: asyncio.AbstractEventLoop
) -> None:
    talk = Talk(loop)
    pending = talk.ask()
    for piece in pieces(stream, at):
        talk.feed(piece)
    if not pending.done() or not talk.connection.reusable:
        talk.end()
        outcome(pending)
        return
    assert outcome(pending) is not None
    again = talk.ask()
    assert not again.done()
    talk.feed(b"HTTP/1.1 418 Teapot\r\nContent-Length: 4\r\n\r\nnext")
    status, headers, body, *_ = again.result()
    assert (status, headers, body) == (418, {b"content-length": b"4"}, b"next")
    assert talk.connection.reusable


class Told:
    """What is sent next, unless the request asks for a proper response."""

    stream = b""

    def __call__(self, request: WireRequest) -> bytes:
        return OK.replace(b"ok", b"42") if request.path.endswith("/proper") else self.stream


@pytest.fixture(scope="module")
def told() -> Told:
    return Told()


@pytest.fixture(scope="module")
def url(told: Told) -> Iterator[str]:
    with wired(told) as server:
        yield server.url


@fuzz(200)
@given(stream=streams)
def test_a_server_of_any_bytes_spoils_no_other_request(
    stream: bytes, url: str, told: Told, loop: asyncio.AbstractEventLoop
) -> None:
    told.stream = stream

    async def ask() -> None:
        client = http_client(url, {}, max_body_bytes=LIMIT)
        try:
            for _ in range(2):
                try:
                    assert len((await client.post(url, b"?")).body) <= LIMIT
                except HttpError:
                    pass
                response = await client.get(url + "/proper", new_connection=True)
                assert response.body == b"42"
        finally:
            await client.close()

    loop.run_until_complete(ask())
