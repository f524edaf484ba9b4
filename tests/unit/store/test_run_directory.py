"""The run directory: what may be made into a run, its manifest, and moving an old run aside."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.support.fake_disks import FullDisk, QuickDisk, SickDisk
from tests.support.run_builders import attempts, collect, contents, make_rollout, open_run, write_run
from windrow.collecting.running import run_collection
from windrow.errors import StoreError, UsageError
from windrow.store.manifest import read_manifest
from windrow.store.reader import load
from windrow.store.run_directory import RunDirectory, move_aside
from windrow.util.disk import Disk


def test_a_run_and_its_missing_parents_are_made(tmp_path: Path) -> None:
    open_run(tmp_path / "a" / "b" / "run").close()
    assert {path.name for path in (tmp_path / "a" / "b" / "run").iterdir()} == {
        "lock",
        "lock.guard",
        "run.json",
        "tasks.jsonl",
        "rollouts.jsonl",
        "scores.jsonl",
    }


def test_a_directory_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError) as refused:
        open_run(tmp_path)
    assert "thesis.tex" in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_directory_with_logs_but_no_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").write_text("")
    with pytest.raises(UsageError, match=r"rollouts\.jsonl.*no run\.json"):
        open_run(tmp_path)


def test_a_file_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file; give a directory"):
        open_run(tmp_path / "file")


def test_a_run_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file is a file; give a directory"):
        open_run(tmp_path / "file" / "run")


@pytest.mark.parametrize("left", [(), ("lock",), ("lock", ".run.json.4711"), ("lock", "lock.worker-1")])
def test_what_a_crash_before_the_first_manifest_leaves_is_no_hindrance(
    tmp_path: Path, left: tuple[str, ...]
) -> None:
    for name in left:
        (tmp_path / name).write_bytes(b"{")
    open_run(tmp_path).close()
    assert read_manifest(tmp_path).source == "rows"


# -- the manifest


def test_the_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    collection = open_run(tmp_path / "run", temperature=0.25)
    assert collection.directory is not None
    written = collection.directory.manifest
    collection.close()
    assert read_manifest(tmp_path / "run") == written
    assert written is not None
    assert written.config["policy"]["sampling"] == {"temperature": 0.25}


@pytest.mark.parametrize("disk", [FullDisk(10), FullDisk(0), SickDisk(1)], ids=["short", "full", "sick"])
def test_a_manifest_that_cannot_be_written_leaves_the_old_one_whole(tmp_path: Path, disk: Disk) -> None:
    run = write_run(tmp_path / "run")
    before = (run / "run.json").read_bytes()
    directory = RunDirectory(run, disk=disk)
    assert directory.manifest is not None
    with pytest.raises(StoreError, match=r"cannot write .*run\.json"):
        directory.write_manifest(msgspec.structs.replace(directory.manifest, source="other"))
    directory.close()
    assert (run / "run.json").read_bytes() == before


def test_a_reader_sees_the_old_manifest_or_the_new_one_and_nothing_between(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    seen: list[str] = []

    class Watching(QuickDisk):
        """A reader looks at the run before and after every call."""

        def write(self, descriptor: int, data: memoryview) -> int:
            seen.append(read_manifest(run).source)
            return super().write(descriptor, data[:7])

        def sync(self, descriptor: int) -> None:
            seen.append(read_manifest(run).source)

    directory = RunDirectory(run, disk=Watching())
    assert directory.manifest is not None
    directory.write_manifest(msgspec.structs.replace(directory.manifest, source="other"))
    directory.close()
    assert set(seen[:-1]) == {"rows"}
    assert seen[-1] == "other"  # the sync of the directory, after the rename


def test_a_newer_schema_is_refused_even_where_its_fields_are_not_ours(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for manifest in (
        b'{"schema":2}',
        (run / "run.json").read_bytes().replace(b'"schema": 1', b'"schema": 99'),
    ):
        (run / "run.json").write_bytes(manifest)
        with pytest.raises(UsageError, match=r"newer windrow.*upgrade"):
            load(run)
        with pytest.raises(UsageError, match=r"newer windrow.*upgrade"):
            RunDirectory(run)


@pytest.mark.parametrize(
    "damage",
    [
        *(b"", b"{", b"[]", b"null", b'{"schema": 1}', b"\xff\xfe{}", b"\0" * 100),
        *(b'{"schema": 1, "windrow": "\x80"}', b'{"schema": 1, "x": ' + b"[" * 50_000),
    ],
)
def test_a_damaged_manifest_is_a_plain_error(tmp_path: Path, damage: bytes) -> None:
    run = write_run(tmp_path / "run")
    (run / "run.json").write_bytes(damage)
    with pytest.raises(StoreError, match=r"run\.json is damaged.*still readable"):
        load(run)
    with pytest.raises(StoreError, match=r"run\.json is damaged"):
        open_run(run)
    assert (run / "run.json").read_bytes() == damage


def test_a_field_that_a_later_windrow_added_is_ignored(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    manifest = (run / "run.json").read_bytes()
    (run / "run.json").write_bytes(manifest.replace(b'"schema": 1', b'"schema": 1, "colour": "green"'))
    assert read_manifest(run).source == "rows"


# -- a disk that fails under a run


async def test_a_full_disk_stops_the_run_with_what_was_committed_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    summary, _ = await collect(run, samples=1)
    before = contents(run)
    disk = FullDisk(10_000)
    with pytest.raises(StoreError, match=os.strerror(errno.ENOSPC)) as failure:
        await collect(run, samples=40, disk=disk)
    assert "jsonl" in str(failure.value)
    kept = contents(run)
    assert [rollout for rollout in kept if rollout["sample"] == 0] == before
    summary, committed = await collect(run, samples=40)
    assert summary.complete
    assert len(kept) + len(committed) == 120
    assert len(set(attempts(run))) == len(attempts(run)) == 120


async def test_a_failed_fsync_stops_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await collect(run, samples=1)
    collection = open_run(run, samples=3)
    collection.close()
    disk = SickDisk(sick_from=10**9)
    collection = open_run(run, samples=3, disk=disk)
    disk.sick_from = disk.syncs + 1
    committed: list[object] = []

    async def on_commit(rollout: object) -> None:
        committed.append(rollout)

    with pytest.raises(StoreError, match="fsync"):
        await run_collection(collection, on_commit=on_commit)
    collection.close()
    assert committed == []
    assert len(attempts(run)) == 3


# -- moving aside


async def test_overwrite_moves_the_old_run_aside_and_deletes_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await collect(run)
    olds = []
    for number in range(1, 4):
        (run / "torn").mkdir(exist_ok=True)
        (run / "torn" / "rollouts.jsonl.1").write_text(f"note {number}")
        before = _tree(run)
        collection = open_run(run, temperature=number / 10, overwrite=True)
        olds.append(tmp_path / f"run.old-{number}")
        assert any(str(olds[-1]) in warning for warning in collection.warnings)
        collection.close()
        assert {name: data for name, data in _tree(olds[-1]).items() if name != "lock"} == {
            name: data for name, data in before.items() if name != "lock"
        }
        assert attempts(run) == []
    assert all(old.is_dir() for old in olds)


def test_overwrite_of_nothing_is_a_plain_start(tmp_path: Path) -> None:
    collection = open_run(tmp_path / "run", overwrite=True)
    assert collection.warnings == []
    collection.close()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_overwrite_does_not_take_a_directory_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "photo.jpg").write_text("")
    with pytest.raises(UsageError, match=r"photo\.jpg"):
        open_run(tmp_path / "run", overwrite=True)
    assert (tmp_path / "run" / "photo.jpg").exists()


def test_a_damaged_run_can_be_moved_aside(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "run.json").write_bytes(b"{")
    open_run(run, overwrite=True).close()
    assert (tmp_path / "run.old-1" / "run.json").read_bytes() == b"{"


def test_a_move_that_fails_is_a_plain_error(tmp_path: Path) -> None:
    class Stuck(QuickDisk):
        def rename(self, old: Path, new: Path) -> None:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    run = write_run(tmp_path / "run")
    with pytest.raises(StoreError, match=r"cannot move .*busy"):
        move_aside(run, disk=Stuck())
    RunDirectory(run).close()


def _tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_drafts_of_killed_writers_are_removed_and_those_of_living_ones_and_of_other_hosts_are_not(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", [make_rollout()])
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    living = f"{os.getppid()}-{socket.gethostname()}"
    dead = f"{ended.pid}-{socket.gethostname()}"
    for folder in ("index", "blobs", "torn"):
        (run / folder).mkdir(exist_ok=True)
    left = [f".run.json.{dead}", f"index/.tasks.index.{dead}", f"blobs/.0123.{dead}.7", f"torn/.x.1.{dead}"]
    kept = [
        f".run.json.{living}",
        f".run.json.{dead}-elsewhere",
        f"blobs/.0123.{living}.7",
        ".notes",
        "notes",
    ]
    for name in (*left, *kept):
        (run / name).write_bytes(b"half")
    RunDirectory(run, writer="w0", disk=QuickDisk()).close()  # not alone: it removes nothing
    RunDirectory(run, lock=False, disk=QuickDisk()).close()
    assert all((run / name).exists() for name in (*left, *kept))
    RunDirectory(run, disk=QuickDisk()).close()
    assert [name for name in left if (run / name).exists()] == []
    assert [name for name in kept if not (run / name).exists()] == []


def test_what_a_killed_merge_had_begun_is_removed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [make_rollout()])
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (run / ".merge.draft" / "run").mkdir(parents=True)
    (run / "blobs" / "ab").mkdir(parents=True)
    draft = run / "blobs" / "ab" / f".cdef.{ended.pid}-{socket.gethostname()}"
    draft.write_bytes(b"half")
    RunDirectory(run, disk=QuickDisk()).close()
    assert not (run / ".merge.draft").exists()
    assert not draft.exists()
