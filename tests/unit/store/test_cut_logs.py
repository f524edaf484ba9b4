"""Every log cut anywhere in its last two lines: the next call ends where an uninterrupted run ends.

Around the ends of lines that is every byte, and every fifth between; with HYPOTHESIS_PROFILE=thorough it is every one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

from tests.support.run_builders import collect, contents, echo, folder_in_memory, rows
from windrow.errors import InfraError
from windrow.policies.base import Request

pytestmark = pytest.mark.usefixtures("indexed")
LOGS = ("rollouts.jsonl", "scores.jsonl", "tasks.jsonl")
EDGE_BYTES, EVERY = 24, 5
CALL: dict[str, Any] = {"tasks": rows(2), "samples": 2, "concurrency": 1, "retries": 1}


class Whole(NamedTuple):
    """A run that nothing happened to."""

    run: Path
    contents: list[dict[str, Any]]
    lines: dict[str, list[bytes]]


@pytest.fixture
def scratch() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture
async def whole(scratch: Path) -> Whole:
    run = scratch / "whole"
    summary, _ = await collect(run, answer=flaky, **CALL)
    assert summary.complete
    lines = {log: (run / log).read_bytes().splitlines(keepends=True) for log in LOGS}
    assert [len(lines[log]) for log in LOGS] == [6, 4, 2]
    return Whole(run, contents(run), lines)


def flaky(request: Request) -> str:
    """The first attempts at the second task fail."""
    if request.attempt == 1 and request.messages[-1].text == "say 1":
        raise InfraError("busy")
    return echo(request)


async def cut_and_continue(whole: Whole, log: str, size: int, run: Path) -> None:
    """Cut `log` to `size` bytes, make the same call again, and compare.

    A line is durable before it is judged: with it, its verdict is gone too.
    """
    shutil.copytree(whole.run, run)
    data = (run / log).read_bytes()
    (run / log).write_bytes(data[:size])
    kept = data[:size].rfind(b"\n") + 1
    left = {name: b"".join(lines) for name, lines in whole.lines.items()} | {log: data[:kept]}
    if log == "rollouts.jsonl":
        there = {key_of(line) for line in left[log].splitlines()}
        judged = (line for line in whole.lines["scores.jsonl"] if _member(line) in there)
        left["scores.jsonl"] = b"".join(judged)
        (run / "scores.jsonl").write_bytes(left["scores.jsonl"])
    asked: list[Request] = []

    def answer(request: Request) -> str:
        asked.append(request)
        return flaky(request)

    summary, _ = await collect(run, answer=answer, **CALL)
    assert summary.complete
    assert contents(run) == whole.contents
    lost = data[kept:].count(b"\n")
    assert len(asked) == (lost if log == "rollouts.jsonl" else 0), "what is on disk is not asked for again"
    torn = [file.read_bytes() for file in (run / "torn").iterdir()] if (run / "torn").exists() else []
    assert torn == [data[kept:size]] * (kept < size)
    for name in LOGS:
        after = (run / name).read_bytes()
        assert after.startswith(left[name])
        found, expected = [sorted(map(key_of, lines)) for lines in (after.splitlines(), whole.lines[name])]
        assert found == expected, "doubled"


def forget_verdicts_on_what_is_lost(run: Path) -> None:
    """As `cut_and_continue` does. Verdicts come in no order: the last one need not be that of the last line."""
    *lines, torn = (run / "rollouts.jsonl").read_bytes().split(b"\n")
    there = {key_of(line) for line in lines}
    *verdicts, torn = (run / "scores.jsonl").read_bytes().split(b"\n")
    kept = [verdict + b"\n" for verdict in verdicts if _member(verdict) in there]
    (run / "scores.jsonl").write_bytes(b"".join([*kept, torn]))


def key_of(line: bytes) -> tuple[Any, ...]:
    """What makes a line of any of the logs the only one of its kind."""
    record = json.loads(line)
    if "members" in record:
        return (record["scorer"], record["members"])
    return (record["id"], record["attempt"]) if "id" in record else (record["digest"], record["occurrence"])


def _member(grading: bytes) -> tuple[Any, ...]:
    [[id, attempt]] = json.loads(grading)["members"]
    return (id, attempt)


def last_two_lines(whole: Whole, log: str) -> range:
    """Every size to which a cut within the last two lines leaves the log."""
    end = sum(map(len, whole.lines[log]))
    return range(end - sum(map(len, whole.lines[log][-2:])), end + 1)


@pytest.mark.parametrize("log", LOGS)
async def test_a_log_cut_near_the_end_of_a_line_or_within_it_is_continued(
    scratch: Path, whole: Whole, log: str
) -> None:
    sizes = last_two_lines(whole, log)
    middle = sizes[len(whole.lines[log][-2])]
    edges = {sizes[0], sizes[1], middle - 1, middle, middle + 1, sizes[-2], sizes[-1]}
    for size in sorted(edges | set(sizes[::97])):
        await cut_and_continue(whole, log, size, scratch / f"cut-{size}")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("log", LOGS)
async def test_a_log_cut_at_any_byte_of_its_last_two_lines_is_continued(
    scratch: Path, whole: Whole, log: str, part: int
) -> None:
    sizes: Sequence[int] = last_two_lines(whole, log)
    ends = (sizes[0], sizes[len(whole.lines[log][-2])], sizes[-1])
    if settings().max_examples <= 100:
        near = {size for size in sizes if any(abs(size - end) <= EDGE_BYTES for end in ends)}
        sizes = sorted(near | set(sizes[::EVERY]))
    for size in sizes[part::4]:
        await cut_and_continue(whole, log, size, scratch / "cut")
        shutil.rmtree(scratch / "cut")


async def test_all_logs_cut_at_once_are_continued(scratch: Path, whole: Whole) -> None:
    for number in range(12):
        run = scratch / f"cut-{number}"
        shutil.copytree(whole.run, run)
        for log in LOGS:
            sizes = last_two_lines(whole, log)
            (run / log).write_bytes((run / log).read_bytes()[: sizes[len(sizes) * number // 12]])
        forget_verdicts_on_what_is_lost(run)
        summary, _ = await collect(run, answer=flaky, **CALL)
        assert summary.complete
        assert contents(run) == whole.contents
