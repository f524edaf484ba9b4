"""Ranks as real processes: at once, killed and started again, with workers; together they make one run."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.command_process import PATIENCE_S, Project, Running, prompt_of
from tests.support.task_reading import records
from windrow.store.manifest import read_manifest
from windrow.store.rank_progress import unfinished
from windrow.store.segments import segments

pytestmark = pytest.mark.slow

TASKS, SAMPLES = 24, 2
SHARED = ("-k", str(SAMPLES), "--seeds", "id", "--scorer", "judging:judge", "--rank-weights", "2,1,1")
ALONE = (*SHARED[:-2], "--rank", "0", "--world-size", "1")
HELD = TASKS - 3  # the last task of rank 1
JUDGE = """
def judge(task, reply):
    return float(reply) / 2

judge.after_commit = True
judge.version = 1
"""


class SocksProxy:
    """A model that says the number which it is asked for, and keeps the one who asks for HELD waiting."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def __call__(self, body: dict[str, Any], n: int) -> str:
        number = prompt_of(body).split()[-1]
        if int(number) == HELD:
            assert self.opened.wait(PATIENCE_S)
        return number


@pytest.fixture
def gate() -> Iterator[SocksProxy]:
    gate = SocksProxy()
    yield gate
    gate.opened.set()


@pytest.fixture
def home(project: Callable[..., Project], gate: SocksProxy) -> Project:
    home = project(gate)
    home.module("judging", JUDGE)
    home.tasks({"prompt": f"what is {n}", "answer": str(n)} for n in range(TASKS))
    return home


def start(home: Project, rank: int, *flags: str) -> Running:
    return home.start_collect(*SHARED, "--rank", str(rank), "--world-size", "3", *flags)


def launch(home: Project, rank: int) -> Running:
    return home.start_collect(*SHARED, variables={"RANK": str(rank), "WORLD_SIZE": "3"})


def committed(home: Project, rank: int) -> set[int]:
    """The seeds of what a rank has written."""
    log = home.run / f"rollouts.rank-{rank}.jsonl"
    whole = log.read_bytes().rpartition(b"\n")[0].splitlines() if log.exists() else []
    return {json.loads(line)["seed"] for line in whole}


def test_ranks_of_which_one_is_killed_make_the_run_that_one_process_makes(
    home: Project, gate: SocksProxy
) -> None:
    """In one directory, which rank 0 merges into another at the end."""
    assert home.server is not None
    ranks = [start(home, 0, "--workers", "2", "--merge", "merged"), start(home, 1), start(home, 2)]
    assert ranks[2].wait().code == 0
    ranks[1].until(lambda: committed(home, 1), "rank 1 has committed something")
    ranks[0].until_said("waiting for rank 1, for up to ")
    assert "rank 1 has " in home.windrow("stats", "run").out

    refused = launch(home, 1).wait()
    assert (refused.code, "rank 1 of run is being written by process" in refused.err) == (2, True)
    assert "rank 1 of 3 (from RANK, WORLD_SIZE): 6 of 24 tasks; --rank 0 --world-size 1" in refused.err
    alone = home.collect(*ALONE)
    assert (alone.code, "run is being written by process" in alone.err) == (2, True)

    ranks[1].signal(signal.SIGKILL)
    ranks[1].wait()
    kept, asked = committed(home, 1), home.server.completions
    gate.opened.set()
    assert launch(home, 1).wait().code == 0
    fresh = [body["seed"] for body in home.server.bodies[asked:]]
    assert sorted({*fresh} | kept) == sorted([*fresh, *kept])  # none twice, and nothing of the others
    assert len(fresh) + len(kept) == TASKS // 4 * SAMPLES
    merged = ranks[0].wait()
    assert (merged.code, "48 of 48 done, 0 ungraded" in merged.err) == (0, True)

    assert home.collect(*ALONE, "--out", "whole").code == 0
    whole = records(home.path / "whole")
    assert records(home.run) == whole
    assert records(home.path / "merged") == whole
    manifest = read_manifest(home.run)
    assert (manifest.counts["done"], unfinished(manifest.ranks)) == (TASKS * SAMPLES, [])
    assert {segment for segment in segments(home.run) if ".w" in segment} == {
        "rollouts.rank-0.w0.jsonl",
        "rollouts.rank-0.w1.jsonl",
    }


def test_ranks_with_a_directory_each_are_merged_to_the_same_bytes_in_any_order(
    home: Project, gate: SocksProxy
) -> None:
    gate.opened.set()
    each = ("--out", "part.{rank}")
    merging = (*each, "--merge", "merged")
    early = start(home, 0, *merging, "--merge-deadline", "0").wait()
    assert early.code == 1
    for rank in (1, 2):
        assert f"rank {rank} has not collected its share of these tasks in part.{rank}" in early.err
        assert f"missing: rank {rank} of 3" in early.err

    ranks = [start(home, rank, *merging) for rank in (2, 0, 1)]
    assert [rank.wait().code for rank in ranks] == [0, 0, 0]
    assert home.windrow("merge", "part.1", "part.2", "part.0", "part.1", "-o", "other").code == 0
    assert len(records(home.path / "merged")) == TASKS * SAMPLES
    files = ("rollouts.jsonl", "scores.jsonl", "tasks.jsonl", "run.json")
    merged, other = ([(home.path / out / name).read_bytes() for name in files] for out in ("merged", "other"))
    assert merged == other
