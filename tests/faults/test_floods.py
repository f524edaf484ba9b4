"""Replies without measure: a reply over the limit is refused before it is read whole, packed or not."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable

import pytest

from tests.faults.conftest import MODELS, Bench, Door
from tests.support.raw_server import WireServer, completion, http
from windrow.policies.endpoint import MAX_REPLY_BYTES

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
PART = b"x" * (1 << 20)


class Flood:
    """Sends `parts` MiB as long as they are taken, and counts them."""

    def __init__(self, parts: int, *, declared: bool) -> None:
        self.parts = parts
        self.declared = declared
        self.sent = 0

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        length = b"Content-Length: %d" % (self.parts * len(PART))
        writer.write(HEAD + (length if self.declared else b"Transfer-Encoding: chunked") + b"\r\n\r\n")
        for _ in range(self.parts):
            writer.write(PART if self.declared else b"%x\r\n%s\r\n" % (len(PART), PART))
            await writer.drain()
            self.sent += 1


def packed(body: bytes, times: int) -> bytes:
    """`body` so many times over, as gzip."""
    squeeze = zlib.compressobj(6, zlib.DEFLATED, 31)
    return b"".join([*(squeeze.compress(body) for _ in range(times)), squeeze.flush()])


def refused(bench: Bench, door: Door, kinds: tuple[str, ...] = ("bad_reply",)) -> None:
    ended = bench.collect()
    assert ended.code == 1
    assert "5 of 6 done" in ended.err
    [failed] = [line for line in bench.lines() if line["status"] == "failed"]
    assert failed["error"]["kind"] in kinds
    assert "more than 64 MiB" in failed["error"]["message"]
    assert len(bench.log) < 100_000
    door.fault = None
    assert bench.collect().code == 0
    assert len(bench.lines()) == 7


@pytest.mark.parametrize("declared", [True, False])
def test_a_reply_that_is_too_long_is_not_read_to_its_end(
    declared: bool, bench: Bench, served: Callable[..., WireServer]
) -> None:
    flood = Flood(1000, declared=declared)
    door = Door(flood)
    served(door)
    refused(bench, door)
    # What was on its way when the connection was closed lies in buffers of a few MiB.
    assert flood.sent <= (16 if declared else (MAX_REPLY_BYTES >> 20) + 16)


def test_a_small_reply_that_unpacks_to_a_large_one_is_refused_too(
    bench: Bench, served: Callable[..., WireServer]
) -> None:
    bomb = packed(PART, 200)
    assert len(bomb) < 1 << 20
    door = Door(http(200, bomb, {"Content-Encoding": "gzip", "Content-Type": "application/json"}))
    served(door)
    refused(bench, door)


def test_a_packed_reply_is_read(bench: Bench, served: Callable[..., WireServer]) -> None:
    body = packed(json.dumps(completion("42")).encode(), 1)
    served(
        lambda request: MODELS if request.method == "GET" else http(200, body, {"Content-Encoding": "gzip"})
    )
    assert bench.collect().code == 0
    assert {line["reward"] for line in bench.lines()} == {1.0}


def test_a_reply_of_many_megabytes_is_a_rollout(bench: Bench, served: Callable[..., WireServer]) -> None:
    said = "42 " + "word " * (10 << 18)
    door = Door(http(200, completion(said)))
    served(door)
    assert bench.collect("--scorer", "contains").code == 0
    assert bench.finals()["q3"].reply == said


def test_an_endpoint_that_floods_the_list_of_models_is_refused(
    bench: Bench, served: Callable[..., WireServer]
) -> None:
    served(lambda request: Flood(1000, declared=False))
    ended = bench.collect()
    assert ended.code == 1
    assert "answered with more than 64 MiB" in ended.err
    assert bench.lines() == []
