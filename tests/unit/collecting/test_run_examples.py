"""`windrow.run_examples`: rows in, (row, rollout) out as they are done, on the same engine; stored only if asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering
from tests.support.nemo_gym_servers import Gym, prompt_of
from tests.support.nemo_gym_servers import answer as gym_answer
from tests.support.nemo_gym_servers import row as gym_row
from tests.support.scripted_envs import returning, world
from windrow import Request, Score, Task
from windrow.errors import UsageError
from windrow.policies.scripted import CallablePolicy

ROWS = [{"prompt": f"q{n}", "answer": "ok"} for n in range(6)]


@pytest.fixture
def empty_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def ran(rows: Any, **options: Any) -> list[tuple[Any, windrow.Rollout]]:
    settings = {"env": "problem", "policy": answering("ok"), **options}
    return [pair async for pair in windrow.run_examples(rows, **settings)]


async def test_every_row_comes_back_itself_with_its_rollout_and_nothing_is_written(empty_folder) -> None:
    pairs = await ran(ROWS)
    assert len(pairs) == 6
    for row, rollout in pairs:
        assert any(row is given for given in ROWS)
        assert rollout.task.data == row
        assert (rollout.status, rollout.reward) == ("completed", 1.0)
    assert list(empty_folder.iterdir()) == []


async def test_pairs_come_in_the_order_of_completion(empty_folder) -> None:
    released = {row["prompt"]: asyncio.Event() for row in ROWS}
    order = ["q3", "q0", "q5", "q1", "q4", "q2"]
    released[order[0]].set()

    async def answer(request: Request) -> str:
        await released[request.messages[0].text].wait()
        return "ok"

    seen: list[str] = []
    async for row, _ in windrow.run_examples(ROWS, env="problem", policy=answering(answer)):
        seen.append(row["prompt"])
        if len(seen) < 6:
            released[order[len(seen)]].set()
    assert seen == order


async def test_a_semaphore_is_shared_between_runs(empty_folder) -> None:
    semaphore = asyncio.Semaphore(3)
    running = peak = 0

    async def answer(request: Request) -> str:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.005)
        running -= 1
        return "ok"

    runs = await asyncio.gather(
        *(ran(ROWS, policy=answering(answer), semaphore=semaphore, source=f"s{n}") for n in range(3))
    )
    assert [len(pairs) for pairs in runs] == [6, 6, 6]
    assert peak == 3


async def test_a_held_semaphore_holds_the_episodes_and_cancelling_them_is_clean(empty_folder) -> None:
    semaphore = asyncio.Semaphore(1)
    await semaphore.acquire()
    waiting = asyncio.create_task(ran(ROWS, semaphore=semaphore))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    semaphore.release()
    assert len(await ran(ROWS, semaphore=semaphore)) == 6


async def test_with_a_store_the_run_is_a_run_like_any_other_and_is_continued(empty_folder) -> None:
    store = empty_folder / "run"
    pairs = await ran(ROWS[:4], store=store)
    assert {r.id for r in windrow.load(store)} == {r.id for _, r in pairs}
    assert [row["prompt"] for row, _ in await ran(ROWS, store=store, concurrency=1)] == ["q4", "q5"]
    assert len(list(windrow.load(store))) == 6


async def test_a_row_that_has_moved_since_the_run_was_stored_comes_back_itself(empty_folder) -> None:
    down = True

    def answer(request: Request) -> str:
        if down and request.messages[0].text == "q0":
            raise RuntimeError("down")
        return "ok"

    options = {"policy": answering(answer), "store": empty_folder / "run", "retries": 0}
    await ran(ROWS[:2], **options)
    down = False
    [(row, rollout)] = await ran([ROWS[1], ROWS[0]], **options)
    assert (row["prompt"], rollout.task["prompt"], rollout.attempt) == ("q0", "q0", 2)


async def test_equal_rows_are_two_examples(empty_folder) -> None:
    twin = dict(ROWS[0])
    pairs = await ran([ROWS[0], twin])
    assert sorted(id(row) for row, _ in pairs) == sorted([id(ROWS[0]), id(twin)])
    assert len({rollout.id for _, rollout in pairs}) == 2


async def test_an_environment_of_ones_own_and_options_are_taken(empty_folder) -> None:
    env = world([], turns=9, score=returning(Score(0.5)))
    [(_, rollout)] = await ran(ROWS[:1], env=env, max_turns=2)
    assert (rollout.stop, rollout.reward, len(rollout.turns)) == ("max_turns", 0.5, 2)


async def test_a_row_too_large_for_the_log_line_is_whole_for_whoever_collects(tmp_path) -> None:
    def judge(task: Task, reply: str) -> float:
        return float(len(task["text"]))

    judge.after_commit = True  # type: ignore[attr-defined]
    row = {"prompt": "go", "text": "x" * 20_000}
    options = {"policy": answering("ok"), "scorers": [judge], "out": str(tmp_path / "run")}
    [rollout] = [r async for r in windrow.collect([row], **options)]
    assert (rollout.task.data, rollout.reward) == (row, 20_000.0)
    assert [(r.task.data, r.reward) for r in windrow.load(tmp_path / "run")] == [(row, 20_000.0)]


async def test_bad_rows_are_refused_by_their_index(empty_folder) -> None:
    with pytest.raises(UsageError, match=r"rows\[1\]"):
        await ran([ROWS[0], {"answer": "ok"}])


async def test_a_row_that_is_tried_again_comes_out_once() -> None:
    failures = iter([True])

    def flaky(request: Request) -> str:
        if next(failures, False):
            raise RuntimeError("once")
        return "4"

    pairs = await ran(ROWS[:1], policy=CallablePolicy(flaky, name="flaky"))
    assert [(row, rollout.attempt, rollout.status) for row, rollout in pairs] == [(ROWS[0], 2, "completed")]


def numbered(task: int, rollout: int | None = None) -> dict[str, Any]:
    params = {"input": [{"role": "user", "content": f"q{task}"}]}
    mark = {} if rollout is None else {"_ng_rollout_index": rollout}
    return {"responses_create_params": params, "answer": "ok", "_ng_task_index": task, **mark}


@pytest.mark.parametrize("numbers", [(1, 0), (50, 51, 7)])
async def test_rows_that_number_their_tasks_come_back_with_their_own_rollouts(empty_folder, numbers) -> None:
    rows = [numbered(number) for number in numbers]
    pairs = await ran(rows)
    assert sorted(id(row) for row, _ in pairs) == sorted(map(id, rows))
    for row, rollout in pairs:
        assert (rollout.messages[0].text, rollout.task.index) == (
            f"q{row['_ng_task_index']}",
            row["_ng_task_index"],
        )


async def test_each_numbered_rollout_of_a_task_comes_back_as_its_own_row(empty_folder) -> None:
    rows = [numbered(9, 1), numbered(4, 0), numbered(9, 0), numbered(4, 1)]
    pairs = await ran(rows)
    assert sorted(id(row) for row, _ in pairs) == sorted(map(id, rows))
    assert all(
        (row["_ng_task_index"], row["_ng_rollout_index"]) == (one.task.index, one.sample)
        for row, one in pairs
    )


async def test_an_agent_that_plays_elsewhere_needs_neither_policy_nor_env(empty_folder) -> None:
    rows = [gym_row("b", _ng_task_index=60), gym_row("a", _ng_task_index=3)]
    with Gym({"math": lambda sent, n: gym_answer(sent, prompt_of(sent))}) as gym:
        pairs = [pair async for pair in windrow.run_examples(rows, agent=f"nemo-gym:{gym.head}")]
    assert sorted((prompt_of(dict(given)), rollout.reply) for given, rollout in pairs) == [
        ("a", "a"),
        ("b", "b"),
    ]
