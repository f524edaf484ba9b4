"""Promises of the design that no other file is about: what counts as committed, what runs at once, what is held in memory."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected, lines
from tests.support.fake_disks import CountingDisk, FullDisk, QuickDisk
from tests.support.model_server import write_jsonl
from tests.support.run_builders import collect, make_rollout, open_run, rows
from windrow import Request
from windrow.collecting.resolve import resolve
from windrow.collecting.running import run_collection
from windrow.config import load_config
from windrow.errors import InfraError, StoreError, UsageError
from windrow.policies.calls import MAX_BACKOFF_S, pause_s
from windrow.store.blobs import BlobStore
from windrow.store.log import Log
from windrow.store.manifest import read_manifest
from windrow.store.sinks import RolloutSink
from windrow.util.disk import Disk
from windrow.util.redaction import Redactor

# -- the commit


async def test_nothing_is_counted_or_reported_before_it_is_on_disk(tmp_path: Path) -> None:
    disk = CountingDisk()
    collection = open_run(tmp_path / "run", samples=1, disk=disk)
    reported: list[Any] = []
    disk.hold()
    running = asyncio.create_task(run_collection(collection, on_commit=reported.append))
    try:
        await asyncio.to_thread(disk.wait_for_sync)
        await a_while()
        early = (len(reported), collection.progress.settled, collection.ledger.done_count)
    finally:
        disk.release()
    await running
    assert early == (0, 0, 0)
    assert (len(reported), collection.progress.settled, collection.ledger.done_count) == (3, 3, 3)


async def test_an_episode_that_ended_makes_room_for_the_next_and_only_so_many_wait_for_the_disk(
    tmp_path: Path,
) -> None:
    asked: list[str] = []
    enough = asyncio.Event()

    def answer(request: Request) -> str:
        asked.append(request.id)
        if len(asked) == 5:
            enough.set()
        return "1"

    disk = CountingDisk()
    tasks = rows(20)
    collection = open_run(tmp_path / "run", tasks=tasks, samples=1, concurrency=1, answer=answer, disk=disk)
    disk.hold()
    running = asyncio.create_task(run_collection(collection))
    try:
        await asyncio.wait_for(enough.wait(), 20)
        await a_while()
        early = len(asked)
    finally:
        disk.release()
    await running
    assert early == 4 + 1  # four wait for the disk, and one that ended waits for its turn
    assert len(asked) == 20


async def test_a_sync_runs_beside_the_loop(tmp_path: Path) -> None:
    syncing: list[threading.Thread] = []

    class Noting(QuickDisk):
        def sync(self, descriptor: int) -> None:
            syncing.append(threading.current_thread())

    log = Log(tmp_path / "log", Noting())
    syncing.clear()
    await log.append(b"line\n")
    log.close()
    assert len(syncing) == 1
    assert threading.current_thread() not in syncing


def test_a_sync_of_the_real_disk_is_asked_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    log = Log(tmp_path / "log", Disk())
    assert tmp_path.stat().st_ino in synced  # the file's name
    synced.clear()
    log.append_now(b"line\n")
    log.close()
    assert synced == [(tmp_path / "log").stat().st_ino]
    synced.clear()
    Disk().replace(tmp_path / "run.json", b"{}")
    assert synced == [(tmp_path / "run.json").stat().st_ino, tmp_path.stat().st_ino]


async def test_rollouts_that_are_committed_together_are_all_there_or_none(tmp_path: Path) -> None:
    first, second = make_rollout("a"), make_rollout("b")
    disk = FullDisk(10**6)
    log = Log(tmp_path / "rollouts.jsonl", disk)
    await RolloutSink(log, Redactor(), BlobStore(tmp_path)).commit((first,))
    size = log.path.stat().st_size
    disk.room = size + size // 2
    with pytest.raises(StoreError):
        await RolloutSink(log, Redactor(), BlobStore(tmp_path)).commit((second, first))
    log.close()
    assert log.path.stat().st_size == size


def test_a_torn_tail_stays_where_it_is_until_it_is_kept_elsewhere(tmp_path: Path) -> None:
    log = tmp_path / "rollouts.jsonl"
    log.write_bytes(b"whole\nhalf")
    with pytest.raises(StoreError):
        Log(log, FullDisk(0))
    assert log.read_bytes() == b"whole\nhalf"


async def test_a_run_says_where_a_torn_tail_went(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await collect(run)
    with (run / "rollouts.jsonl").open("ab") as file:
        file.write(b'{"v":1,"id":"ha')
    collection = open_run(run)
    collection.close()
    assert [warning for warning in collection.warnings if str(run / "torn" / "rollouts.jsonl.1") in warning]


# -- the run directory


def test_a_run_is_named_after_its_source_split_model_and_behaviour(tmp_path: Path) -> None:
    tasks = write_jsonl(tmp_path / "quiz.jsonl", [{"prompt": "a"}])

    def out(**options: Any) -> str:
        fixed = {"tasks": str(tasks), "model": "org/small", "base_url": "http://127.0.0.1:1/v1"}
        resolved = resolve(load_config((), {**fixed, **options}))
        assert str(resolved.out).endswith(resolved.behaviour.hash[:8])
        return str(resolved.out)

    assert out().startswith("runs/quiz-org-small-")
    assert out(split="test").startswith("runs/quiz-test-org-small-")
    assert out(temperature=0.5) != out()
    assert out(out="mine/${KIND:x}" + out()[-8:]) == "mine/x" + out()[-8:]


async def test_the_manifest_counts_what_is_done(tmp_path: Path) -> None:
    def answer(request: Request) -> str:
        if request.messages[-1].text == "say 1":
            raise InfraError("busy")
        return "0"

    await collect(tmp_path / "run", answer=answer)
    assert read_manifest(tmp_path / "run").counts == {
        "planned": 6,
        "done": 4,
        "failed": 0,
        "pending": 2,
        "ungraded": 0,
    }


async def test_a_changed_weight_is_refused_and_regrade_asks_the_policy_for_nothing(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(request: Request) -> str:
        asked.append(request.id)
        return request.messages[-1].text.removeprefix("say ")

    options: dict[str, Any] = {"answer": answer, "samples": 1}
    await collect(tmp_path / "run", scorers=("exact",), **options)
    with pytest.raises(UsageError, match="--regrade"):
        open_run(tmp_path / "run", scorers=("exact=2",), **options)
    summary, _ = await collect(tmp_path / "run", scorers=("exact=2",), regrade=True, **options)
    assert (summary.complete, len(asked)) == (True, 3)
    assert [rollout.reward for rollout in windrow.load(tmp_path / "run")] == [2.0] * 3


def test_names_of_another_split_or_source_are_refused(tmp_path: Path) -> None:
    open_run(tmp_path / "run", source="quiz", split="train").close()
    for names in ({"source": "quiz", "split": "test"}, {"source": "exam", "split": "train"}):
        with pytest.raises(UsageError, match="'quiz', split 'train'"):
            open_run(tmp_path / "run", **names)


# -- what runs at once


class Crowd:
    """A policy that counts how many of its calls are under way."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def __call__(self, request: Request) -> str:
        self.now += 1
        self.most = max(self.most, self.now)
        await a_while()
        self.now -= 1
        return "1"


async def test_no_more_episodes_run_at_once_than_were_asked_for(tmp_path: Path) -> None:
    crowd = Crowd()
    await collected(rows(20), policy=answering(crowd), concurrency=3, out=str(tmp_path / "run"))
    assert crowd.most == 3


async def test_scores_that_need_no_judge_are_in_the_log_line_itself(tmp_path: Path) -> None:
    await collected(rows(1), policy=answering("0"), scorers=["exact"], out=str(tmp_path / "run"))
    (line,) = lines(tmp_path / "run")
    assert b'"grade":"graded"' in line
    assert b'"reward":1.0' in line
    assert (tmp_path / "run" / "scores.jsonl").read_bytes() == b""


def test_the_pause_before_another_call_grows_and_is_never_the_same_for_all() -> None:
    pauses = [[pause_s(tries, 1.0, None) for _ in range(50)] for tries in range(12)]
    assert all(len(set(drawn)) > 1 for drawn in pauses)
    assert [max(drawn) <= min(2.0**tries, MAX_BACKOFF_S) for tries, drawn in enumerate(pauses)] == [True] * 12
    assert all(max(drawn) < min(later) for drawn, later in zip(pauses[:4], pauses[2:6], strict=True))
    asked = [pause_s(3, 1.0, 7.0) for _ in range(50)]
    assert min(asked) >= 7.0
    assert len(set(asked)) > 1


# -- what is held in memory


@pytest.mark.slow
async def test_memory_grows_with_the_tasks_neither_when_they_are_run_nor_when_they_are_read(
    tmp_path: Path,
) -> None:
    row_bytes, count = 50_000, 300
    bulk = ({"prompt": str(n), "answer": str(n), "context": "x" * row_bytes} for n in range(count))
    tasks = write_jsonl(tmp_path / "tasks.jsonl", bulk)
    settings = {"tasks": str(tasks), "out": str(tmp_path / "run"), "concurrency": 2}
    tracemalloc.start()
    try:
        collected = sum(
            [1 async for _ in windrow.collect(policy=answering("1"), aggregate=False, **settings)]
        )
        while_run = tracemalloc.get_traced_memory()[1]
        gc.collect()
        tracemalloc.reset_peak()
        read = sum(len(rollout.task["context"]) == row_bytes for rollout in windrow.load(tmp_path / "run"))
        while_read = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (collected, read) == (count, count)
    assert max(while_run, while_read) < row_bytes * count / 3


async def test_what_is_done_is_remembered_by_a_bit_alone(tmp_path: Path) -> None:
    def answer(request: Request) -> str:
        if request.attempt == 1:
            raise InfraError("busy")
        return "0"

    await collect(tmp_path / "run", answer=answer, retries=1)
    collection = open_run(tmp_path / "run")
    collection.close()
    assert [collection.ledger.is_done(number) for number in range(6)] == [True] * 6
    assert [collection.ledger.next_attempt(number) for number in range(6)] == [1] * 6


async def a_while() -> None:
    """Long enough for whatever is ready to run."""
    for _ in range(20):
        await asyncio.sleep(0.001)
