"""Run directories of any bytes: what can be read is read, what cannot is left out or refused, and the run goes on."""

from __future__ import annotations

import asyncio
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.fuzz.mutations import fuzz, mutated_bytes, mutated_json, mutated_text, taken_or_refused
from tests.support.run_builders import collect, folder_in_memory, rows
from windrow.cli.collect_report import key_lines
from windrow.cli.stats import text
from windrow.records import Rollout, encode
from windrow.stats.cache import CACHE
from windrow.stats.metrics import measure, measure_run, unchanged_metrics, write_metrics
from windrow.stats.summary import summarise
from windrow.store.reader import load
from windrow.store.where import parse_where

FILES = ("rollouts.jsonl", "scores.jsonl", "tasks.jsonl", "run.json")


class Whole(NamedTuple):
    path: Path
    contents: dict[str, bytes]


@pytest.fixture(scope="module")
def whole() -> Iterator[Whole]:
    """A run with retries, gradings and a row too large for the line, and a place for copies of it."""
    with folder_in_memory() as folder:
        tasks = [*rows(2), {"prompt": "say 9", "answer": "9", "long": "x" * 9000}]
        failed: list[str] = []

        def answer(request: object) -> str:
            text = request.messages[-1].text.removeprefix("say ")  # type: ignore[attr-defined]
            if text == "1" and not failed:
                failed.append(text)
                raise RuntimeError("once")
            return text

        asyncio.run(collect(folder / "run", tasks=tasks, answer=answer, retries=1))
        yield Whole(folder, {name: (folder / "run" / name).read_bytes() for name in FILES})


def broken(whole: Whole, draw: st.DataObject) -> Path:
    """A copy of the run in which some files are not what they were."""
    path = whole.path / "copy"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    wrong = draw.draw(st.sets(st.sampled_from(FILES), min_size=1, max_size=2))
    for name, content in whole.contents.items():
        if name in wrong:
            lines = content.splitlines()
            reshaped = (
                [mutated_json([msgspec.json.decode(line) for line in lines])] if name != "run.json" else []
            )
            content = draw.draw(st.one_of(mutated_bytes([content]), *reshaped))
            content = (
                content
                if not reshaped or draw.draw(st.booleans())
                else b"\n".join([*lines, content, lines[0], b""])
            )
        (path / name).write_bytes(content)
    return path


@fuzz(250)
@given(draw=st.data())
def test_a_run_of_any_bytes_is_read_or_refused(draw: st.DataObject, whole: Whole) -> None:
    path = broken(whole, draw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for attempts in ("final", "all"):
            found = taken_or_refused(lambda attempts=attempts: list(load(path, attempts=attempts)))
            for rollout in found or ():
                assert msgspec.json.decode(encode(rollout), type=Rollout) == rollout
        taken_or_refused(lambda: summarise(path))
        taken_or_refused(lambda: measure(path, envs={}, warn=lambda text: None))


@fuzz(120)
@given(draw=st.data())
def test_a_run_of_any_bytes_is_continued_or_refused(draw: st.DataObject, whole: Whole) -> None:
    path = broken(whole, draw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tasks = [*rows(2), {"prompt": "say 9", "answer": "9", "long": "x" * 9000}]
        ended = taken_or_refused(lambda: asyncio.run(collect(path, tasks=tasks)))
        if ended is not None:
            summary, _ = ended
            assert summary.done + summary.failed + summary.pending == summary.planned == 6
            kept = taken_or_refused(lambda: list(windrow.load(path)))
            assert kept is None or len(kept) >= summary.done


@pytest.fixture(scope="module")
def measured(whole: Whole) -> Whole:
    """A run with metrics, and what stands in its cache."""
    path = whole.path / "measured"
    shutil.copytree(whole.path / "run", path)
    write_metrics(path, measure_run(path))
    return Whole(path, {CACHE: (path / CACHE).read_bytes()})


@fuzz(400)
@given(draw=st.data())
def test_a_cache_of_any_bytes_is_taken_or_left(draw: st.DataObject, measured: Whole) -> None:
    content = measured.contents[CACHE]
    reshaped = mutated_json([msgspec.json.decode(content)])
    (measured.path / CACHE).write_bytes(draw.draw(st.one_of(mutated_bytes([content]), reshaped)))
    assert text(summarise(measured.path)).startswith("run ")
    metrics = unchanged_metrics(measured.path)
    for entry in metrics.agents if metrics is not None else ():
        assert key_lines(entry)


CONDITIONS = ["status=failed,error.owner=infra,reward<0.5", "scores.number.value>=1", "task.key!=a", "state.a.b=null",
              "timing.total<1e3", "task.data.x=é", "metrics.close_failed=1"]  # fmt: skip


@fuzz(600)
@given(text=mutated_text(CONDITIONS))
def test_any_condition_is_taken_or_refused_and_holds_or_not(text: str, whole: Whole) -> None:
    where = taken_or_refused(lambda: parse_where(text))
    if where is not None:
        for line in whole.contents["rollouts.jsonl"].splitlines():
            assert where(msgspec.json.decode(line)) in (True, False)
