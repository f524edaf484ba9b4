"""A merged run is a function of the set of lines: in any order, in steps and again, the bytes are the same; none is lost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_disks import QuickDisk
from tests.support.run_builders import (
    FAILED,
    folder_in_memory,
    make_grading,
    make_rollout,
    write_lines,
    write_run,
)
from windrow import load
from windrow.collecting.merge import merge
from windrow.identity import rollout_id
from windrow.records import Grading, Rollout, Timing
from windrow.store.judgements import JudgeReply
from windrow.store.merging.conflicts import decode_conflict
from windrow.store.task_file import TaskLine

pytestmark = pytest.mark.slow

LOGS = ("rollouts", "scores", "judgements", "tasks")


class Lines(NamedTuple):
    """What a run holds, log by log, in its order."""

    episodes: list[tuple[Rollout, ...]]
    verdicts: list[Grading]
    said: list[JudgeReply]
    tasks: list[TaskLine]


# -- lines: few names, so that runs often speak of the same things, and not always alike


@st.composite
def episodes(draw: st.DrawFn) -> tuple[Rollout, ...]:
    name = draw(st.sampled_from("ab"))
    fields: dict[str, Any] = {
        "sample": draw(st.integers(0, 1)),
        "attempt": draw(st.integers(1, 2)),
        "index": draw(st.integers(0, 1)),
        "timing": Timing(started_at=float(draw(st.integers(0, 1)))),
    }
    if draw(st.booleans()):
        fields |= {"status": "failed", "stop": "error", "error": FAILED}
    if name == "a":
        return (make_rollout(name, **fields),)
    group = make_rollout(name).group  # a match of two
    seats = [
        make_rollout(
            name,
            **{
                **fields,
                "id": rollout_id(group, fields["sample"], seat),
                "episode": "e",
                "seat": seat,
                "seats": 2,
            },
        )
        for seat in range(2)
    ]
    return tuple(seats[: draw(st.integers(1, 2))])


@st.composite
def verdicts(draw: st.DrawFn) -> Grading:
    values = st.sampled_from([None, 0.0, 1.0])
    rollout = make_rollout("a", sample=draw(st.integers(0, 1)), attempt=draw(st.integers(1, 2)))
    changes: dict[str, Any] = {
        "graded_at": float(draw(st.integers(0, 1))),
        "generation": draw(st.integers(1, 2)),
        "scorer": draw(st.sampled_from(["judge", "other"])),
    }
    if number := draw(st.integers(0, 2)):
        changes["lamport"] = number
    if draw(st.booleans()):
        other = make_rollout("a", sample=1 - rollout.sample)
        if (
            not number
        ):  # a scorer judges rollouts or groups; lines without a number do not say what came first
            changes["scorer"] += "-of-groups"
        changes |= {"unit": rollout.group, "members": (rollout.key, other.key), "scores": ({}, {})}
    return make_grading(rollout, draw(values), **changes)


said = st.builds(JudgeReply, key=st.sampled_from("kl"), reply=st.sampled_from("xyz"))
tasks = st.builds(
    TaskLine,
    key=st.just("t"),
    digest=st.sampled_from(["d", "e"]),
    occurrence=st.integers(0, 1),
    source=st.just("rows"),
    split=st.none(),
    index=st.integers(0, 2),
    tags=st.just(()),
    data=st.just({"prompt": "p"}),
)
lines = st.builds(Lines, *(st.lists(each, max_size=6) for each in (episodes(), verdicts(), said, tasks)))


# -- runs


def written(path: Path, lines: Lines) -> Path:
    """What is left of an episode at the end of a log is not in the log: here something follows it."""
    rollouts = [rollout for episode in lines.episodes for rollout in episode]
    of_rank = [verdict for verdict in lines.verdicts if verdict.lamport and verdict.graded_at]
    write_run(path, [*rollouts, make_rollout("end")], [v for v in lines.verdicts if v not in of_rank])
    if of_rank:
        write_lines(path / "scores.rank-0.jsonl", of_rank)
    write_lines(path / "judgements.jsonl", lines.said)
    write_lines(path / "tasks.jsonl", lines.tasks)
    return path


def merged(folder: Path, *runs: Path, into: Path | None = None) -> Path:
    """In a folder of its own, since the numbers of a run say its name."""
    out = into or folder / str(sum(1 for _ in folder.iterdir())) / "out"
    merge(runs, out, disk=QuickDisk())
    return out


def tree(run: Path) -> dict[str, bytes]:
    """The files of a run, but for its locks and the cache, which is of this disk."""
    apart = ("lock", "metrics.cache")
    return {file.name: file.read_bytes() for file in run.iterdir() if not file.name.startswith(apart)}


def texts(run: Path) -> set[bytes]:
    """Every line of a run, also those set aside."""
    found = {
        line for log in LOGS for file in run.glob(f"{log}*.jsonl") for line in file.read_bytes().splitlines()
    }
    for file in run.glob("conflicts.jsonl"):
        for line in file.read_bytes().splitlines():
            found |= {bytes(text) for text in decode_conflict(line).lines}
    return found


@given(parts=st.lists(lines, min_size=3, max_size=3), order=st.sampled_from(list(permutations(range(3)))))
@settings(max_examples=15)
def test_order_steps_and_repetition_make_no_difference(
    parts: Sequence[Lines], order: tuple[int, ...]
) -> None:
    with folder_in_memory() as folder:
        runs = [written(folder / f"run-{number}", part) for number, part in enumerate(parts)]
        whole = tree(merged(folder, *runs))
        first, second, third = (runs[number] for number in order)

        assert tree(merged(folder, first, second, third)) == whole
        assert tree(merged(folder, merged(folder, first, second), third)) == whole
        assert tree(merged(folder, first, merged(folder, second, third))) == whole
        steps = merged(folder, first)
        merged(folder, second, into=steps)
        assert tree(merged(folder, third, first, into=steps)) == whole
        assert tree(merged(folder, steps, into=steps)) == whole


@given(parts=st.lists(lines, min_size=1, max_size=3))
@settings(max_examples=15)
def test_every_line_is_there_once_and_nothing_else(parts: Sequence[Lines]) -> None:
    with folder_in_memory() as folder:
        runs = [written(folder / f"run-{number}", part) for number, part in enumerate(parts)]
        out = merged(folder, *runs)
        assert texts(out) == {line for run in runs for line in texts(run)}
        for log in LOGS:
            found = [line for file in out.glob(f"{log}.jsonl") for line in file.read_bytes().splitlines()]
            assert len(found) == len(set(found))


@given(part=lines)
@settings(max_examples=25)
def test_a_run_merged_alone_says_what_it_said(part: Lines) -> None:
    """But where it contradicts itself: two lines of one attempt, as two writers without a lock would leave."""
    alone = {
        (e[0].group, e[0].sample, e[0].attempt, len(e)): e
        for e in part.episodes
        if len(e) == (e[0].seats or 1)
    }
    part = part._replace(episodes=list(alone.values()))
    with folder_in_memory() as folder:
        run = written(folder / "run", part)
        out = merged(folder, run)
        assert list(load(out)) == list(load(run))
        assert list(load(out, attempts="all")) == list(load(run, attempts="all"))
