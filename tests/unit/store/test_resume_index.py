"""The index of a segment: a resume with it finds what the whole log says, whatever has happened to either."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_disks import CrashDisk, QuickDisk
from tests.support.run_builders import (
    FAILED,
    collect,
    echo,
    folder_in_memory,
    judge,
    make_rollout,
    open_run,
    rows,
    write_run,
)
from windrow.engine.control import Control
from windrow.errors import InfraError
from windrow.policies.base import Request
from windrow.records import Rollout, encode
from windrow.store import index_files, resume_index
from windrow.store.line_heads import Head
from windrow.store.reader import RunReader
from windrow.store.resume_index import SegmentIndex, load_index
from windrow.store.run_directory import RunDirectory
from windrow.tasks.plan import Plan
from windrow.util.redaction import Redactor

pytestmark = pytest.mark.usefixtures("indexed")
LOG = "rollouts.jsonl"


@pytest.fixture
def run() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder / "run"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines of which a resume has read the head."""
    found: list[bytes] = []

    def decode(line: bytes) -> Head:
        found.append(line)
        return resume_index_decode(line)

    resume_index_decode = resume_index.decode_head
    monkeypatch.setattr(resume_index, "decode_head", decode)
    return found


def said(index: SegmentIndex) -> dict[str, Any]:
    """All that a resume goes by."""
    settled = {
        (group, first + bit) for group, first, bits in index.settled() for bit in range(64) if bits >> bit & 1
    }
    return {
        "size": index.size,
        "settled": settled,
        "tried": {slot: tried for slot, tried in index.tried.items() if slot not in settled},
        "gradings": index.gradings,
        "flags": (index.ungraded, index.seats),
        "bad": index.bad_lines,
    }


def afresh(run: Path, segment: str) -> dict[str, Any]:
    """What the segment says to one who has no index."""
    shutil.rmtree(run / "index", ignore_errors=True)
    return said(load_index(run, segment))


def agrees(run: Path, segment: str = LOG) -> bool:
    with_index = said(load_index(run, segment))
    return with_index == afresh(run, segment)


def states(run: Path, **options: Any) -> tuple[Any, list[tuple[str, int]]]:
    """What a call finds: its counts, and what it would run."""
    collection = open_run(run, **options)
    try:
        pending = [(slot.id, slot.attempt) for slot in collection.plan.pending(collection.ledger)]
        return collection.summary(), pending
    finally:
        collection.close()


async def begun(run: Path, **options: Any) -> None:
    """A run of three tasks, of which one sample is not done."""
    control = Control()
    asked = 0

    def answer(request: Request) -> str:
        nonlocal asked
        asked += 1
        if asked == 4:
            raise InfraError("busy")
        if asked == 5:
            control.stop()
        return echo(request)

    await collect(run, answer=answer, control=control, concurrency=1, scorers=("contains",), **options)


async def test_a_resume_reads_only_the_lines_that_were_added(run: Path, decoded: list[bytes]) -> None:
    await begun(run)
    first, pending = states(run, scorers=("contains",))
    assert (first.done, len(pending)) == (4, 2)
    assert decoded == []
    with (run / LOG).open("ab") as file:
        file.write(b"?\n" + (run / LOG).read_bytes().splitlines(keepends=True)[0])
    assert states(run, scorers=("contains",)) == (first, pending)
    assert len(decoded) == 1
    assert states(run, scorers=("contains",)) == (first, pending)
    assert len(decoded) == 1


async def test_bad_lines_are_reported_by_every_call(run: Path, decoded: list[bytes]) -> None:
    await begun(run)
    with (run / LOG).open("ab") as file:
        file.write(b"?\n")
    for _ in range(3):
        collection = open_run(run, scorers=("contains",))
        collection.close()
        assert [message for message in collection.warnings if "rollouts.jsonl:6 " in message]
    assert decoded == []


@pytest.mark.parametrize(
    "options", [{"samples": 4}, {"samples": 1}, {"limit": 2}, {"shuffle": 7}, {"tasks": rows(5)}]
)
async def test_an_index_serves_any_plan(run: Path, decoded: list[bytes], options: dict[str, Any]) -> None:
    await begun(run)
    found = states(run, scorers=("contains",), **options)
    assert decoded == []
    shutil.rmtree(run / "index")
    assert found == states(run, scorers=("contains",), **options)


async def test_a_call_that_ends_early_leaves_an_index_of_what_it_has_committed(run: Path) -> None:
    await begun(run)
    kept = (run / "index" / "rollouts.index").read_bytes()
    with_index = said(load_index(run, LOG))
    assert with_index == afresh(run, LOG)
    (run / "index").mkdir()
    (run / "index" / "rollouts.index").write_bytes(kept)
    with (run / LOG).open("ab") as file:
        file.write(b'{"torn')
    assert said(load_index(run, LOG)) == with_index


def _first_byte_of_a_status(text: bytes) -> int:
    return text.index(b'"completed"') + 1


async def test_an_edit_that_leaves_size_and_time_as_they_were_is_noticed(run: Path) -> None:
    await begun(run)
    log = run / LOG
    before = log.stat()
    text = bytearray(log.read_bytes())
    text[_first_byte_of_a_status(text)] ^= 1
    log.write_bytes(text)
    os.utime(log, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert agrees(run)


async def test_a_line_that_was_damaged_is_noticed_also_after_more_was_appended(run: Path) -> None:
    await begun(run)
    log = run / LOG
    text = bytearray(log.read_bytes())
    text[0] = 0
    log.write_bytes(bytes(text) + text[text.index(b"\n") + 1 :])
    found = said(load_index(run, LOG))
    assert [bad.number for bad in found["bad"]] == [1]
    assert found == afresh(run, LOG)


async def test_a_log_that_was_cut_or_replaced_is_read_anew(run: Path) -> None:
    await begun(run)
    log = run / LOG
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:2]))
    assert agrees(run)
    open_run(run, scorers=("contains",)).close()
    other = log.with_name("other")
    other.write_bytes(b"".join(lines[2:4]))
    other.replace(log)
    assert agrees(run)


@pytest.mark.parametrize("harm", ["emptied", "cut", "garbage", "one byte", "another version", "a directory"])
async def test_an_index_that_cannot_be_read_is_ignored_and_made_again(
    run: Path, harm: str, decoded: list[bytes]
) -> None:
    await begun(run)
    index = run / "index" / "rollouts.index"
    expected = states(run, scorers=("contains",))
    kept = index.read_bytes()
    spoilt = {
        "emptied": b"",
        "cut": kept[: len(kept) // 2],
        "garbage": random.Random(1).randbytes(300),
        "one byte": kept[:-3] + bytes([kept[-3] ^ 1]) + kept[-2:],
        "another version": kept.replace(b"windrow ", b"windrow 9", 1),
        "a directory": b"",
    }[harm]
    index.unlink()
    if harm == "a directory":
        index.mkdir()
    else:
        index.write_bytes(spoilt)
    assert states(run, scorers=("contains",)) == expected
    assert len(decoded) == 5
    assert states(run, scorers=("contains",)) == expected
    assert len(decoded) == (10 if harm == "a directory" else 5)


async def test_a_run_whose_index_cannot_be_written_is_collected_all_the_same(run: Path) -> None:
    run.mkdir()
    (run / "lock").touch()
    open_run(run, scorers=("contains",)).close()
    shutil.rmtree(run / "index")
    (run / "index").write_text("in the way")
    summary, _ = await collect(run, scorers=("contains",))
    assert summary.complete
    assert states(run, scorers=("contains",))[0].done == 6


async def test_a_run_that_is_moved_while_it_is_written_goes_on(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    directory = RunDirectory(tmp_path / "run", disk=QuickDisk())
    sink = directory.rollout_sink(Redactor())
    (tmp_path / "run").rename(tmp_path / "moved")
    await sink.commit((make_rollout("a"),))
    directory.close()
    assert len(said(load_index(tmp_path / "moved", LOG))["settled"]) == 1


async def test_a_segment_that_took_the_name_of_another_is_not_taken_for_it(run: Path) -> None:
    await begun(run)
    (run / LOG).rename(run / "rollouts.w1.jsonl")
    expected = states(run, scorers=("contains",))
    shutil.rmtree(run / "index")
    assert expected == states(run, scorers=("contains",))
    assert expected[0].done == 4


async def test_small_runs_are_not_indexed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_files, "MIN_BYTES", 1 << 20)
    await begun(run)
    assert not (run / "index").exists()


async def test_an_index_says_what_stands_in_the_log_and_not_what_was_to_be_written(tmp_path: Path) -> None:
    """A secret that is taken out of a line may stand anywhere in it, also in its name."""
    rollout = make_rollout("named")
    redactor = Redactor()
    redactor.add(rollout.group[:20])
    write_run(tmp_path / "run")
    directory = RunDirectory(tmp_path / "run", disk=QuickDisk())
    await directory.rollout_sink(redactor).commit((rollout, make_rollout("other")))
    directory.close()
    assert said(load_index(tmp_path / "run", LOG))["settled"] == {(make_rollout("other").group, 0)}
    assert agrees(tmp_path / "run")


def test_an_episode_of_which_seats_are_still_to_come_is_read_again(tmp_path: Path) -> None:
    """Another writer's segment may end between two seats at the moment in which it is read."""
    seats = [make_rollout("match", seat=seat, seats=2) for seat in range(2)]
    path = write_run(tmp_path / "run", seats[:1])
    index = load_index(path, LOG)
    index.save(QuickDisk())
    assert said(index)["settled"] == set()
    with (path / LOG).open("ab") as file:
        file.write(encode(seats[1]) + b"\n")
    assert len(said(load_index(path, LOG))["settled"]) == 1
    assert agrees(path)


def test_no_line_is_too_odd_to_be_indexed(tmp_path: Path) -> None:
    odd = [
        make_rollout("far", sample=100_000),
        make_rollout("further", sample=2**62),
        msgspec.structs.replace(make_rollout("a"), group="not a group"),
        msgspec.structs.replace(make_rollout("a"), group="Ab" * 12),
        msgspec.structs.replace(make_rollout("b"), group="é", status="failed", error=FAILED, attempt=2**62),
    ]
    path = write_run(tmp_path / "run", odd)
    load_index(path, LOG).save(QuickDisk())
    found = said(load_index(path, LOG))
    assert found["settled"] == {(make_rollout("far").group, 100_000)}
    assert agrees(path)


# -- a plan

PLANS: list[dict[str, Any]] = [
    {},
    {"samples": 3},
    {"samples": 1},
    {"limit": 2},
    {"shuffle": 7},
    {"pass_": 1},
    {"tasks": rows(5)},
]


async def test_a_ledger_is_taken_for_the_same_plan_and_for_no_other(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(run)
    expected = []
    for options in PLANS:
        shutil.rmtree(run / "index")
        expected.append(states(run, scorers=("contains",), **options))
    for _ in range(2):
        assert [states(run, scorers=("contains",), **options) for options in PLANS] == expected
    states(run, scorers=("contains",))
    monkeypatch.setattr(Plan, "groups", None)  # nobody asks for them
    assert states(run, scorers=("contains",)) == expected[0]


async def test_a_ledger_is_not_taken_for_another_log(run: Path) -> None:
    await begun(run)
    first, pending = states(run, scorers=("contains",))
    with (run / LOG).open("ab") as file:
        slot = (run / LOG).read_bytes().splitlines(keepends=True)[3]  # the one that failed
        file.write(
            slot.replace(b'"status":"failed"', b'"status":"completed"').replace(
                b'"attempt":1', b'"attempt":2'
            )
        )
    second, left = states(run, scorers=("contains",))
    assert (second.done, len(left)) == (first.done + 1, len(pending) - 1)


# -- any history

GROUPS = [make_rollout(name).group for name in ("a", "b", "c")]


@st.composite
def attempts(draw: st.DrawFn) -> list[Rollout]:
    """An attempt, with or without seats, which may lack some."""
    status = draw(st.sampled_from(["completed", "truncated", "failed", "cancelled"]))
    retryable = draw(st.booleans())
    error = msgspec.structs.replace(FAILED, retryable=retryable) if status == "failed" else None
    one = make_rollout(
        draw(st.sampled_from("abc")),
        sample=draw(st.integers(0, 70)),
        attempt=draw(st.integers(1, 3)),
        status=status,
        error=error,
        grade=draw(st.sampled_from(["none", "graded", "pending", "failed"])),
        grading=draw(st.sampled_from(["x", "y", None])),
    )
    seats = draw(st.integers(0, 3))
    found = [msgspec.structs.replace(one, seat=seat, seats=seats) for seat in range(seats)] or [one]
    return found[: draw(st.integers(1, len(found)))]


LINES = st.lists(attempts(), min_size=1, max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), LINES),
        st.tuples(st.just("commit"), LINES),
        st.tuples(st.just("junk"), st.sampled_from([b"?\n", b"{}\n", b'{"v":99}\n', b"\xff\n", b'{"torn'])),
        st.tuples(st.just("look"), st.none()),
        st.tuples(st.just("flip"), st.integers(0, 10_000)),
        st.tuples(st.just("cut"), st.integers(0, 10_000)),
        st.tuples(st.just("lose"), st.none()),
        st.tuples(st.just("spoil"), st.integers(0, 10_000)),
        st.tuples(st.just("stale"), st.none()),
        st.tuples(st.just("copy"), st.none()),
    ),
    max_size=12,
)


class _History:
    """A segment and its index, and what may happen to them."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.log = run / LOG
        self.index = run / "index" / "rollouts.index"
        self.old: bytes | None = None

    def append(self, attempts: Sequence[list[Rollout]]) -> None:
        with self.log.open("ab") as file:
            file.writelines(encode(rollout) + b"\n" for seats in attempts for rollout in seats)

    def commit(self, attempts: Sequence[list[Rollout]]) -> None:
        """As a writer does, which indexes what it appends."""
        index = load_index(self.run, LOG)
        if self.log.stat().st_size != index.size:  # it would have cut a torn tail off
            os.truncate(self.log, index.size)
        for seats in attempts:
            before = self.log.stat().st_size
            self.append([seats])
            index.committed(seats, self.log.read_bytes()[before:], QuickDisk())

    def junk(self, data: bytes) -> None:
        with self.log.open("ab") as file:
            file.write(data)

    def look(self, _: None) -> None:
        load_index(self.run, LOG).save(QuickDisk())

    def flip(self, at: int) -> None:
        text = bytearray(self.log.read_bytes())
        if text:
            text[at % len(text)] ^= 1
            self.log.write_bytes(text)

    def cut(self, at: int) -> None:
        os.truncate(self.log, at % (self.log.stat().st_size + 1))

    def lose(self, _: None) -> None:
        self.index.unlink(missing_ok=True)

    def spoil(self, at: int) -> None:
        kept = bytearray(self.index.read_bytes()) if self.index.exists() else b""
        if kept:
            kept[at % len(kept)] ^= 1
            self.index.write_bytes(kept)

    def stale(self, _: None) -> None:
        """An index of an earlier time is put in the place of a later one."""
        now = self.index.read_bytes() if self.index.exists() else None
        if self.old is not None:
            self.index.write_bytes(self.old)
        self.old = now

    def copy(self, _: None) -> None:
        other = self.log.with_name("copy")
        shutil.copy2(self.log, other)
        other.replace(self.log)


@given(STEPS)
def test_after_any_history_the_index_gives_what_the_whole_log_gives(steps: list[tuple[str, Any]]) -> None:
    with pytest.MonkeyPatch.context() as patch, folder_in_memory() as folder:
        patch.setattr(index_files, "MIN_BYTES", 0)
        patch.setattr(resume_index, "MIN_GROWTH_BYTES", 0)
        patch.setattr(resume_index, "OPEN_ROWS", 2)
        history = _History(folder / "run")
        history.index.parent.mkdir(parents=True)
        history.log.touch()
        for name, given in steps:
            getattr(history, name)(given)
        with_index = said(load_index(history.run, LOG))
        history.index.unlink(missing_ok=True)
        assert with_index == said(load_index(history.run, LOG))


async def test_a_power_cut_leaves_the_index_whole_or_none(tmp_path: Path) -> None:
    """It is never synced: what a cut leaves of it may be any beginning."""
    for number in range(12):
        root = tmp_path / str(number)
        root.mkdir()
        disk = CrashDisk(root)
        await collect(root / "run", disk=disk, scorers=("contains",))
        left = disk.survivors(tmp_path / f"left-{number}", random.Random(number)) / "run"
        disk.close()
        assert states(left, scorers=("contains",))[0].done == 6
        assert agrees(left)


# -- verdicts


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The runs of which all final attempts were looked at."""
    found: list[Path] = []

    def finals(reader: RunReader, *given: Any, **options: Any) -> Any:
        found.append(reader.path)
        return whole_finals(reader, *given, **options)

    whole_finals = RunReader.finals
    monkeypatch.setattr(RunReader, "finals", finals)
    return found


async def test_a_run_that_was_judged_is_not_looked_at_again(run: Path, looks: list[Path]) -> None:
    await collect(run)
    expected = states(run)
    looks.clear()
    for _ in range(3):
        assert states(run) == expected
    assert looks == []
    assert expected[0].complete


@pytest.mark.parametrize("changed", ["another grading", "a verdict less", "a verdict more", "a smaller plan"])
async def test_verdicts_are_looked_for_again_when_something_has_changed(
    run: Path, changed: str, looks: list[Path]
) -> None:
    await collect(run)
    states(run)
    looks.clear()
    scores = run / "scores.jsonl"
    lines = scores.read_bytes().splitlines(keepends=True)
    options: dict[str, Any] = {}
    to_grade = 0
    if changed == "another grading":
        options, to_grade = {"scorers": (judge, "exact"), "regrade": True}, 6
    elif changed == "a smaller plan":
        options = {"limit": 1}
    elif changed == "a verdict less":
        scores.write_bytes(b"".join(lines[:-1]))
        to_grade = 1
    else:
        failed = msgspec.json.decode(lines[0])
        error = msgspec.to_builtins(FAILED)
        with scores.open("ab") as file:
            file.write(msgspec.json.encode({**failed, "scores": [{}], "error": error}) + b"\n")
        to_grade = 1
    collection = open_run(run, **options)
    collection.close()
    assert collection.to_grade == to_grade
    assert looks


async def test_a_verdict_that_is_missing_is_missed_by_every_call(run: Path) -> None:
    await collect(run)
    lines = (run / "scores.jsonl").read_bytes().splitlines(keepends=True)
    (run / "scores.jsonl").write_bytes(b"".join(lines[:-1]))
    for _ in range(2):
        collection = open_run(run)
        collection.close()
        assert collection.to_grade == 1


async def test_bad_lines_of_the_scores_are_reported_by_every_call(run: Path, looks: list[Path]) -> None:
    await collect(run)
    with (run / "scores.jsonl").open("ab") as file:
        file.write(b"?\n")
    for _ in range(3):
        collection = open_run(run)
        collection.close()
        assert sum("scores.jsonl:7 " in message for message in collection.warnings) == 1
    assert len(looks) == 1


async def test_what_was_lost_of_the_log_is_run_again_although_all_was_judged(run: Path) -> None:
    await collect(run)
    states(run)
    log = run / LOG
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    summary, pending = states(run)
    assert (summary.done, len(pending)) == (5, 1)
