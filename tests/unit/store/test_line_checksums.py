"""Every line ends with the CRC32 of what is before it: a bit that flips is found by `windrow verify`, and old lines have none."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import pytest

import windrow
from tests.support.fake_disks import QuickDisk
from tests.support.run_builders import collect, make_rollout, rows, write_run
from windrow.cli.main import main
from windrow.collecting.merge import merge
from windrow.records import encode
from windrow.store.judgements import Judgements, JudgeReply
from windrow.store.line_checksums import checksum_problem, with_checksum, without_checksum
from windrow.store.run_directory import RunDirectory
from windrow.store.sinks import RolloutSink
from windrow.util.redaction import Redactor

LOGS = ("rollouts.jsonl", "scores.jsonl", "tasks.jsonl", "judgements.jsonl")


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    """A run with lines in every log."""
    await collect(tmp_path / "run", tasks=rows(2), samples=1)
    directory = RunDirectory(tmp_path / "run", disk=QuickDisk())
    judgements = Judgements(directory.open_judgements())
    for key in "ab":
        await judgements.keep(JudgeReply(key=key, reply="[[1]]"))
    directory.close()
    return tmp_path / "run"


def lines_of(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines()


def flip(file: Path, number: int, old: bytes, new: bytes) -> None:
    """Change one character of a line by one bit."""
    assert sum((a ^ b).bit_count() for a, b in zip(old, new, strict=True)) == 1
    lines = lines_of(file)
    assert old in lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(old, new, 1)
    file.write_bytes(b"".join(line + b"\n" for line in lines))


def test_the_last_field_of_every_line_is_the_crc32_of_the_bytes_before_it(run: Path) -> None:
    for log in LOGS:
        assert len(lines_of(run / log)) == 2
        for line in lines_of(run / log):
            content, _, field = line.rpartition(b",")
            assert list(json.loads(line))[-1] == "crc32"
            assert field == b'"crc32":"%08x"}' % zlib.crc32(content)


@pytest.mark.parametrize(
    ("log", "old", "new"),
    [
        ("rollouts.jsonl", b'"sample":0', b'"sample":1'),
        ("scores.jsonl", b'"value":1.0', b'"value":0.0'),
        ("tasks.jsonl", b'"index":1', b'"index":3'),
        ("judgements.jsonl", b"[[1]]", b"[[3]]"),
    ],
)
def test_verify_names_the_line_in_which_a_bit_has_flipped(
    run: Path, log: str, old: bytes, new: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(run)]) == 0
    flip(run / log, 2, old, new)
    json.loads(lines_of(run / log)[1])
    assert main(["verify", str(run)]) == 1
    out = capsys.readouterr().out
    assert "lines that have changed since they were written (checksum)" in out
    assert f"{log}:2: its bytes have the CRC32" in out


async def test_verify_names_a_line_in_which_a_bit_has_flipped_that_a_merge_has_set_aside(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await collect(run.with_name("again"), tasks=rows(2), samples=1)
    merge([run, run.with_name("again")], run.with_name("all"), disk=QuickDisk())
    assert main(["verify", str(run.with_name("all"))]) == 0
    flip(run.with_name("all") / "conflicts.jsonl", 1, b'"sample":0', b'"sample":1')
    assert main(["verify", str(run.with_name("all"))]) == 1
    assert "conflicts.jsonl:1: its bytes have the CRC32" in capsys.readouterr().out


def test_no_bit_of_a_line_flips_unnoticed() -> None:
    line = with_checksum(encode(make_rollout()))
    assert checksum_problem(line) is None
    for position in range(len(line)):
        for bit in range(8):
            flipped = bytearray(line)
            flipped[position] ^= 1 << bit
            if checksum_problem(bytes(flipped)) is None:  # then it cannot be read
                with pytest.raises(ValueError, match=r".*"):
                    json.loads(bytes(flipped))


def test_lines_of_older_versions_have_none_and_are_sound(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [make_rollout()])
    assert main(["verify", str(run)]) == 0
    for line in (b"{}", b"", encode(make_rollout()), b'{"data":{"a":1,"crc32":"00000000"}}'):
        assert checksum_problem(line) is None
        assert without_checksum(line) is line


async def test_a_line_that_was_redacted_has_the_checksum_of_what_is_written(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    redactor = Redactor()
    redactor.add("a-long-secret")
    directory = RunDirectory(run, disk=QuickDisk())
    sink = RolloutSink(directory.open_rollouts(), redactor, directory.blobs)
    await sink.commit([make_rollout("a-long-secret"), make_rollout("plain")])
    directory.close()
    assert b"a-long-secret" not in (run / "rollouts.jsonl").read_bytes()
    assert main(["verify", str(run)]) == 0
    assert all(b'"crc32":"' in line for line in lines_of(run / "rollouts.jsonl"))


def test_what_changed_is_still_read(run: Path) -> None:
    flip(run / "rollouts.jsonl", 1, b'"echo"', b'"dcho"')
    assert len(list(windrow.load(run))) == 2


def test_a_line_with_a_checksum_and_the_same_line_of_an_older_version_are_one(run: Path) -> None:
    """Ranks of which some are of an older version have the same tasks."""
    old = run.with_name("old")
    shutil.copytree(run, old)
    for log in LOGS:
        (old / log).write_bytes(b"".join(without_checksum(line) + b"\n" for line in lines_of(old / log)))
    for number, parts in enumerate(((run, old), (old, run))):
        result = merge(parts, run.with_name(str(number)) / "out", disk=QuickDisk())
        assert result.conflicts == {}
        for log in LOGS:
            assert sorted(lines_of(run.with_name(str(number)) / "out" / log)) == sorted(lines_of(run / log))
