"""What the floors share: the work, but for the client that asks.

A floor posts the same chat request for every (task, sample), decodes only what a record needs, and appends one JSON line
each to a file, in batches. No plan, no environment, no retries, no progress.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from _measure import raise_file_limit

try:
    import uvloop
except ImportError:
    uvloop = None

HEADERS = {"content-type": "application/json"}


class TokenLogprob(msgspec.Struct):
    logprob: float


class Logprobs(msgspec.Struct):
    content: list[TokenLogprob] | None = None


class Message(msgspec.Struct):
    content: str | None = None


class Choice(msgspec.Struct):
    message: Message
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    token_ids: list[int] | None = None


class Reply(msgspec.Struct):
    choices: list[Choice]


decode = msgspec.json.Decoder(Reply).decode
encode = msgspec.json.Encoder().encode


def request_body(task: int, sample: int, *, logprobs: bool) -> dict:
    messages = [{"role": "user", "content": f"What is {task} + 1?"}]
    body = {"model": "stub", "messages": messages, "seed": sample}
    if logprobs:
        body |= {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}
    return body


def record(task: int, sample: int, body: dict, choice: Choice, seconds: float) -> bytes:
    logprobs = None
    if choice.logprobs and choice.logprobs.content:
        logprobs = [token.logprob for token in choice.logprobs.content]
    line = {
        "task": task,
        "sample": sample,
        "messages": body["messages"],
        "reply": choice.message.content,
        "logprobs": logprobs,
        "ids": choice.token_ids,
        "seconds": seconds,
    }
    return encode(line) + b"\n"


class Client(NamedTuple):
    """How a floor asks: what it is called, how a session is opened, and one request through it."""

    name: str
    session: Callable[[str], AbstractAsyncContextManager[Any]]  # given the base URL
    ask: Callable[[Any, str, dict], Awaitable[Choice]]


async def converse(client: Client, session: Any, url: str, body: dict, turns: int) -> Choice:
    """Play `turns` turns; `body` ends up with the whole conversation but for the last reply, which is returned."""
    choice = await client.ask(session, url, body)
    for _ in range(turns - 1):
        body["messages"] += [
            {"role": "assistant", "content": choice.message.content},
            {"role": "user", "content": "Are you sure?"},
        ]
        choice = await client.ask(session, url, body)
    return choice


async def collect(client: Client, options: argparse.Namespace, file: BinaryIO) -> int:
    """Write one line a (task, sample) and return how many there are."""
    url = options.base_url.rstrip("/") + "/chat/completions"
    jobs = iter([(task, sample) for task in range(options.tasks) for sample in range(options.repeats)])
    async with client.session(options.base_url) as session:

        async def work(jobs: Iterator[tuple[int, int]]) -> int:
            done = 0
            for task, sample in jobs:
                body = request_body(task, sample, logprobs=options.logprobs)
                started = time.time()
                choice = await converse(client, session, url, body, options.turns)
                file.write(record(task, sample, body, choice, time.time() - started))
                done += 1
            return done

        counts = await asyncio.gather(*(work(jobs) for _ in range(options.concurrency)))
    return sum(counts)


async def run(client: Client, options: argparse.Namespace) -> None:
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    with (out / "rollouts.jsonl").open("wb", buffering=1 << 20) as file:
        started = time.perf_counter()
        rollouts = await collect(client, options, file)
        file.flush()
        seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    report = {
        "tool": client.name,
        "rollouts": rollouts,
        "seconds": round(seconds, 3),
        "rollouts_per_s": round(rollouts / seconds, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "peak_rss_mb": round(used.ru_maxrss / 1024, 1),
    }
    print(json.dumps(report))


def main(client: Client, description: str) -> None:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--out", required=True)
    parser.add_argument("--logprobs", action="store_true")
    parser.add_argument("--turns", type=int, default=1)
    options = parser.parse_args()
    raise_file_limit()
    if uvloop is not None:
        uvloop.install()
    asyncio.run(run(client, options))
