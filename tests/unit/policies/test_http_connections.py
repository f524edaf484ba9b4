"""What the HTTP client sends, and which connections it uses again, on real sockets."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop

from tests.support.collect_helpers import until
from tests.support.http_clients import EVIL, LIMIT, OK, STATUS, connected, scripted, then_close
from tests.support.raw_server import Deed, WireRequest, resetting, wire
from windrow.errors import UsageError
from windrow.policies.http_client import (
    HttpClient,
    HttpError,
    ProtocolError,
    StaleConnectionError,
    http_client,
)
from windrow.policies.http_client.connection import Connection
from windrow.policies.http_client.direct import DirectClient

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")

LOOPS = {"asyncio": asyncio.DefaultEventLoopPolicy, "uvloop": uvloop.EventLoopPolicy}


@pytest.fixture(params=LOOPS)
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Users have uvloop, and asyncio's own loop where that is missing."""
    return LOOPS[request.param]()


# -- what is sent


async def test_a_request_is_its_path_its_headers_and_its_body() -> None:
    async with wire(lambda request: OK, keep_alive=True) as server:
        async with connected(server.url, {"Content-Type": "text/x", "Authorization": "Bearer k"}) as client:
            await client.post(server.url + "/a b/ü", b"\x00body")
            await client.get(server.url + "/models?x=1")
    post, get = server.requests
    assert (post.method, post.path, post.body) == ("POST", "/v1/a%20b/%C3%BC", b"\x00body")
    assert post.head.split("\r\n")[1:] == [
        f"Host: 127.0.0.1:{server.port}",
        "Accept: */*",
        "Accept-Encoding: gzip, deflate",
        "User-Agent: windrow",
        "Content-Type: text/x",
        "Authorization: Bearer k",
        "Content-Length: 5",
        "",
        "",
    ]
    assert (get.method, get.path) == ("GET", "/v1/models?x=1")
    assert "Content-Length" not in get.head


@pytest.mark.parametrize("key", ["k\r\nX-Evil: 1", "k\nsecret", "k\rsecret", "k\0secret", "kéy\u20ac"])
def test_a_header_that_cannot_be_sent_is_refused_and_its_value_is_not_shown(key: str) -> None:
    with pytest.raises(UsageError, match="'Authorization' cannot be sent") as refused:
        http_client("http://127.0.0.1:9/v1", {"Authorization": f"Bearer {key}"}, max_body_bytes=LIMIT)
    assert not any(part in str(refused.value) for part in ("Evil", "secret", "\u20ac", "Bearer"))


def test_a_header_name_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be sent"):
        http_client("http://127.0.0.1:9/v1", {"X: 1\r\nY": "2"}, max_body_bytes=LIMIT)


# -- connections


async def test_requests_at_once_have_a_connection_each_and_leave_them_to_the_next() -> None:
    together = asyncio.Event()

    def answer(request: WireRequest) -> Deed:
        async def deed(writer: asyncio.StreamWriter) -> None:
            if len(server.requests) == 10:
                together.set()
            await together.wait()
            writer.write(STATUS + b"Content-Length: %d\r\n\r\n" % len(request.body) + request.body)

        return deed

    async with wire(answer, keep_alive=True) as server, connected(server.url) as client:
        for _ in range(2):
            said = [b"%d" % n for n in range(10)]
            responses = await asyncio.gather(*(client.post(server.url, body) for body in said))
            assert [response.body for response in responses] == said
        assert server.connections == 10


async def test_what_comes_unasked_for_on_an_idle_connection_ends_it_and_answers_nothing() -> None:
    async def twice(writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()
        await answered.wait()
        writer.write(EVIL)

    answered = asyncio.Event()
    async with scripted(twice, OK) as (client, server):
        assert (await client.post(server.url, b"")).body == b"ok"
        answered.set()
        await until(lambda: server.open == 0)  # the client has closed it
        assert (await client.post(server.url, b"")).body == b"ok"
        assert server.connections == 2


async def test_a_connection_that_was_closed_while_idle_is_not_used_again() -> None:
    async def later(writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()
        await answered.wait()
        writer.close()
        await writer.wait_closed()

    answered = asyncio.Event()
    async with scripted(later, OK) as (client, server):
        assert (await client.post(server.url, b"")).body == b"ok"
        answered.set()
        await until(
            lambda: not transports(client)
        )  # it has heard of it; a request before that would be a stale one
        assert (await client.post(server.url, b"")).body == b"ok"
        assert server.connections == 2


async def test_a_reused_connection_that_ends_without_a_word_is_told_apart() -> None:
    async with scripted(OK, then_close(b""), OK) as (client, server):
        await client.post(server.url, b"first")
        with pytest.raises(StaleConnectionError):
            await client.post(server.url, b"second")
        assert [request.body for request in server.requests] == [b"first", b"second"]  # it is not repeated
        await client.post(server.url, b"third")
        assert server.connections == 2


@pytest.mark.parametrize("ending", [then_close(b""), resetting()])
async def test_a_new_connection_that_ends_without_a_word_is_a_failure(ending: Deed) -> None:
    async with scripted(OK, ending) as (client, server):
        await client.post(server.url, b"first")
        with pytest.raises(ProtocolError, match="without a response"):
            await client.post(server.url, b"second", new_connection=True)
        assert len(server.requests) == 2


@pytest.mark.parametrize("reset", [True, False])
async def test_a_server_that_closes_every_connection_at_once_is_a_failure(reset: bool) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if reset:
            await resetting()(writer)
        else:
            writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with connected(url) as client:
        calls = [client.post(url, b"x" * 100_000) for _ in range(50)]
        for failed in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(failed, HttpError)
            assert not isinstance(failed, StaleConnectionError)
        await until(lambda: not transports(client))
    server.close()


async def test_a_connection_that_ended_before_the_request_is_a_failure() -> None:
    connection = Connection(LIMIT, lambda ended: None)
    connection.connection_made(asyncio.Transport())
    connection.connection_lost(None)
    with pytest.raises(ProtocolError, match="before the request was sent"):
        await connection.request(b"GET / HTTP/1.1\r\n\r\n", asyncio.get_running_loop())


async def test_a_reused_connection_that_ends_in_a_response_is_a_failure() -> None:
    async with scripted(OK, then_close(b"H")) as (client, server):
        await client.post(server.url, b"first")
        with pytest.raises(ProtocolError, match="in the middle of a response"):
            await client.post(server.url, b"second")


async def test_a_request_that_is_given_up_takes_its_connection_with_it() -> None:
    async def answers_late(writer: asyncio.StreamWriter) -> None:
        await given_up.wait()
        writer.write(EVIL)

    given_up = asyncio.Event()
    async with scripted(answers_late, OK) as (client, server):
        call = asyncio.ensure_future(client.post(server.url, b""))
        await until(lambda: server.requests)
        call.cancel()
        given_up.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await client.post(server.url, b"")).body == b"ok"
        assert server.connections == 2
        await until(lambda: server.open == 1)


async def test_a_server_that_does_not_read_is_left_and_what_was_to_be_sent_is_dropped() -> None:
    with socket.create_server(
        ("127.0.0.1", 0)
    ) as server:  # the kernel takes the connection, and nobody reads
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        async with connected(url) as client:
            call = asyncio.ensure_future(client.post(url, bytes(50 << 20)))
            await until(lambda: call.done() or unsent_bytes(client) > 10 << 20)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda: unsent_bytes(client) == 0)


def unsent_bytes(client: HttpClient) -> int:
    """How much waits in the connections to be sent."""
    return sum(transport.get_write_buffer_size() for transport in transports(client))


def transports(client: HttpClient) -> list[asyncio.Transport]:
    """The client's open connections."""
    assert isinstance(client, DirectClient)
    found = [connection._transport for connection in client._open]
    return [transport for transport in found if transport is not None and not transport.is_closing()]


async def test_a_server_that_answers_before_it_has_read_everything_is_heard_and_left() -> None:
    async def answers_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)

    connections: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(answers_at_once, "127.0.0.1", 0, limit=1 << 16)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with connected(url) as client:
        assert (await client.post(url, bytes(50 << 20))).body == b"ok"
        assert (await client.post(url, b"")).body == b"ok"
        assert len(connections) == 2
    server.close()
    for writer in connections:
        writer.close()


async def test_closing_the_client_ends_what_is_under_way_and_closes_every_connection() -> None:
    async with scripted(OK, None) as (client, server):
        await client.post(server.url, b"")
        call = asyncio.ensure_future(client.post(server.url, b"", new_connection=True))
        await until(lambda: len(server.requests) == 2)
        await client.close()
        with pytest.raises(HttpError):
            await call
        await until(lambda: server.open == 0)
