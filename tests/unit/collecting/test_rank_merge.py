"""The end of a run that ranks share: rank 0 waits for the others, merges, and names who is missing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_tracker import FakeWandb
from tests.support.run_builders import collect, contents, echo, folder_in_memory, open_run, rows
from windrow.cli.main import main
from windrow.collecting.events import EventStream
from windrow.collecting.execution import execute
from windrow.collecting.merge import merge
from windrow.collecting.rank_merge import Others
from windrow.collecting.running import run_collection
from windrow.engine.control import Control
from windrow.errors import PolicyError
from windrow.policies.base import Request

pytestmark = pytest.mark.slow

WEIGHTS = {"world_size": 3, "rank_weights": [2, 1, 1], "tasks": rows(8), "samples": 1}


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


def refuse(request: Request) -> str:
    raise PolicyError("no")


async def rank_0(out: Path, **options: Any) -> Others:
    collection = open_run(out, rank=0, **{**WEIGHTS, **options})
    await run_collection(collection)
    return Others(collection)


async def waited(others: Others, deadline_s: float = 60.0) -> list[str]:
    said: list[str] = []
    await others.done(Control(), deadline_s, said.append)
    return said


async def awaited(others: Others) -> list[str]:
    """Who is waited for, without waiting."""
    control = Control()
    said: list[str] = []

    def stop(text: str) -> None:
        said.append(text.partition(", for")[0])
        control.stop()

    await others.done(control, 60.0, stop)
    return said


@pytest.mark.parametrize("out", ["run", "run.{rank}"])
async def test_rank_0_waits_until_the_others_are_done_and_makes_one_run_of_all(
    folder: Path, out: str
) -> None:
    others = await rank_0(folder / out)
    waiting = asyncio.create_task(waited(others))
    for rank in (2, 1):
        await collect(folder / out, rank=rank, **WEIGHTS)
    said = await waiting
    assert all(text.startswith("waiting for rank ") for text in said)
    joined = others.join(folder / "merged", lock=True, on_warning=pytest.fail)
    assert (joined.complete, joined.lacking, joined.merged.done) == (True, [], 8)
    await collect(folder / "alone", tasks=rows(8), samples=1)
    assert contents(folder / "merged") == contents(folder / "alone")


@pytest.mark.parametrize("out", ["run", "run.{rank}"])
async def test_who_is_missing_at_the_deadline_is_named_and_what_there_is_is_merged(
    folder: Path, out: str
) -> None:
    await collect(folder / out, rank=1, answer=refuse, **WEIGHTS)
    others = await rank_0(folder / out)
    assert await waited(others, 0.0) == []
    joined = others.join(folder / "merged", lock=True, on_warning=lambda text: None)
    assert not joined.complete
    where = folder / out.format(rank=2)
    assert joined.lacking == [
        "rank 1 has 2 that failed or are not graded",
        f"rank 2 has not collected its share of these tasks in {where}",
    ]
    assert joined.merged.missing == [(2, 3)]
    assert (joined.merged.done, joined.merged.planned) == (4, 8)


async def test_a_share_that_was_done_of_fewer_tasks_is_waited_for(folder: Path) -> None:
    for rank in (1, 2):
        await collect(folder / "run.{rank}", rank=rank, limit=4, **WEIGHTS)
    others = await rank_0(folder / "run.{rank}")
    assert await awaited(others) == ["waiting for rank 1, 2"]
    joined = others.join(folder / "merged", lock=True, on_warning=lambda text: None)
    assert [line[:6] for line in joined.lacking] == ["rank 1", "rank 2"]


async def test_a_rank_that_has_something_left_or_still_writes_is_waited_for(folder: Path) -> None:
    others = await rank_0(folder / "run")
    await collect(folder / "run", rank=1, **WEIGHTS)
    at_work = open_run(folder / "run", rank=2, **WEIGHTS)
    assert await awaited(others) == ["waiting for rank 2"]
    assert others.join(folder / "a", lock=True, on_warning=lambda text: None).lacking == ["rank 2 has 2 left"]
    await execute(at_work, Control(), EventStream())  # all is done, and the lock is still held
    assert await awaited(others) == ["waiting for rank 2"]
    [line] = others.join(folder / "b", lock=True, on_warning=lambda text: None).lacking
    assert line.startswith("rank 2 is still writing (process ")
    at_work.close()
    assert await awaited(others) == []
    assert others.join(folder / "c", lock=True, on_warning=pytest.fail).complete


async def test_waiting_ends_when_its_time_is_over_or_the_run_is_stopped(folder: Path) -> None:
    others = await rank_0(folder / "run")
    await waited(others, 0.02)
    assert await awaited(others) == ["waiting for rank 1, 2"]


@pytest.fixture
def scripted(tmp_path: Path) -> list[str]:
    """A command that collects four tasks with a scripted policy, and says little."""
    (tmp_path / "replies.yaml").write_text('replies: [{reply: "1"}]')
    rows = "".join(f'{{"prompt": "p{number}", "answer": "1"}}\n' for number in range(4))
    (tmp_path / "tasks.jsonl").write_text(rows)
    model = f"scripted:{tmp_path / 'replies.yaml'}"
    return ["collect", str(tmp_path / "tasks.jsonl"), "--model", model, "--quiet"]


def test_a_call_that_is_a_rank_by_its_environment_says_so_also_when_it_is_quiet(
    tmp_path: Path, scripted: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert main([*scripted, "--out", str(tmp_path / "run")]) == 0
    said = "rank 1 of 4 (from RANK, WORLD_SIZE): 1 of 4 tasks; --rank 0 --world-size 1 collects everything\n"
    assert said in capsys.readouterr().err
    whole = [*scripted, "--rank", "0", "--world-size", "1", "--out", str(tmp_path / "run")]
    assert main([*whole, "--merge", str(tmp_path / "all")]) == 0
    assert ("(from RANK" in capsys.readouterr().err, len(contents(tmp_path / "all"))) == (False, 4)


def test_trackers_are_told_of_the_merged_run_and_never_of_a_share(
    tmp_path: Path, scripted: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", module := FakeWandb())
    command = [*scripted, "--world-size", "2", "--track", "wandb", "--out", str(tmp_path / "part.{rank}")]
    for rank in ("1", "0"):
        assert main([*command, "--rank", rank]) == 0
    assert module.runs == []
    assert f"windrow stats {tmp_path / 'part.0'} --track wandb" in capsys.readouterr().err
    assert main([*command, "--rank", "0", "--merge", str(tmp_path / "all")]) == 0
    [run] = module.runs
    assert (run.options["name"], len(run.rollouts)) == ("all", 4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--merge-deadline", "5"], "--merge-deadline: there is no --merge OUT"),
        (["--merge", "x", "--merge-deadline", "-1"], "--merge-deadline -1.0: expected seconds, 0 or more"),
        (["--merge", "{file}"], "--merge {file}: {file} is a file; give a directory"),
        (["--merge", "{run}"], "--merge {run} is where the rollouts are collected"),
        (["--merge", "{run}.1", "--rank", "0", "--world-size", "2"], "is where the rollouts are collected"),
    ],
)
def test_a_merge_that_cannot_be_is_refused_before_anything_is_collected(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"prompt": "p", "answer": "1"}\n')
    out = str(tmp_path / "run") + (".{rank}" if "--rank" in flags else "")
    said = [flag.replace("{file}", str(tasks)).replace("{run}", str(tmp_path / "run")) for flag in flags]
    run = ["--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--out", out]
    assert main(["collect", str(tasks), *run, *said]) == 2
    expected = message.replace("{file}", str(tasks)).replace("{run}", str(tmp_path / "run"))
    assert expected in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == [tasks]


def test_a_merge_into_a_run_of_other_behaviour_is_refused_before_anything_is_collected(
    tmp_path: Path, scripted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    other, out = str(tmp_path / "other"), tmp_path / "run"
    assert main([*scripted, "--max-turns", "3", "--out", other]) == 0
    assert main([*scripted, "--out", str(out), "--merge", other]) == 2
    assert "limits.max_turns: 3 → 50" in capsys.readouterr().err
    assert not out.exists()


async def test_a_merge_says_whose_share_was_not_done(folder: Path) -> None:
    ranked: dict[str, Any] = {"world_size": 2, "tasks": rows(6), "samples": 1, "concurrency": 1}
    parts = [folder / f"part.{rank}" for rank in range(2)]
    control = Control()

    def stop_soon(request: Request) -> str:
        control.stop()
        return echo(request)

    await collect(parts[0], rank=0, **ranked)
    summary, _ = await collect(parts[1], rank=1, control=control, answer=stop_soon, **ranked)
    said: list[str] = []
    assert merge(parts, folder / "all", on_warning=said.append).done == 6 - summary.pending
    assert any(f"part.1: rank 1 had {summary.pending} left when it last said so" in text for text in said)
    said.clear()
    await collect(parts[1], rank=1, **ranked)
    assert (merge(parts, folder / "all", on_warning=said.append).done, said) == (6, [])


def test_a_rank_that_was_not_there_for_the_last_pass_is_noticed(
    tmp_path: Path, scripted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*scripted, "--world-size", "2", "--out", str(tmp_path / "part.{rank}")]
    parts = [str(tmp_path / f"part.{rank}") for rank in range(2)]
    merging = ["merge", *parts, "-o", str(tmp_path / "all"), "--quiet"]
    assert main([*command, "--rank", "0"]) == main([*command, "--rank", "1"]) == 0
    assert main([*command, "--rank", "0", "--iteration", "1"]) == 0
    main(merging)
    said = capsys.readouterr()
    assert "the ranks had different tasks, samples or passes to share" in said.err
    assert "2 of 4 done" in said.out
    assert main([*command, "--rank", "1", "--iteration", "1"]) == 0
    main(merging)
    said = capsys.readouterr()
    assert (said.err, "4 of 4 done" in said.out) == ("", True)
