"""Parent and workers: how work is shared, and who waits for whom."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.model_server import write_jsonl
from windrow.collecting.collection import Collection
from windrow.collecting.opening import open_collection
from windrow.collecting.resolve import resolve
from windrow.config import PolicyConfig, RunConfig, load_config
from windrow.engine.components import Overrides
from windrow.errors import UsageError
from windrow.store import locks
from windrow.store.lock import Lock
from windrow.store.run_directory import RunDirectory
from windrow.tasks.plan import MAX_DATA_BYTES
from windrow.workers.messages import (
    Attempt,
    Channel,
    Durable,
    Ended,
    Finish,
    Order,
    Report,
    RunSlots,
    Start,
    open_channel,
)
from windrow.workers.pool import divided, shares_of
from windrow.workers.process import BEGIN
from windrow.workers.spec import WorkerSpec

HOLD = """
import sys
from pathlib import Path
from windrow.store.lock import Lock
held = Lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
"""


@given(st.integers(1, 1000), st.integers(1, 50))
def test_shares_are_even_and_nothing_is_dropped(total: int, count: int) -> None:
    shares = shares_of(total, count)
    assert (sum(shares), len(shares)) == (total, count)
    assert max(shares) - min(shares) <= 1


def test_the_rates_of_an_endpoint_are_divided() -> None:
    policy = PolicyConfig(model="m", requests_per_minute=90.0)
    spec = WorkerSpec(run=RunConfig(policy=policy), origins={}, scorers=[], behaviour="b", grading=None)
    shared = divided(spec, 3).run.policy
    assert (shared.requests_per_minute, shared.tokens_per_minute) == (30.0, None)
    assert msgspec.structs.replace(shared, requests_per_minute=90.0) == policy


def opened(path: Path, rows: list[dict[str, Any]], **options: Any) -> Collection:
    """A run that workers can share in: everything is given by name."""
    (path / "script.json").write_text(json.dumps({"replies": [{"reply": "42"}]}))
    tasks = write_jsonl(path / "tasks.jsonl", rows)
    settings = {"model": f"scripted:{path / 'script.json'}", "tasks": str(tasks), "out": str(path / "run")}
    return open_collection(resolve(load_config((), {**settings, **options}), Overrides()))


def test_a_slot_arrives_at_a_worker_as_it_was_and_the_row_of_a_task_is_sent_once(tmp_path: Path) -> None:
    rows = [{"prompt": "first"}, {"prompt": "second", "long": "x" * MAX_DATA_BYTES}, {"prompt": "third"}]
    collection = opened(tmp_path, rows, samples=4)
    slots = list(collection.plan.pending(collection.ledger))
    collection.close()
    message = msgspec.json.encode(RunSlots.of(slots[1:]))
    order = msgspec.json.decode(message, type=Order)
    assert isinstance(order, RunSlots)
    assert [slot for lease in order.leases for slot in lease.slots()] == slots[1:]
    assert [message.count(row["prompt"].encode()) for row in rows] == [1, 1, 1]


@asynccontextmanager
async def started_worker(collection: Collection, *, wants_rollouts: bool) -> AsyncIterator[Channel[Any]]:
    """A worker process, and this end of what it says to its parent."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", BEGIN, str(theirs.fileno()), str(os.getpid()), *sys.path),
            pass_fds=(theirs.fileno(),),
        )
    channel = await open_channel(ours, Report)
    start = Start(
        spec=collection.resolved.worker_spec,
        run=str(collection.path),
        writer="w0",
        lock=True,
        concurrency=8,
        wants_rollouts=wants_rollouts,
    )
    try:
        channel.post(start)
        yield channel
    finally:
        await channel.close()
        await process.wait()


async def reports_of(collection: Collection, *, wants_rollouts: bool) -> list[list[Attempt]]:
    """What a worker reports of all slots of a run, message by message. Each is on disk by then."""
    slots = list(collection.plan.pending(collection.ledger))
    segment = Path(str(collection.path)) / "rollouts.w0.jsonl"
    reports: list[list[Attempt]] = []
    async with started_worker(collection, wants_rollouts=wants_rollouts) as channel:
        channel.post(RunSlots.of(slots))
        async for report in channel.receive():
            if isinstance(report, Durable):
                on_disk = {json.loads(line)["id"] for line in segment.read_bytes().splitlines()}
                assert {slots[attempt.number].id for attempt in report.attempts} <= on_disk
                reports.append(report.attempts)
                if sum(map(len, reports)) == len(slots):
                    channel.post(Finish())
            elif isinstance(report, Ended):
                break
    return reports


@pytest.mark.slow
async def test_a_worker_reports_each_commit_in_one_message_once_it_is_on_disk(tmp_path: Path) -> None:
    rows = [{"prompt": f"what is {n}", "answer": "42"} for n in range(40)]
    collection = opened(tmp_path, rows, samples=4, scorers=["number"])
    reports = await reports_of(collection, wants_rollouts=False)
    collection.close()
    assert len(reports) < 160
    attempts = [attempt for report in reports for attempt in report]
    assert sorted(attempt.number for attempt in attempts) == list(range(160))
    assert {seat.reward for attempt in attempts for seat in attempt.seats} == {1.0}
    assert not any(attempt.rollouts for attempt in attempts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scorer", "wanted"), [("number", True), ("tests.support.run_builders:judge", False)]
)
async def test_a_worker_sends_rollouts_to_a_parent_that_hands_them_on_or_grades_them(
    tmp_path: Path, scorer: str, wanted: bool
) -> None:
    collection = opened(tmp_path, [{"prompt": "what is it", "answer": "42"}], samples=4, scorers=[scorer])
    reports = await reports_of(collection, wants_rollouts=wanted)
    collection.close()
    replies = [rollout.reply for [attempt] in reports for rollout in attempt.rollouts]
    assert replies == ["42"] * 4


@pytest.fixture
def worker(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock of a worker's segment until it is told to go."""
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run" / "lock.w0")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_next_parent_waits_for_workers_that_are_still_writing(
    tmp_path: Path, worker: subprocess.Popen[str]
) -> None:
    opened = threading.Event()

    def open_it() -> None:
        RunDirectory(tmp_path / "run").close()
        opened.set()

    opening = threading.Thread(target=open_it)
    opening.start()
    assert not opened.wait(0.3)
    worker.communicate("go\n", timeout=30)
    opening.join(30)
    assert opened.is_set()


def test_a_worker_that_does_not_go_is_named(
    tmp_path: Path, worker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "WORKERS_GONE_S", 0.05)
    with pytest.raises(UsageError, match=f"is being written by process {worker.pid}"):
        RunDirectory(tmp_path / "run")
    worker.communicate("go\n", timeout=30)
    Lock(tmp_path / "run" / "lock").release()
