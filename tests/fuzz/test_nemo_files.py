"""NeMo Gym's files of any bytes: what can be taken is in the run and goes out again, the rest is told or refused."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.fuzz.mutations import fuzz, mutated_bytes, mutated_json, taken_or_refused
from tests.support.collect_helpers import answering
from tests.support.nemo_gym_files import half_finished, inputs, write
from tests.support.run_builders import folder_in_memory
from windrow.collecting.importing import Imported, import_run
from windrow.collecting.resolve import resolve
from windrow.config import load_config
from windrow.engine.components import Overrides
from windrow.errors import ExportError
from windrow.integrations.nemo_gym.importer import open_files
from windrow.util.event_loop import run_loop

DONE, FAILED = half_finished()
LINES = "".join(json.dumps(line) + "\n" for line in [*DONE, *FAILED]).encode()
INPUTS = "".join(json.dumps(line) + "\n" for line in inputs()).encode()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with folder_in_memory() as path:
        yield path


def imported(folder: Path) -> Imported | None:
    shutil.rmtree(folder / "run", ignore_errors=True)

    def work() -> Imported:
        importer = open_files(str(folder / "gym.jsonl"))
        options = {"tasks": str(importer.inputs), "out": str(folder / "run"), "samples": 2}
        return run_loop(
            import_run(resolve(load_config((), options), Overrides(policy=answering("x"))), importer)
        )

    return taken_or_refused(work)


@fuzz(120)
@given(
    lines=mutated_bytes([LINES, *LINES.splitlines(keepends=True)])
    | mutated_json([*DONE, *FAILED])
    | mutated_json([line["response"]["output"] for line in DONE]).map(
        lambda output: json.dumps(DONE[0]).encode().replace(b"[1, 2, 3]", output) + b"\n"
    )
)
def test_rollouts_of_any_bytes_are_taken_told_or_refused(lines: bytes, folder: Path) -> None:
    write(folder / "gym_materialized_inputs.jsonl", inputs())
    (folder / "gym.jsonl").write_bytes(lines)
    found = imported(folder)
    if found is None:
        return
    rollouts = list(windrow.load(folder / "run", attempts="all"))
    assert len(rollouts) == found.rollouts + found.failures
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "out").mkdir()
    with contextlib.suppress(ExportError):  # nothing that ended well
        windrow.export(folder / "run", to="nemo-gym", out=folder / "out" / "gym.jsonl")
        for line in (folder / "out" / "gym.jsonl").read_bytes().splitlines():
            assert json.loads(line)["_ng_task_index"] in (0, 1, 2)


@fuzz(120)
@given(data=st.data())
def test_inputs_of_any_bytes_are_taken_or_refused(data: st.DataObject, folder: Path) -> None:
    (folder / "gym_materialized_inputs.jsonl").write_bytes(
        data.draw(mutated_bytes([INPUTS, *INPUTS.splitlines(keepends=True)]) | mutated_json(inputs()))
    )
    write(folder / "gym.jsonl", DONE)
    imported(folder)
