"""Ranks: several calls of one command collect each its share, in one directory or in one each. Nothing is dropped,
nothing is done twice, whatever the order in which they start, end and start again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_disks import Crash, CrashDisk
from tests.support.judged_runs import judged
from tests.support.model_server import ModelServer
from tests.support.run_builders import collect, contents, echo, folder_in_memory, open_run, rows
from windrow import RolloutGroup
from windrow.cli.main import main
from windrow.collecting.ranks import launched, rank_of
from windrow.collecting.resolve import resolve
from windrow.collecting.running import run_collection
from windrow.config import load_config
from windrow.engine.control import Control
from windrow.errors import InfraError, StoreError, UsageError
from windrow.policies.base import Request
from windrow.store.manifest import read_manifest
from windrow.store.reader import load
from windrow.store.segments import segments

pytestmark = pytest.mark.slow

PRICED = ["prices={m: {prompt: 1, completion: 1}}"]


@pytest.fixture
def run() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder / "run"


def ids(run: Path) -> Counter[tuple[str, int]]:
    return Counter((rollout.id, rollout.attempt) for rollout in load(run, attempts="all"))


async def alone(run: Path, **options: Any) -> list[dict[str, Any]]:
    """What one call makes of the same, elsewhere."""
    await collect(run.with_name("alone"), **options)
    return contents(run.with_name("alone"))


# -- one directory


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=4),
    st.integers(1, 7),
    st.integers(1, 3),
    st.data(),
)
def test_ranks_in_any_order_make_the_run_that_one_call_makes(
    weights: list[int], tasks: int, samples: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(weights))))
    again = data.draw(st.lists(st.sampled_from(order), max_size=2))
    given = {"tasks": rows(tasks), "samples": samples}

    async def collected(run: Path) -> None:
        for rank in [*order, *again]:
            summary, _ = await collect(run, rank=rank, rank_weights=weights, **given)
            assert summary.complete
        assert contents(run) == await alone(run, **given)
        assert read_manifest(run).counts["done"] == tasks * samples

    with folder_in_memory() as folder:
        asyncio.run(collected(folder / "run"))


async def test_ranks_that_collect_at_once_write_each_its_own_and_together_everything(run: Path) -> None:
    opened = [
        open_run(run, rank=rank, world_size=3, rank_weights=[2, 1, 1], tasks=rows(8)) for rank in (2, 0, 1)
    ]
    summaries = await asyncio.gather(*(run_collection(each, aggregate=True) for each in opened))
    assert [(summary.planned, summary.complete) for summary in summaries] == [(4, True), (8, True), (4, True)]
    assert contents(run) == await alone(run, tasks=rows(8))
    assert segments(run) == [f"rollouts.rank-{rank}.jsonl" for rank in range(3)]
    assert segments(run, "scores") == [f"scores.rank-{rank}.jsonl" for rank in range(3)]
    assert len((run / "tasks.jsonl").read_bytes().splitlines()) == 8
    assert json.loads((run / "metrics.json").read_bytes())["coverage"]["done"] == 16
    assert read_manifest(run).counts == {"planned": 16, "done": 16, "failed": 0, "pending": 0, "ungraded": 0}


async def test_a_stopped_rank_goes_on_where_it_stopped_and_the_others_leave_its_share_alone(
    run: Path,
) -> None:
    control = Control()

    def stop_soon(request: Request) -> str:
        control.stop()
        return echo(request)

    ranked: dict[str, Any] = {"world_size": 2, "tasks": rows(6), "concurrency": 1}
    summary, first = await collect(run, rank=0, control=control, answer=stop_soon, **ranked)
    assert summary.pending > 0
    summary, _ = await collect(run, rank=1, **ranked)
    assert summary.complete
    summary, rest = await collect(run, rank=0, **ranked)
    assert (summary.complete, len(first) + len(rest)) == (True, 6)
    assert contents(run) == await alone(run, tasks=rows(6))


async def test_a_run_goes_on_with_ranks_without_them_and_with_other_ones(run: Path) -> None:
    calls: list[dict[str, Any]] = [
        {"limit": 2},
        {"limit": 6, "rank": 1, "world_size": 3},
        {"limit": 6, "rank": 0, "world_size": 2},
        {},
        {"rank": 3, "world_size": 4},
    ]
    for call in calls:
        summary, _ = await collect(run, tasks=rows(9), **call)
        assert summary.complete
    assert summary.attempts == 0
    assert contents(run) == await alone(run, tasks=rows(9))
    assert max(ids(run).values()) == 1


async def test_a_rank_that_has_no_task_is_done_at_once(run: Path) -> None:
    summary, committed = await collect(run, rank=4, world_size=5, tasks=rows(2))
    assert (summary.complete, summary.planned, committed) == (True, 0, [])


async def test_a_task_added_later_changes_nobodys_share(run: Path) -> None:
    """Where each rank has a directory, nobody could see that another has done it."""
    weights = [3, 1, 2]
    for count in (5, 11):
        for rank in range(3):
            out = str(run) + ".{rank}"
            await collect(Path(out), tasks=rows(count), rank=rank, world_size=3, rank_weights=weights)
    found = sum((ids(run.with_name(f"run.{rank}")) for rank in range(3)), Counter())
    await collect(run.with_name("alone"), tasks=rows(11))
    assert found == ids(run.with_name("alone"))


async def test_a_directory_a_rank_says_whose_it_is_and_holds_every_task(run: Path) -> None:
    await collect(Path(f"{run}.{{rank}}"), rank=1, world_size=3, tasks=rows(6))
    [ranks] = read_manifest(run.with_name("run.1")).ranks
    assert (ranks.weights, ranks.present, ranks.missing) == ([1, 1, 1], [1], [0, 2])
    assert len((run.with_name("run.1") / "tasks.jsonl").read_bytes().splitlines()) == 6
    await collect(Path(f"{run}.{{rank}}"), tasks=rows(6))
    assert read_manifest(run.with_name("run.0")).ranks == []


# -- who may write


def test_a_second_process_of_the_same_rank_is_refused_and_told_who_collects(run: Path) -> None:
    first = open_run(run, rank=1, world_size=2)
    with pytest.raises(UsageError, match=r"rank 1 of .*run is being written by process \d+ on "):
        open_run(run, rank=1, world_size=2)
    first.close()
    open_run(run, rank=1, world_size=2).close()


def test_a_call_without_ranks_and_ranks_refuse_each_other(run: Path) -> None:
    rank = open_run(run, rank=0, world_size=2)
    for options in ({}, {"overwrite": True}):
        with pytest.raises(UsageError, match="is being written by process"):
            open_run(run, **options)
    rank.close()
    whole = open_run(run)
    with pytest.raises(UsageError, match="is being written by process"):
        open_run(run, rank=0, world_size=2)
    whole.close()


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"world_size": 3}, "the number of ranks"),
        ({"world_size": 2, "rank_weights": [1, 2]}, "their weights"),
        ({"world_size": 2, "limit": 2}, "the tasks"),
        ({"world_size": 2, "samples": 5}, "the tasks, or the samples"),
        ({"world_size": 2, "scorers": ["exact"], "regrade": True}, "the grading"),
    ],
)
def test_a_rank_with_another_command_is_refused_while_one_collects(
    run: Path, other: dict[str, Any], what: str
) -> None:
    first = open_run(run, rank=0, world_size=2)
    with pytest.raises(
        UsageError, match=f"rank 0 is collecting here, and this call differs from it in {what}"
    ):
        open_run(run, rank=1, **other)
    open_run(run, rank=1, world_size=2).close()
    first.close()
    open_run(run, rank=1, **other).close()


def test_a_plan_of_as_many_other_tasks_is_another_plan(run: Path) -> None:
    first = open_run(run, rank=0, world_size=2, tasks=rows(5)[:4])
    with pytest.raises(UsageError, match="differs from it in the tasks"):
        open_run(run, rank=1, world_size=2, tasks=rows(5)[1:])
    first.close()


def test_ranks_that_share_a_directory_need_its_locks_and_may_not_move_it(run: Path) -> None:
    for options, what in (({"overwrite": True}, "--overwrite"), ({"lock": False}, "--no-lock")):
        with pytest.raises(UsageError, match=f"{what}: .*runs/x.{{rank}}"):
            open_run(run, rank=0, world_size=2, **options)
        open_run(Path(f"{run}.{{rank}}"), rank=0, world_size=2, **options).close()


@pytest.mark.slow
async def test_power_that_fails_at_any_write_of_a_rank_costs_no_rank_anything_that_was_done(
    run: Path,
) -> None:
    ranked: dict[str, Any] = {"world_size": 2, "tasks": rows(3), "samples": 1}
    whole = await alone(run, tasks=rows(3), samples=1)
    for crash_at in itertools.count(1):
        with folder_in_memory() as folder:
            (folder / "before").mkdir()
            await collect(folder / "before" / "run", rank=0, **ranked)
            disk = CrashDisk(folder / "before", crash_at)
            with contextlib.suppress(StoreError, Crash):
                await collect(folder / "before" / "run", rank=1, disk=disk, **ranked)
            crashed, after = disk.crashed, disk.survivors(folder / "after") / "run"
            disk.close()
            for rank in (0, 1):
                summary, _ = await collect(after, rank=rank, **ranked)
                assert (summary.complete, rank or summary.attempts) == (True, rank)
            assert contents(after) == whole
        if not crashed:
            break
    assert crash_at > 20


def test_ranks_with_a_directory_each_are_told_at_what_time_to_look_at_a_blocklist(run: Path) -> None:
    """In one directory the first rank writes down what it found, and the others go by that."""
    blocked = run.with_name("blocked.jsonl")
    blocked.write_text('{"domain": "shop.example", "blocked_at": "2026-01-31T12:00:00+00:00"}\n')
    ranked: dict[str, Any] = {"rank": 0, "world_size": 2, "split": "train", "blocklist": str(blocked)}
    with pytest.raises(UsageError, match="give all the same --blocklist-at"):
        open_run(Path(f"{run}.{{rank}}"), **ranked)
    open_run(Path(f"{run}.{{rank}}"), blocklist_at="2026-01-31T13:00:00+00:00", **ranked).close()
    open_run(run, **ranked).close()


# -- grading and redoing


async def test_groups_are_whole_on_a_rank_and_judged_once(run: Path) -> None:
    judged: list[str] = []

    def together(group: RolloutGroup) -> dict[tuple[str, int], float]:
        judged.append(group.id)
        return {rollout.key: float(len(group.rollouts)) for rollout in group.rollouts}

    together.unit = "group"  # type: ignore[attr-defined]
    together.version = 1  # type: ignore[attr-defined]
    for rank in (1, 0, 1):
        await collect(run, rank=rank, world_size=2, tasks=rows(5), samples=3, scorers=[together])
    assert [rollout.reward for rollout in load(run)] == [3.0] * 15
    assert len(judged) == len(set(judged)) == 5


def judging(say: Callable[[], float]) -> Callable[..., float]:
    def judge(task: Any, reply: str) -> float:
        return say()

    judge.after_commit = True  # type: ignore[attr-defined]
    judge.version = 1  # type: ignore[attr-defined]
    return judge


async def test_a_rank_judges_what_its_own_share_lacks_and_the_latest_verdict_counts_whoever_gave_it(
    run: Path,
) -> None:
    def fails() -> float:
        raise InfraError("the judge is away")

    for rank in (0, 1):
        await collect(run, rank=rank, world_size=2, scorers=[judging(fails)])
    assert {rollout.grade for rollout in load(run)} == {"failed"}
    summary, _ = await collect(run, rank=0, world_size=2, scorers=[judging(lambda: 0.5)])
    assert summary.complete
    assert Counter(rollout.grade for rollout in load(run)) == {"graded": 4, "failed": 2}
    summary, _ = await collect(run, scorers=[judging(lambda: 0.25)])  # whose segment is read first
    assert summary.complete
    assert Counter(rollout.reward for rollout in load(run)) == {0.5: 4, 0.25: 2}


async def test_a_judge_is_not_asked_again_what_it_told_another_rank(
    run: Path, stub: Callable[..., ModelServer]
) -> None:
    server = stub("<score>yes</score>")
    rubric = [{"prompt": f"say {number}", "rubric": ["It is short."]} for number in range(4)]
    for rank in (0, 1):
        await judged(run, rubric, server, rank=rank, world_size=2)
    asked = server.completions
    (run / "scores.rank-0.jsonl").unlink()
    (run / "scores.rank-1.jsonl").unlink()
    found = await judged(run, rubric, server, rank=0, world_size=4)
    assert [rollout.grade for rollout in found].count("graded") == 1
    found = await judged(run, rubric, server)
    assert {rollout.grade for rollout in found} == {"graded"}
    assert server.completions == asked


async def test_each_rank_redoes_its_share_once_also_when_it_is_broken_off(run: Path) -> None:
    ranked: dict[str, Any] = {"world_size": 2, "tasks": rows(6), "samples": 1, "concurrency": 1}
    for rank in (0, 1):
        await collect(run, rank=rank, **ranked)
    control = Control()

    def stop_soon(request: Request) -> str:
        control.stop()
        return echo(request)

    redo = {"redo": "reward=1", **ranked}
    await collect(run, rank=0, control=control, answer=stop_soon, **redo)
    await collect(run, rank=1, **redo)
    await collect(run, rank=0, **redo)
    assert Counter(attempt for _, attempt in ids(run)) == {1: 6, 2: 6}


# -- what is said of them


async def test_ranks_whose_share_is_not_done_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranked: dict[str, Any] = {"world_size": 3, "tasks": rows(6), "samples": 1}

    def away(request: Request) -> str:
        raise InfraError("away")

    await collect(run, rank=0, **ranked)
    await collect(run, rank=2, answer=away, **ranked)
    said = "rank 1 is missing; rank 2 has 2 left"
    for command in (["stats", str(run)], ["ls", str(run.parent)]):
        assert main(command) == 0
        assert said in capsys.readouterr().out
    for rank in (2, 1):
        await collect(run, rank=rank, **ranked)
    for command in (["stats", str(run)], ["ls", str(run.parent)]):
        assert main(command) == 0
        told = capsys.readouterr().out
        assert "rank " not in told
        assert "6 of 6" in told or "6 done of 6" in told or "6/6 done" in told


async def test_run_json_is_the_same_whichever_rank_wrote_it(run: Path) -> None:
    for rank in (0, 1):
        await collect(run.with_name(str(rank)), rank=rank, world_size=2, rank_weights=[3, 1])
    one, other = (read_manifest(run.with_name(str(rank))) for rank in (0, 1))
    assert one.behaviour == other.behaviour
    assert {**one.config, "out": ""} == {**other.config, "out": ""}
    assert one.config["rank"] is None
    assert one.config["concurrency"] == 4


# -- which rank a call is


def ranked(environment: dict[str, str], **options: Any) -> tuple[int, tuple[float, ...]] | None:
    rank = rank_of(launched(load_config((), options), environment))
    return (rank.number, rank.weights) if rank else None


@pytest.mark.parametrize(
    ("environment", "options", "expected"),
    [
        ({}, {}, None),
        ({"RANK": "1", "WORLD_SIZE": "3"}, {}, (1, (1, 1, 1))),
        ({"RANK": "1", "WORLD_SIZE": "3"}, {"rank_weights": "2,1,1"}, (1, (2, 1, 1))),
        ({"RANK": "1", "WORLD_SIZE": "3"}, {"rank": 0, "world_size": 2}, (0, (1, 1))),
        ({"RANK": "1", "WORLD_SIZE": "3"}, {"rank": 0, "world_size": 1}, None),
        ({"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, {}, None),
        ({"RANK": "1"}, {}, None),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, {}, (1, (1, 1))),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2"}, {}, (1, (1, 1))),
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
            {},
            (0, (1, 1)),
        ),
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"},
            {},
            None,
        ),  # the batch script itself
        ({}, {"rank": 2, "rank_weights": "2,1,1"}, (2, (2, 1, 1))),
    ],
)
def test_flags_say_which_rank_a_call_is_and_then_whoever_launched_it(
    environment: dict[str, str], options: dict[str, Any], expected: Any
) -> None:
    assert ranked(environment, **options) == expected


@pytest.mark.parametrize(
    ("environment", "options", "message"),
    [
        ({}, {"rank": 1}, "--rank 1 needs --world-size"),
        ({}, {"world_size": 3}, "--world-size 3 needs --rank"),
        ({}, {"rank": 3, "world_size": 3}, r"rank 3 of 3 \(--rank and --world-size\): ranks go from 0 to 2"),
        ({"RANK": "3", "WORLD_SIZE": "3"}, {}, r"rank 3 of 3 \(RANK and WORLD_SIZE\)"),
        ({"RANK": "x", "WORLD_SIZE": "3"}, {}, "the variable RANK is 'x'.* --rank 0 --world-size 1"),
        ({}, {"rank": 0, "world_size": 3, "rank_weights": "2,1"}, "has 2 weights, and there are 3 ranks"),
        ({}, {"rank": 0, "rank_weights": "2,a"}, "--rank-weights '2,a': expected a number for each rank"),
        ({}, {"rank": 0, "rank_weights": "2,0"}, "rank_weights"),
        ({}, {"rank": -1, "world_size": 2}, "rank"),
        ({}, {"rank": 0, "world_size": 10**9}, r"1000000000 ranks \(--world-size\): there can be 65,536"),
        ({"RANK": "0", "WORLD_SIZE": "9" * 30}, {}, r"ranks \(WORLD_SIZE\): there can be 65,536"),
    ],
)
def test_a_rank_that_cannot_be_is_refused(
    environment: dict[str, str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        ranked(environment, **options)


def test_what_ranks_share_is_divided_by_weight(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "p", "answer": "1"}\n' * 3)
    shared: dict[str, Any] = {
        "tasks": str(tmp_path / "tasks.jsonl"),
        "model": "m",
        "base_url": "http://127.0.0.1:9/v1",
        "env_concurrency": ["problem=8"],
        "requests_per_minute": 100,
        "budget_tokens": 10,
        "budget_cost": 2.0,
        "world_size": 3,
        "rank_weights": "2,1,1",
    }
    found = []
    for rank in range(3):
        resolved = resolve(load_config((), {**shared, "rank": rank}, PRICED))
        run = resolved.run
        found.append(
            (
                resolved.concurrency,
                run.env_concurrency["problem"],
                run.policy.requests_per_minute,
                run.budget.tokens,
                run.budget.cost,
            )
        )
        assert (
            resolved.behaviour.hash == resolve(load_config((), {**shared, "rank": 0}, PRICED)).behaviour.hash
        )
    assert found == [(32, 4, 50.0, 5, 1.0), (16, 2, 25.0, 3, 0.5), (16, 2, 25.0, 2, 0.5)]


def test_each_rank_calls_its_own_endpoints_by_weight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(f'{{"prompt": "p{n}", "answer": "1"}}\n' for n in range(8)))
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(ModelServer(lambda body, n: "1")) for _ in range(4)]
        urls = [flag for server in servers for flag in ("--base-url", server.url)]
        called = []
        for rank in range(3):
            ranked = ["--rank", str(rank), "--rank-weights", "2,1,1", "--out", str(tmp_path / "run")]
            before = [server.completions for server in servers]
            assert main(["collect", str(tasks), "--model", "stub", *urls, *ranked]) == 0
            called.append([server.completions - had > 0 for server, had in zip(servers, before, strict=True)])
            assert f"tasks, {2 if rank == 0 else 1} of 4 endpoints" in capsys.readouterr().err
    assert called == [[True, True, False, False], [False, False, True, False], [False, False, False, True]]
    assert len(list(load(tmp_path / "run"))) == 8
