"""`windrow.collect` and `windrow.load` as a program uses them."""

from __future__ import annotations

import asyncio
import random
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected, lines
from tests.support.model_server import write_jsonl
from windrow import Request, Rollout, RolloutGroup, Task
from windrow.errors import StoreError, UsageError

pytestmark = pytest.mark.slow

ROWS = [{"prompt": f"q{n}", "answer": "ok"} for n in range(6)]


def options(tmp_path: Path, policy: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"policy": answering(policy), "out": str(tmp_path / "run"), **more}


async def shuffled(request: Request) -> str:
    """Answers after a while that has nothing to do with the order of asking."""
    await asyncio.sleep(random.Random(request.id).random() * 0.05)
    return "ok"


def in_log(run: Path) -> list[str]:
    return [windrow.records.decode_rollout(line).id for line in lines(run)]


# -- what is yielded


async def test_rows_and_a_file_of_the_same_name_give_the_same_rollouts(tmp_path) -> None:
    file = write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    of_rows = await collected(ROWS, **options(tmp_path / "a", source="tasks"))
    for tasks in (file, str(file)):
        of_file = await collected(tasks, **options(tmp_path / type(tasks).__name__))
        assert {r.id for r in of_file} == {r.id for r in of_rows}
    assert all(isinstance(r, Rollout) and r.reward == 1.0 for r in of_rows)
    assert len(of_rows) == 6


async def test_rows_may_come_from_a_generator(tmp_path) -> None:
    assert len(await collected((row for row in ROWS), **options(tmp_path))) == 6


async def test_a_rollout_is_on_disk_when_it_is_yielded(tmp_path) -> None:
    seen = 0
    async for rollout in windrow.collect(ROWS, **options(tmp_path, shuffled, samples=3)):
        assert rollout.id in in_log(tmp_path / "run")
        seen += 1
    assert seen == 18


async def test_the_same_call_again_yields_nothing_and_more_samples_only_the_new_ones(tmp_path) -> None:
    first = await collected(ROWS, **options(tmp_path, samples=2))
    assert await collected(ROWS, **options(tmp_path, samples=2)) == []
    more = await collected(ROWS, **options(tmp_path, samples=3))
    assert {r.sample for r in more} == {2}
    assert len({r.id for r in first + more}) == 18


async def test_load_gives_the_run_in_order_with_final_attempts_or_all(tmp_path) -> None:
    def flaky(request: Request) -> str:
        if request.attempt == 1 and request.messages[0].text == "q1":
            raise RuntimeError("flaky")
        return "ok"

    await collected(ROWS, **options(tmp_path, flaky, samples=2))
    final = [(r.task.index, r.sample, r.attempt) for r in windrow.load(tmp_path / "run")]
    assert final == [(n, s, 2 if n == 1 else 1) for n in range(6) for s in range(2)]
    every = [(r.task.index, r.sample, r.attempt) for r in windrow.load(str(tmp_path / "run"), attempts="all")]
    assert every == sorted([*final, (1, 0, 1), (1, 1, 1)])
    with pytest.raises(UsageError, match="'final' or 'all'"):
        windrow.load(tmp_path / "run", attempts="some")
    with pytest.raises(UsageError, match="not a run directory"):
        list(windrow.load(tmp_path / "nowhere"))


# -- groups


async def groups_of(**settings: Any) -> list[RolloutGroup]:
    return [group async for group in windrow.collect(ROWS, groups=True, **settings)]


def check_group(group: RolloutGroup, samples: int) -> None:
    assert [r.sample for r in group.rollouts] == list(range(samples))
    assert {r.group for r in group.rollouts} == {group.id}
    assert {r.task.digest for r in group.rollouts} == {group.task.digest}
    assert {r.grade for r in group.rollouts} == {"graded"}
    assert None not in group.rewards


async def test_groups_come_whole_and_graded_whatever_the_order_of_completion(tmp_path) -> None:
    found = await groups_of(**options(tmp_path, shuffled, samples=4))
    assert sorted(g.task["prompt"] for g in found) == [row["prompt"] for row in ROWS]
    for group in found:
        check_group(group, 4)


async def test_groups_hold_the_members_that_an_earlier_call_collected(tmp_path) -> None:
    earlier = await collected(ROWS, **options(tmp_path, samples=2))
    found = await groups_of(**options(tmp_path, shuffled, samples=4))
    assert len(found) == 6
    for group in found:
        check_group(group, 4)
    members = {r.id for group in found for r in group.rollouts}
    assert {r.id for r in earlier} < members
    assert await groups_of(**options(tmp_path, samples=4)) == []


async def test_groups_whose_earlier_members_are_graded_only_now_come_whole(tmp_path) -> None:
    down = True

    def judge(task: Task, reply: str) -> float:
        if down:
            raise OSError("the judge is down")
        return 0.5

    judge.after_commit = True  # type: ignore[attr-defined]
    settings = {"scorers": [judge], "concurrency": 2}
    assert await groups_of(**options(tmp_path, samples=2, **settings)) == []
    down = False
    found = await groups_of(**options(tmp_path, samples=3, **settings))
    assert len(found) == 6
    for group in found:
        check_group(group, 3)
        assert group.rewards == (0.5, 0.5, 0.5)


async def test_a_group_with_a_failed_member_is_not_yielded_until_it_is_whole(tmp_path) -> None:
    down = True

    def answer(request: Request) -> str:
        if down and request.messages[0].text == "q2" and request.sampling["seed"] == 1:
            raise RuntimeError("down")
        return "ok"

    settings = options(tmp_path, answer, samples=2, seeds="sample")
    assert len(await groups_of(**settings)) == 5
    down = False
    [late] = await groups_of(**settings)
    check_group(late, 2)
    assert late.task["prompt"] == "q2"
    assert [r.attempt for r in late.rollouts] == [1, 3]


# -- leaving early


@pytest.mark.parametrize("groups", [False, True])
async def test_leaving_the_loop_cancels_what_runs_and_the_next_call_continues_at_once(
    tmp_path, groups
) -> None:
    async def slow_after_first(request: Request) -> str:
        if request.messages[0].text != "q0":
            await asyncio.Event().wait()
        return "ok"

    first: list[Any] = []
    async for item in windrow.collect(ROWS, groups=groups, **options(tmp_path, slow_after_first, samples=2)):
        first.append(item)
        break
    rest = await collected(ROWS, **options(tmp_path, samples=2))
    loaded = list(windrow.load(tmp_path / "run"))
    assert len(first) == 1
    assert {r.status for r in rest} == {"completed"}
    assert [(r.task.index, r.sample, r.status) for r in loaded] == [
        (n, s, "completed") for n in range(6) for s in range(2)
    ]
    cut = [r for r in windrow.load(tmp_path / "run", attempts="all") if r.status == "cancelled"]
    assert cut
    assert {(r.reason, r.reward) for r in cut} == {("interrupted", None)}


async def test_an_exception_in_the_loop_is_the_callers_and_the_next_call_continues(tmp_path) -> None:
    async def consume() -> None:
        async for _ in windrow.collect(ROWS, **options(tmp_path)):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await consume()
    await collected(ROWS, **options(tmp_path))
    assert len(list(windrow.load(tmp_path / "run"))) == 6
    assert len(in_log(tmp_path / "run")) == len(set(in_log(tmp_path / "run")))


async def test_a_wrapper_around_the_loop_may_be_left_too(tmp_path) -> None:
    async def prompts() -> Any:
        async for rollout in windrow.collect(ROWS, **options(tmp_path)):
            yield rollout.task["prompt"]

    async for _ in prompts():
        break
    await collected(ROWS, **options(tmp_path))
    assert len(list(windrow.load(tmp_path / "run"))) == 6


async def test_cancelling_the_consumer_ends_the_run_and_the_next_call_continues(tmp_path) -> None:
    taken = asyncio.Event()

    async def consume() -> None:
        async for _ in windrow.collect(ROWS, **options(tmp_path, shuffled)):
            taken.set()
            await asyncio.Event().wait()

    consumer = asyncio.create_task(consume())
    await asyncio.wait_for(taken.wait(), 30)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    await collected(ROWS, **options(tmp_path))
    assert [r.status for r in windrow.load(tmp_path / "run")] == ["completed"] * 6


async def test_a_consumer_that_is_cancelled_twice_leaves_a_run_that_ends(tmp_path) -> None:
    told, release = asyncio.Event(), asyncio.Event()

    async def on_commit(rollout: Rollout) -> None:
        told.set()
        await release.wait()

    rows = [{"prompt": f"q{n}", "answer": "ok"} for n in range(60)]
    iterator = windrow.collect(rows, **options(tmp_path, on_commit=on_commit, concurrency=16))

    async def consume() -> None:
        async for _ in iterator:  # which is kept: nothing but the cancellations ends the run
            pass

    consumer = asyncio.create_task(consume())
    await asyncio.wait_for(told.wait(), 30)
    await asyncio.sleep(0.2)  # more have ended than there is room for
    told.clear()
    consumer.cancel()
    await asyncio.wait_for(told.wait(), 30)  # for the next one, as the run is seen out
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    asyncio.get_running_loop().call_later(0.1, release.set)
    async with asyncio.timeout(30):
        await collected(rows, **options(tmp_path))
    assert [r.status for r in windrow.load(tmp_path / "run")] == ["completed"] * 60
    assert len(in_log(tmp_path / "run")) == len(lines(tmp_path / "run"))


async def test_an_iterator_that_is_closed_before_its_first_step_runs_nothing(tmp_path) -> None:
    iterator = windrow.collect(ROWS, **options(tmp_path))
    await iterator.aclose()
    assert [rollout async for rollout in iterator] == []
    assert not (tmp_path / "run").exists()


async def test_two_readers_of_one_iterator_share_its_rollouts(tmp_path) -> None:
    iterator = windrow.collect(ROWS, **options(tmp_path, shuffled))

    async def read() -> list[str]:
        return [rollout.id async for rollout in iterator]

    one, other = await asyncio.gather(read(), read())
    assert sorted(one + other) == sorted(in_log(tmp_path / "run"))
    assert len(one + other) == 6


async def test_a_run_that_is_still_being_written_is_not_written_by_another_call(tmp_path) -> None:
    refused = asyncio.Event()

    async def answer(request: Request) -> str:
        if request.messages[0].text != "q0":
            await refused.wait()
        return "ok"

    async for _ in windrow.collect(ROWS, **options(tmp_path, answer)):
        if not refused.is_set():
            with pytest.raises(UsageError, match="is being written by process"):
                await collected(ROWS, **options(tmp_path))
            refused.set()
    assert len(list(windrow.load(tmp_path / "run"))) == 6


async def test_a_consumer_that_is_slow_holds_the_engine_back(tmp_path) -> None:
    asked = 0

    async def answer(request: Request) -> str:
        nonlocal asked
        asked += 1
        return "ok"

    rows = [{"prompt": f"q{n}"} for n in range(400)]
    taken = 0
    async for _ in windrow.collect(rows, **options(tmp_path, answer, concurrency=2)):
        taken += 1
        if taken == 5:
            before = -1
            while before != asked:  # until the engine has come to rest
                before = asked
                await asyncio.sleep(0.2)
            assert asked < 100
    assert (taken, asked) == (400, 400)


# -- callbacks


async def test_callbacks_that_raise_are_reported_and_the_run_goes_on(tmp_path) -> None:
    warnings: list[str] = []

    def on_commit(rollout: Rollout) -> None:
        raise ValueError("my mistake")

    async def on_progress(progress: Any) -> None:
        raise LookupError("mine too")

    settings = options(tmp_path, on_commit=on_commit, on_progress=on_progress, on_warning=warnings.append)
    rollouts = await collected(ROWS, **settings)
    assert len(rollouts) == len(list(windrow.load(tmp_path / "run"))) == 6
    assert sum("on_commit raised ValueError: my mistake" in text for text in warnings) == 6
    assert any("on_progress raised LookupError: mine too" in text for text in warnings)


async def test_a_callback_that_awaits_what_was_cancelled_is_reported_and_the_run_goes_on(tmp_path) -> None:
    warnings: list[str] = []

    async def on_commit(rollout: Rollout) -> None:
        given_up = asyncio.get_running_loop().create_future()
        given_up.cancel()
        await given_up

    settings = options(tmp_path, on_commit=on_commit, on_warning=warnings.append)
    async with asyncio.timeout(30):
        assert len(await collected(ROWS, **settings)) == 6
    assert sum("on_commit raised CancelledError" in text for text in warnings) == 6


async def test_callbacks_are_told_of_what_is_committed(tmp_path) -> None:
    committed: list[str] = []
    settled: list[int] = []

    async def on_commit(rollout: Rollout) -> None:
        assert rollout.id in in_log(tmp_path / "run")
        committed.append(rollout.id)

    settings = options(tmp_path, on_commit=on_commit, on_progress=lambda p: settled.append(p.settled))
    rollouts = await collected(ROWS, **settings)
    assert sorted(committed) == sorted(r.id for r in rollouts)
    assert max(settled) == 6


async def test_callbacks_are_told_of_what_was_committed_before_the_loop_was_left(tmp_path) -> None:
    committed: list[str] = []
    settings = options(tmp_path, on_commit=lambda rollout: committed.append(rollout.id))
    async for _ in windrow.collect(ROWS, **settings):
        while len(lines(tmp_path / "run")) < 6 or not (tmp_path / "run" / "metrics.json").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # the run is over, and its rollouts wait to be read
        break
    assert await collected(ROWS, **options(tmp_path)) == []
    assert sorted(committed) == sorted(in_log(tmp_path / "run"))


async def test_a_callback_of_a_run_that_was_left_may_run_examples(tmp_path) -> None:
    async def on_commit(rollout: Rollout) -> None:
        async for _ in windrow.run_examples(ROWS[:1], env="problem", policy=answering("ok")):
            pass

    async with asyncio.timeout(30):
        async for _ in windrow.collect(ROWS, **options(tmp_path, shuffled, on_commit=on_commit)):
            break
        await collected(ROWS, **options(tmp_path))
    assert [r.status for r in windrow.load(tmp_path / "run")] == ["completed"] * 6


# -- threads


def test_the_first_calls_of_several_threads_may_come_at_once() -> None:
    """In a process of its own, as a crash of msgspec takes the interpreter with it; in some of the tries, not in all."""
    program = """
import sys, threading
from windrow.config import load_config
sys.setswitchinterval(1e-6)
ready = threading.Barrier(8)
threads = [threading.Thread(target=lambda: (ready.wait(), load_config((), {"model": "m"}))) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    for _ in range(8):
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# -- errors


async def test_a_usage_error_comes_out_of_the_first_step(tmp_path) -> None:
    with pytest.raises(UsageError, match="did you mean 'temperature'"):
        await collected(ROWS, **options(tmp_path, temprature=1))
    assert not (tmp_path / "run").exists()


async def test_a_damaged_manifest_is_a_store_error(tmp_path) -> None:
    await collected(ROWS, **options(tmp_path))
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        await collected(ROWS, **options(tmp_path))


@contextmanager
def files_up_to(size_bytes: int) -> Any:
    """The kernel refuses to let a file of this process grow beyond this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_disk_that_takes_no_more_stops_the_run_with_what_was_collected_safe(tmp_path) -> None:
    rows = [{"prompt": f"q{n}", "answer": "ok"} for n in range(200)]
    yielded: list[str] = []

    async def consume() -> None:
        async for rollout in windrow.collect(rows, **options(tmp_path, shuffled, concurrency=8)):
            assert rollout.id not in yielded
            yielded.append(rollout.id)

    with files_up_to(60_000), pytest.raises(StoreError, match=r"cannot write .*rollouts\.jsonl"):
        await consume()
    assert 0 < len(yielded) < 200
    assert set(yielded) <= set(in_log(tmp_path / "run"))
    rest = await collected(rows, **options(tmp_path))
    ids = in_log(tmp_path / "run")
    assert len(ids) == len(set(ids)) == 200
    assert not {r.id for r in rest} & set(yielded)


async def test_rollouts_that_a_budget_in_seconds_has_cut_are_recorded_and_not_yielded(tmp_path) -> None:
    async def slow_but_for_the_first(request: Request) -> str:
        if request.messages[-1].text != "q0":
            await asyncio.Event().wait()
        return "ok"

    found = await collected(
        ROWS, **options(tmp_path, slow_but_for_the_first, sets=["budget.seconds=1"], concurrency=6)
    )
    assert [rollout.status for rollout in found] == ["completed"]
    recorded = [rollout.status for rollout in windrow.load(tmp_path / "run", attempts="all")]
    assert sorted(recorded) == ["cancelled"] * 5 + ["completed"]
