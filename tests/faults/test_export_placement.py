"""An export of several files that is killed at any file operation is the old one, the new one, or visibly none: never a mixture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import windrow
from tests.support.export_helpers import sampled
from tests.support.kill_points import killed_everywhere
from tests.support.run_builders import folder_in_memory, write_run

OUT = "x_rollout_summaries.jsonl"


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


def export(root: Path) -> None:
    windrow.export(root / "run", to="tinker", out=root / OUT, overwrite=True)


def exported(root: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in root.iterdir() if file.is_file()}


def test_old_and_new_files_are_never_taken_for_one_export(folder: Path) -> None:
    before = folder / "before"
    write_run(before / "run", [sampled("old", reward=1.0)])
    export(before)
    old = exported(before)
    write_run(before / "run", [sampled("new", reward=0.0, index=1)])
    results = killed_everywhere(export, before, folder / "results")
    new = exported(results[-1])
    assert len(new) == 2
    assert old.keys() == new.keys()
    states = []
    for root in results:
        found = {name: data for name, data in exported(root).items() if not name.startswith(".")}
        states.append(
            "old" if found == old else "new" if found == new else "none" if OUT not in found else "mixed"
        )
        export(root)
        assert exported(root) == new
    assert list(dict.fromkeys(states)) == ["old", "none", "new"]
