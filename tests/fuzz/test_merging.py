"""Runs of any bytes, merged with a sound one: what can be read is merged, nothing of the sound one is lost, or it is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutations import fuzz, mutated_bytes, mutated_json, taken_or_refused
from tests.support.fake_disks import QuickDisk
from tests.support.run_builders import (
    FAILED,
    folder_in_memory,
    make_grading,
    make_rollout,
    write_lines,
    write_run,
)
from windrow.collecting.merge import merge
from windrow.identity import rollout_id
from windrow.store.judgements import JudgeReply
from windrow.store.task_file import TaskLine

LOGS = ("rollouts.jsonl", "scores.jsonl", "tasks.jsonl", "judgements.jsonl", "conflicts.jsonl")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """With `sound`, a merged run that has a line of every kind, and `other`, of which it was made with another."""
    with folder_in_memory() as folder:
        one, lost = make_rollout("one"), make_rollout("one", status="failed", stop="error", error=FAILED)
        seats = [
            make_rollout("two", id=rollout_id(one.group, 7, seat), seat=seat, seats=2, episode="e")
            for seat in range(2)
        ]
        other = write_run(folder / "other", [lost], [make_grading(lost, 0.5)])
        first = write_run(folder / "first", [one, *seats], [make_grading(one, 0.0), make_grading(one, 1.0)])
        for run, reply in ((first, "yes"), (other, "no")):
            write_lines(run / "judgements.jsonl", [JudgeReply(key="k", reply=reply)])
        task = TaskLine(
            key="t",
            digest="d",
            occurrence=0,
            source="rows",
            split=None,
            index=0,
            tags=(),
            data={"prompt": "p"},
        )
        write_lines(first / "tasks.jsonl", [task])
        merge([first, other], folder / "sound", disk=QuickDisk())
        assert all((folder / "sound" / name).exists() for name in LOGS)
        yield folder


@fuzz(40)
@given(draw=st.data())
def test_a_run_of_any_bytes_is_merged_or_refused(draw: st.DataObject, folder: Path) -> None:
    sound, broken, out = folder / "sound", folder / "broken", folder / "out"
    for path in (broken, out):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(sound, broken)
    for name in draw.draw(st.sets(st.sampled_from([*LOGS, "run.json"]), min_size=1, max_size=2)):
        content = (broken / name).read_bytes()
        shapes = [mutated_bytes([content])]
        if name != "run.json":
            shapes.append(mutated_json([msgspec.json.decode(line) for line in content.splitlines()]))
        (broken / name).write_bytes(draw.draw(st.one_of(*shapes)) + b"\n")
    into = draw.draw(st.sampled_from([out, broken]))

    if taken_or_refused(lambda: merge([broken, sound], into, disk=QuickDisk())) is None:
        return
    lines = set((into / "rollouts.jsonl").read_bytes().splitlines())
    kept = b"".join(file.read_bytes() for file in into.glob("conflicts.jsonl"))
    for line in (sound / "rollouts.jsonl").read_bytes().splitlines():
        assert line in lines or line in kept
    before = {file.name: file.read_bytes() for file in into.glob("*.json*")}
    merge([sound], into, disk=QuickDisk())
    assert {file.name: file.read_bytes() for file in into.glob("*.json*")} == before
