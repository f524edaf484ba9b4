"""`windrow merge`: one run of several, whatever their order; what cannot stand is kept and told; nothing is ever lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.fake_disks import FullDisk, QuickDisk
from tests.support.run_builders import (
    FAILED,
    GRADING,
    collect,
    echo,
    make_grading,
    make_rollout,
    rows,
    write_lines,
    write_run,
)
from windrow import load
from windrow.cli.main import main
from windrow.collecting.merge import MergeProgress, MergeResult, merge
from windrow.errors import InfraError, StoreError, UsageError
from windrow.identity import rollout_id
from windrow.policies.base import Request
from windrow.records import Message, Rollout, Timing, decode_rollout
from windrow.stats.summary import summarise
from windrow.store.blobs import path_of, read_blob
from windrow.store.lock import Lock
from windrow.store.manifest import Fingerprint, Rescore, read_manifest
from windrow.store.rank_progress import Ranks, Redo
from windrow.store.reader import RunReader
from windrow.store.run_directory import RunDirectory
from windrow.util.blobs import name_of_blob

pytestmark = pytest.mark.slow

Tree = dict[str, bytes]


def merged(
    out: Path, *runs: Path, said: list[str] | None = None, disk: QuickDisk | None = None, **options: Any
) -> MergeResult:
    warn = said.append if said is not None else None
    return merge(runs, out, on_warning=warn, disk=disk or QuickDisk(), **options)


def tree(run: Path) -> Tree:
    """The files of a run, but for its locks and the cache, which is of this disk."""
    files = (
        file
        for file in run.rglob("*")
        if file.is_file() and not file.name.startswith(("lock", "metrics.cache"))
    )
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


def edited(run: Path, **changes: Any) -> Path:
    """The run with another manifest."""
    directory = RunDirectory(run, disk=QuickDisk())
    assert directory.manifest is not None
    directory.write_manifest(msgspec.structs.replace(directory.manifest, **changes))
    directory.close()
    return run


def rewards(run: Path) -> dict[tuple[str, int], float | None]:
    return {rollout.key: rollout.reward for rollout in load(run)}


def aside(run: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (run / "conflicts.jsonl").read_bytes().splitlines()]


def split(run: Path, count: int) -> list[Path]:
    """Parts of a run, as ranks would have left them: all tasks in each, a group in one of them."""
    parts = []
    for number in range(count):
        part = run.with_name(f"{run.name}.{number}")
        shutil.copytree(run, part)
        for log in ("rollouts.jsonl", "scores.jsonl"):
            lines = (run / log).read_bytes().splitlines(keepends=True)
            own = [line for line in lines if _group(run, line) % count == number]
            (part / log).write_bytes(b"".join(own))
        parts.append(part)
    return parts


def _group(run: Path, line: bytes) -> int:
    found = msgspec.json.decode(line)
    if "unit" not in found:
        return int(found["group"], 16)
    return next(int(rollout.group, 16) for rollout in load(run) if rollout.id == found["unit"])


def failing(numbers: set[int]) -> Callable[[Request], str]:
    """Answers all but these tasks."""

    def answer(request: Request) -> str:
        said = echo(request)
        if int(said) in numbers:
            raise InfraError("busy")
        return said

    return answer


# -- one run of several


async def test_parts_make_the_run_that_one_process_collects(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    await collect(whole, tasks=rows(7))

    found = merged(out, *split(whole, 3))

    assert list(load(out, attempts="all")) == list(load(whole, attempts="all"))
    assert (found.attempts, found.tasks, found.done, found.planned) == (14, 7, 14, 14)
    assert not found.conflicts
    assert found.complete
    assert summary(out) == summary(whole)
    assert read_manifest(out).counts == read_manifest(whole).counts


def summary(run: Path) -> dict[str, Any]:
    """What `windrow stats` says."""
    return {**msgspec.to_builtins(summarise(run)), "run": None}


async def test_a_merged_run_is_collected_further_and_merged_again(tmp_path: Path) -> None:
    first, second, out = tmp_path / "first", tmp_path / "second", tmp_path / "out"
    await collect(first, tasks=rows(2), answer=failing({1}))
    await collect(second, tasks=rows(4), answer=failing({1, 3}))
    found = merged(out, first, second)
    assert (found.done, found.planned) == (4, 8)

    summary, committed = await collect(out, tasks=rows(4))

    assert summary.done == 8
    assert {(rollout.attempt, rollout.status) for rollout in committed} == {(2, "completed")}
    again = merged(out, first, second)
    assert (again.done, again.planned) == (8, 8)


def test_done_stands_before_failed_and_the_other_is_kept(tmp_path: Path) -> None:
    done = make_rollout("a", timing=Timing(started_at=2.0))
    failed = make_rollout("a", status="failed", stop="error", error=FAILED)
    out, said = tmp_path / "out", []
    found = merged(out, write_run(tmp_path / "x", [failed]), write_run(tmp_path / "y", [done]), said=said)

    assert [rollout.status for rollout in load(out, attempts="all")] == ["completed"]
    assert [line["lines"][0]["status"] for line in aside(out)] == ["failed"]
    assert found.conflicts == {"rollouts": 1}
    assert str(tmp_path / "x" / "rollouts.jsonl") in said[0]
    assert done.id in said[0]
    before = tree(out)
    assert merged(out, tmp_path / "y").conflicts == {"rollouts": 1}
    assert tree(out) == before


def test_a_verdict_on_what_does_not_stand_never_counts_for_what_does(tmp_path: Path) -> None:
    done = make_rollout("a")
    cut = make_rollout("a", status="cancelled", stop="cancelled", reason="surplus")
    x = write_run(tmp_path / "x", [cut], [make_grading(cut, 1.0)])
    y = write_run(tmp_path / "y", [done])
    out = tmp_path / "out"
    found = merged(out, x, y)

    assert rewards(out) == {done.key: None}
    assert found.conflicts == {"rollouts": 1, "scores": 1}
    assert [line["ungrounded"] for line in aside(out)] == [False, True]


def test_a_verdict_on_an_attempt_that_its_run_has_lost_does_not_go_to_anothers(tmp_path: Path) -> None:
    lost = make_rollout("a")
    x = write_run(tmp_path / "x", [], [make_grading(lost, 1.0)])
    out = tmp_path / "out"
    merged(out, x)
    assert (out / "scores.jsonl").read_bytes() == (
        x / "scores.jsonl"
    ).read_bytes()  # its number is not given again

    merged(out, write_run(tmp_path / "y", [lost]))

    assert rewards(out) == {lost.key: None}
    assert [line["log"] for line in aside(out)] == ["scores"]


def test_the_seats_of_an_episode_stand_together_and_one_attempt_wins_whole(tmp_path: Path) -> None:
    def seats(name: str, started_at: float, count: int = 2) -> list[Rollout]:
        first = make_rollout(name)
        return [
            make_rollout(
                name,
                id=rollout_id(first.group, 0, seat),
                seat=seat,
                seats=2,
                episode="e",
                timing=Timing(started_at=started_at),
            )
            for seat in range(count)
        ]

    x = write_run(tmp_path / "x", [*seats("b", 1.0, count=1), *seats("a", 1.0)])
    y = write_run(tmp_path / "y", [*seats("b", 2.0), *seats("a", 2.0)])
    out = tmp_path / "out"
    found = merged(out, x, y)

    lines = [(line.seat, line.timing.started_at) for line in load(out, attempts="all")]
    assert len(lines) == 4
    assert [seat for seat, _ in lines] == [0, 1, 0, 1]
    assert all(first[1] == second[1] for first, second in zip(lines[::2], lines[1::2], strict=True))
    assert sorted(len(line["lines"]) for line in aside(out)) == [1, 2]
    assert found.attempts == 2


def test_what_is_left_of_an_episode_is_set_aside(tmp_path: Path) -> None:
    left = make_rollout("a", seat=0, seats=2, episode="e")
    x = write_run(tmp_path / "x", [left, make_rollout("b")])
    out = tmp_path / "out"
    merged(out, x)
    assert [rollout.task.key for rollout in load(out, attempts="all")] == ["b"]
    assert [line["lines"][0]["task"]["key"] for line in aside(out)] == ["a"]


def test_merging_in_another_order_gives_the_same_bytes(tmp_path: Path) -> None:
    """Also in steps, and again; test_merge_order.py tries this on many lines."""
    runs = [
        write_run(tmp_path / name, [rollout], [make_grading(rollout, 1.0)])
        for name in "abc"
        for rollout in [make_rollout(name, index=ord("c") - ord(name))]
    ]
    outs = [tmp_path / str(number) / "out" for number in range(3)]
    merged(outs[0], *runs)
    merged(outs[1], *reversed(runs))
    for run in (runs[1], runs[2], runs[0], runs[2]):
        merged(outs[2], run)
    assert tree(outs[0]) == tree(outs[1]) == tree(outs[2])
    assert [rollout.task.key for rollout in map(decode_rollout, lines_of(outs[0]))] == ["c", "b", "a"]


def lines_of(run: Path) -> list[bytes]:
    return (run / "rollouts.jsonl").read_bytes().splitlines()


# -- generations


def test_the_last_verdict_of_a_run_counts_after_merging_too(tmp_path: Path) -> None:
    rollout = make_rollout("a")
    verdicts = [make_grading(rollout, value) for value in (1.0, None, 0.5, 0.25)]
    x = write_run(tmp_path / "x", [rollout], verdicts)
    out = tmp_path / "out"
    merged(out, x)
    assert rewards(out) == rewards(x) == {rollout.key: 0.25}

    merged(out, write_run(tmp_path / "y", [rollout], verdicts[:1]))  # a copy that was made before

    assert rewards(out) == {rollout.key: 0.25}
    assert not (out / "conflicts.jsonl").exists()


def test_generations_of_the_parts_stand_side_by_side_and_the_latest_is_active(tmp_path: Path) -> None:
    second = Fingerprint("grading-b", {"scorers": [{"name": "judge", "weight": 2.0}], "env": None}, 2)
    one, two = make_rollout("a"), make_rollout("b")
    x = write_run(tmp_path / "x", [one], [make_grading(one, 1.0)])
    newer = [make_grading(two, 1.0), make_grading(two, 0.5, fingerprint=second.hash, generation=2)]
    y = write_run(tmp_path / "y", [two], newer)
    edited(y, grading=second, generations=[GRADING, second])
    out, said = tmp_path / "out", []
    merged(out, x, y, said=said)

    manifest = read_manifest(out)
    assert manifest.generations == [GRADING, second]
    assert manifest.grading == second
    assert rewards(out) == {one.key: None, two.key: 0.5}
    assert "generation 2" in said[0]
    edited(out, grading=GRADING)
    assert rewards(out) == {one.key: 1.0, two.key: 1.0}


def test_one_number_for_two_ways_of_grading_is_refused_with_the_difference(tmp_path: Path) -> None:
    other = Fingerprint("grading-b", {"scorers": [{"name": "judge", "weight": 2.0}], "env": None})
    x = write_run(tmp_path / "x", [make_rollout("a")])
    y = write_run(tmp_path / "y", [make_rollout("b")], grading=other)
    with pytest.raises(UsageError, match=r"generation 1 .* not the same(.|\n)*weight: 1.0 → 2.0"):
        merged(tmp_path / "out", x, y)
    assert not (tmp_path / "out").exists()


# -- what is refused


def test_runs_of_different_behaviour_are_refused_with_the_difference(tmp_path: Path) -> None:
    x = edited(write_run(tmp_path / "x"), behaviour=Fingerprint("one", {"sampling": {"temperature": 0.5}}))
    y = edited(write_run(tmp_path / "y"), behaviour=Fingerprint("two", {"sampling": {"temperature": 1}}))
    with pytest.raises(UsageError, match=r"not parts of one run(.|\n)*sampling.temperature: 0.5 → 1"):
        merged(tmp_path / "out", x, y)
    assert not (tmp_path / "out").exists()

    merged(y, y)
    before = tree(y)
    with pytest.raises(UsageError, match=r"not parts of one run"):
        merged(y, x)
    assert tree(y) == before


def test_runs_of_different_sources_are_refused(tmp_path: Path) -> None:
    x, y = write_run(tmp_path / "x"), edited(write_run(tmp_path / "y"), split="test")
    with pytest.raises(UsageError, match=r"split None, the other of source 'rows', split 'test'"):
        merged(tmp_path / "out", x, y)


def test_what_is_no_run_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    x = write_run(tmp_path / "x")
    for runs, out, why in (
        (["none"], "out", "is not a run directory"),
        (["empty"], "out", "has no run.json"),
        (["none"], "none", "is not a run"),
        (["empty"], "empty", "is not a run"),
        (["x"], "other", "holds other files"),
    ):
        with pytest.raises(UsageError, match=why):
            merged(tmp_path / out, *(tmp_path / run for run in runs))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "other", "x"]
    assert list((tmp_path / "empty").iterdir()) == []
    assert x.is_dir()


# -- while it is written


def test_a_run_that_is_being_written_is_merged_up_to_its_last_whole_line(tmp_path: Path) -> None:
    one, two = make_rollout("a"), make_rollout("b")
    x = write_run(tmp_path / "x", [one, two])
    size = (x / "rollouts.jsonl").stat().st_size
    os.truncate(x / "rollouts.jsonl", size - 10)
    before, said = tree(x), []
    lock = Lock(x / "lock")
    try:
        found = merged(tmp_path / "out", x, said=said)
    finally:
        lock.release()

    assert [rollout.id for rollout in load(tmp_path / "out")] == [one.id]
    assert found.written == [str(x)]
    assert not found.complete
    assert f"{x} is being written by process {os.getpid()}" in said[0]
    assert tree(x) == before


def test_only_one_may_write_the_merged_run(tmp_path: Path) -> None:
    x = write_run(tmp_path / "x", [make_rollout("a")])
    merged(tmp_path / "out", x)
    lock = Lock(tmp_path / "out" / "lock")
    try:
        with pytest.raises(UsageError, match="is being written by"):
            merged(tmp_path / "out", x)
    finally:
        lock.release()


def test_what_cannot_be_read_is_told_and_never_deleted(tmp_path: Path) -> None:
    x = write_run(tmp_path / "x", [make_rollout("a")])
    out = write_run(tmp_path / "out", [make_rollout("b")])
    for run in (x, out):
        with (run / "rollouts.jsonl").open("ab") as file:
            file.write(b'{"v":1,"id":3}\n\xff\n{"torn')
    before, said = tree(x), []
    found = merged(out, x, said=said)

    assert found.bad_lines == 4
    assert len([text for text in said if "cannot be read" in text]) == 4
    assert (out / "torn" / "rollouts.jsonl.1").read_bytes() == b'{"v":1,"id":3}\n\xff\n{"torn'
    assert tree(x) == before
    assert len(list(load(out))) == 2


def test_segments_become_one_log(tmp_path: Path) -> None:
    out = write_run(tmp_path / "out", [make_rollout("a")])
    write_lines(out / "rollouts.w0.jsonl", [make_rollout("b"), make_rollout("c")])
    (out / "notes.txt").write_text("mine")
    before = list(load(out))
    merged(out, out)
    assert sorted(name for name in tree(out) if name.endswith("l")) == ["rollouts.jsonl", "scores.jsonl"][:1]
    assert (out / "notes.txt").read_text() == "mine"
    assert sorted(map(str, load(out))) == sorted(map(str, before))


@pytest.mark.parametrize("room", [0, 100, 2000, 4000])
def test_a_full_disk_leaves_the_run_as_it_was(tmp_path: Path, room: int) -> None:
    x = write_run(tmp_path / "x", [make_rollout("a"), make_rollout("b")])
    out = write_run(tmp_path / "out", [make_rollout("c")])
    before = tree(out)
    with pytest.raises(StoreError, match=r"cannot merge into .*: No space left on device"):
        merged(out, x, disk=FullDisk(room))
    assert tree(out) == before
    merged(out, x)
    assert len(list(load(out))) == 3


def test_blobs_come_along_whole_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in "xy"]
    out, said = tmp_path / "out", []
    for run, data in ((runs[0], b"one"), (runs[1], b"one"), (runs[1], b"two"), (runs[1], b"three")):
        path = path_of(run / "blobs", name_of_blob(data))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if data != b"three" else b"half")
    merged(out, runs[0])
    path_of(out / "blobs", name_of_blob(b"one")).write_bytes(b"")  # as a power cut may leave it
    merged(out, *runs, said=said)

    for data in (b"one", b"two"):
        assert read_blob(out / "blobs", name_of_blob(data)) == data
    assert not path_of(out / "blobs", name_of_blob(b"three")).exists()
    assert "is damaged" in said[0]


def test_a_run_that_is_replaced_while_it_is_merged_is_noticed(tmp_path: Path) -> None:
    x = write_run(tmp_path / "x", [make_rollout("a"), make_rollout("b")])
    out = write_run(tmp_path / "out", [make_rollout("c")])
    before = tree(out)

    class Meddling(QuickDisk):
        """Somebody rewrites the log before the first line is copied."""

        def replace(self, path: Path, data: bytes | Iterable[bytes]) -> None:
            log = x / "rollouts.jsonl"
            log.write_bytes(log.read_bytes().replace(b'"completed"', b'"truncated"'))
            super().replace(path, data)

    with pytest.raises(StoreError, match=r"x/rollouts.jsonl was changed while it was merged; merge again"):
        merged(out, x, disk=Meddling())
    assert tree(out) == before


def test_a_reader_of_a_run_that_is_replaced_is_told_so(tmp_path: Path) -> None:
    out = write_run(tmp_path / "out", [make_rollout("a")])
    write_lines(out / "rollouts.w0.jsonl", [make_rollout("b")])
    lines = RunReader(out).heads()
    next(lines)
    merged(out, out)
    with pytest.raises(StoreError, match=r"rollouts.w0.jsonl was replaced while it was read"):
        list(lines)


def test_progress_is_told_of_what_is_read_and_written(tmp_path: Path) -> None:
    long = Message(role="assistant", content="word " * 300_000, origin="policy")
    x = write_run(tmp_path / "x", [make_rollout("a", messages=(long,)), make_rollout("b", messages=(long,))])
    seen: list[tuple[str, int, int]] = []

    def note(progress: MergeProgress) -> None:
        seen.append((progress.phase, progress.read_bytes, progress.written_bytes))
        assert max(progress.read_bytes, progress.written_bytes) <= progress.total_bytes

    merged(tmp_path / "out", x, on_progress=note)
    assert [phase for phase, _, _ in seen] == ["reading", "reading", "writing", "writing", "counting"]
    assert [read for _, read, _ in seen[:2]] == sorted({read for _, read, _ in seen[:2]})


# -- the manifest


def test_the_manifest_is_of_the_whole(tmp_path: Path) -> None:
    part = {"out": "runs/x.0", "rank": 0, "samples": 2, "concurrency": 4}
    x = edited(write_run(tmp_path / "x"), config=part, created_at=20.0, code={"scorer judge": "a"})
    more = {**part, "out": "runs/x.1", "rank": 1, "samples": 3}
    y = edited(write_run(tmp_path / "y"), config=more, created_at=10.0, code={"scorer judge": "b"})
    mark = Rescore(GRADING.hash, 1, None, True, {}, {"scores.jsonl": 3})
    y = edited(y, rescore=mark, redo=Redo("status=failed", {"rollouts.jsonl": 7}))
    said: list[str] = []
    merged(tmp_path / "out", x, y, said=said)

    manifest = read_manifest(tmp_path / "out")
    assert manifest.config == {"samples": 3, "concurrency": 4}
    assert manifest.created_at == 10.0
    assert (manifest.rescore, manifest.redo) == (None, None)  # they count bytes of files that are gone
    assert [text.partition(":")[0] for text in said[1:]] == [str(y), str(y)]
    assert "the source of scorer judge was not the same in all runs" in said[0]


def test_runs_of_an_older_version_are_merged(tmp_path: Path) -> None:
    rollout = make_rollout("a")
    x = write_run(tmp_path / "x", [rollout], [make_grading(rollout, 1.0)])
    old = msgspec.json.decode((x / "run.json").read_bytes())
    for key in ("generations", "rescore", "redo", "agents", "ranks", "counts"):
        del old[key]
    (x / "run.json").write_bytes(msgspec.json.encode(old))
    merged(tmp_path / "out", x, write_run(tmp_path / "y", [make_rollout("b")]))
    assert read_manifest(tmp_path / "out").generations == [GRADING]
    assert rewards(tmp_path / "out")[rollout.key] == 1.0


# -- ranks


def test_ranks_that_are_missing_are_named_also_in_steps(tmp_path: Path) -> None:
    parts = [
        edited(
            write_run(tmp_path / f"{rank}", [make_rollout(str(rank))]), ranks=[Ranks([2.0, 1.0, 1.0], [rank])]
        )
        for rank in range(3)
    ]
    out = tmp_path / "out"
    assert merged(out, parts[2]).missing == [(0, 3), (1, 3)]
    assert merged(out, parts[0]).missing == [(1, 3)]
    assert merged(tmp_path / "alone", parts[0], write_run(tmp_path / "whole")).missing == []
    found = merged(out, parts[1])
    assert found.missing == []
    assert found.complete
    assert read_manifest(out).ranks == [Ranks([2.0, 1.0, 1.0], [0, 1, 2])]


# -- the command


def test_the_command_says_what_is_missing_and_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = edited(write_run(tmp_path / "x", [make_rollout("a")]), ranks=[Ranks([1.0, 1.0], [0])])
    y = edited(write_run(tmp_path / "y", [make_rollout("b")]), ranks=[Ranks([1.0, 1.0], [1])])
    out = str(tmp_path / "out")
    assert main(["merge", str(x), "-o", out]) == 1
    assert "missing: rank 1 of 2" in capsys.readouterr().out
    assert main(["merge", str(x), str(y), "--out", out]) == 0
    said = capsys.readouterr()
    assert f"{out}: 2 attempts at 0 tasks, 0 verdicts, from 3 runs" in said.out
    assert said.err == ""
    assert main(["merge", str(tmp_path / "none"), "-o", out]) == 2
