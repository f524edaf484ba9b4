"""Several base URLs: who gets which call, and what happens when one of them is not there."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import collected, until
from tests.support.model_server import ModelServer
from windrow import Rollout
from windrow.cli.main import main
from windrow.errors import EndpointError, UsageError

ROWS = [{"prompt": f"{n} + 0?", "answer": str(n)} for n in range(8)]
Start = Callable[..., ModelServer]


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def echo(body: dict[str, Any], n: int) -> str:
    return str(body["messages"][0]["content"]).partition(" ")[0]


@contextmanager
def nobody() -> Iterator[str]:
    """A URL at which connections are refused."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{door.getsockname()[1]}/v1"


async def asked(urls: list[str], rows: Any = ROWS, **options: Any) -> list[Rollout]:
    return await collected(rows, model="stub", base_url=urls, **options)


async def test_calls_in_flight_are_shared_evenly(stub: Start, tmp_path) -> None:
    together = threading.Barrier(8, timeout=60)  # nobody is answered before all have been asked

    def reply(body: dict[str, Any], n: int) -> str:
        together.wait()
        return echo(body, n)

    servers = [stub(reply), stub(reply)]
    rollouts = await asked([s.url for s in servers], out=str(tmp_path / "run"), concurrency=8)
    assert [r.reward for r in rollouts] == [1.0] * 8
    assert [server.completions for server in servers] == [4, 4]


async def test_a_rollouts_later_calls_go_where_its_first_one_went(stub: Start, tmp_path) -> None:
    servers = [stub(echo) for _ in range(3)]
    rows = [{"prompt": f"{n} go on", "script": ["and?", "and then?", "and after that?"]} for n in range(12)]
    await asked([s.url for s in servers], rows, out=str(tmp_path / "run"), env="chat", concurrency=4)
    where: dict[str, set[int]] = defaultdict(set)
    for number, server in enumerate(servers):
        for body in server.bodies:
            where[body["messages"][0]["content"]].add(number)
    assert [len(used) for used in where.values()] == [1] * 12
    assert set.union(*where.values()) == {0, 1, 2}


async def test_when_one_goes_away_the_others_take_its_calls(stub: Start, tmp_path) -> None:
    warnings: list[str] = []
    going, staying = stub(echo, latency_s=60), stub(echo)
    run = asyncio.create_task(
        asked(
            [going.url, staying.url],
            [{"prompt": f"{n} ?", "answer": str(n)} for n in range(40)],
            out=str(tmp_path / "run"),
            concurrency=16,
            on_warning=warnings.append,
        )
    )
    await until(lambda: going.in_flight >= 8)
    await asyncio.to_thread(going.stop)
    rollouts = await run
    assert [r.reward for r in rollouts] == [1.0] * 40
    [warning] = warnings
    assert warning.startswith(f"{going.url} is paused")
    assert "calls go elsewhere until it answers again" in warning


@pytest.mark.slow
async def test_one_that_is_not_there_at_the_start_is_left_out_until_it_is(stub: Start, tmp_path) -> None:
    warnings: list[str] = []
    late = stub(echo)
    await asyncio.to_thread(late.stop)
    held = threading.Event()
    there = stub(lambda body, n: (held.wait(30), echo(body, n))[1])
    run = asyncio.create_task(
        asked(
            [late.url, there.url],
            [{"prompt": f"{n} ?", "answer": str(n)} for n in range(64)],
            out=str(tmp_path / "run"),
            concurrency=2,
            on_warning=warnings.append,
        )
    )
    await until(lambda: there.completions)
    assert warnings[0].startswith(f"cannot reach {late.url}")
    assert "It is left out until it answers" in warnings[0]
    late = stub(echo, port=late.port)
    await until(lambda: late.requests["/v1/models"])
    held.set()
    assert [r.reward for r in await run] == [1.0] * 64
    assert late.completions > 0


async def test_when_none_is_there_the_run_is_refused(tmp_path) -> None:
    with nobody() as one, nobody() as other, pytest.raises(EndpointError, match="Is the server running"):
        await asked([one, other], out=str(tmp_path / "run"))


async def test_one_that_does_not_serve_the_model_is_an_error_that_names_it(stub: Start, tmp_path) -> None:
    wrong = stub(lambda body, n: (404, {}, {"error": {"message": "no such model"}}), models=["other"])
    right = stub(echo)
    with nobody() as dead, pytest.raises(EndpointError) as refusal:
        await asked([dead, right.url, wrong.url], out=str(tmp_path / "run"))
    assert f"model 'stub' is not known at {wrong.url}" in str(refusal.value)
    assert right.completions == 0


async def test_the_urls_are_no_part_of_the_identity(stub: Start, tmp_path) -> None:
    one, other = stub(echo), stub(echo)
    first = await asked([one.url], out=str(tmp_path / "run"))
    more = await asked([other.url, one.url], out=str(tmp_path / "run"), samples=2)
    assert len(first) == len(more) == 8
    assert {r.group for r in first} == {r.group for r in more}


async def test_a_url_is_given_once(tmp_path) -> None:
    with pytest.raises(UsageError, match="given twice"):
        await asked(["http://127.0.0.1:9/v1"] * 2, out=str(tmp_path / "run"))


def test_the_flag_repeats_and_a_file_may_hold_a_list(stub: Start, tmp_path, capsys) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"prompt": "1 ?", "answer": 1}\n{"prompt": "2 ?", "answer": 2}\n')
    together = threading.Barrier(2, timeout=60)  # as above

    def reply(body: dict[str, Any], n: int) -> str:
        together.wait()
        return echo(body, n)

    servers = [stub(reply) for _ in range(2)]
    flags = [part for server in servers for part in ("--base-url", server.url)]
    run = ["collect", str(tasks), "--model", "stub", "--quiet"]
    assert main([*run, *flags, "--out", str(tmp_path / "flags")]) == 0
    file = tmp_path / "run.yaml"
    file.write_text(f"policy:\n  base_url: [{servers[0].url}, {servers[1].url}]\n")
    assert main([*run, "--config", str(file), "--out", str(tmp_path / "file")]) == 0
    assert [server.completions for server in servers] == [2, 2]
    assert [r.reward for r in windrow.load(tmp_path / "file")] == [1.0, 1.0]


def test_the_doctor_looks_at_every_url(stub: Start, capsys) -> None:
    server = stub("5")
    with nobody() as dead:
        command = ["doctor", "--model", "stub", "--base-url", server.url, "--base-url", dead]
        assert main(command) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert f"ok endpoint {server.url}: stub answers in" in said
    assert f"!! endpoint cannot reach {dead}" in said
