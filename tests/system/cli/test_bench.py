"""The benchmarks run, and write what they measured: numbers in every table, and no section of another lost."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench" / "all.py"
TITLES = {
    "single": "The collector's own cost, beside the floor",
    "tokens": "Token ids and logprobs",
    "latency": "A model with latency",
    "concurrency": "Many episodes in flight",
    "memory": "Memory does not grow with the run",
}

pytestmark = pytest.mark.slow


def bench(out: Path, *names: str) -> None:
    command = [
        sys.executable,
        str(BENCH),
        "--fast",
        "--no-peers",
        "--only",
        ",".join(names),
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr


def sections(path: Path) -> dict[str, str]:
    _, *parts = path.read_text(encoding="utf-8").split("\n## ")
    return {title: text for title, _, text in (part.partition("\n") for part in parts)}


def table_of(text: str) -> dict[str, list[float]]:
    """The rows of a section's table: numbers by the name in the first column."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")][2:]
    return {name.strip(): [float(cell.replace(",", "")) for cell in cells] for name, *cells in rows}


def test_every_scenario_of_the_floor_and_windrow_writes_its_section_with_numbers(tmp_path: Path) -> None:
    out = tmp_path / "results.md"
    bench(out, *TITLES)
    written = sections(out)
    assert list(written) == list(TITLES.values())
    for name, title in TITLES.items():
        assert f"python bench/all.py --only {name}" in written[title]
        rows = table_of(written[title])
        assert len(rows) == (3 if name == "single" else 2)
        assert rows.keys() - {"lean floor"} == {"floor", "windrow"} or name == "memory"
        assert all(math.isfinite(value) and value > 0 for cells in rows.values() for value in cells)


def test_turns_are_measured_for_each_number_of_them(tmp_path: Path) -> None:
    out = tmp_path / "results.md"
    bench(out, "turns")
    rows = table_of(sections(out)["Many turns with a tool"])
    assert list(rows) == ["4", "8"]
    assert all(math.isfinite(value) and value > 0 for cells in rows.values() for value in cells)
    assert [float(turns) * cells[0] for turns, cells in rows.items()] == [64, 64]


def test_workers_are_measured_beside_one_process_with_what_their_parent_takes(tmp_path: Path) -> None:
    out = tmp_path / "results.md"
    bench(out, "workers")
    rows = [
        line.strip("| ").split(" | ") for line in out.read_text(encoding="utf-8").splitlines() if "|" in line
    ]
    header, _, one, two = rows
    assert (one[0], two[0]) == ("1", "2")
    of_parent = header.index("parent's CPU ms a rollout")
    assert one[of_parent] == "–"
    assert 0 <= float(two[of_parent]) < float(two[header.index("CPU ms a rollout")])


def test_training_rows_are_measured_and_a_section_is_replaced_alone(tmp_path: Path) -> None:
    out = tmp_path / "results.md"
    kept = "## By hand\n\nKept as it is.\n"
    out.write_text(f"# Results\n\nold preface\n\n## Training rows\n\nold numbers\n\n{kept}", encoding="utf-8")
    bench(out, "rows")
    text = out.read_text(encoding="utf-8")
    assert text.endswith(kept)
    assert list(sections(out)) == ["Training rows", "By hand"]
    assert "old" not in text
    rows = table_of(sections(out)["Training rows"])
    assert len(rows) == 4
    assert all(math.isfinite(value) and value > 0 for cells in rows.values() for value in cells)
    tokens, stored, *_ = rows["200 turns, 30k context"]
    assert tokens == stored  # each once
