"""The same command continues: what is done is not run again, attempts are never numbered twice, a redo ends once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.fake_disks import CrashDisk
from tests.support.model_server import write_jsonl
from tests.support.run_builders import attempts, collect, contents, echo, folder_in_memory, open_run, rows
from windrow.cli.main import main
from windrow.engine.control import Control
from windrow.errors import InfraError, PolicyError, StoreError, UsageError
from windrow.policies.base import Request
from windrow.store.manifest import read_manifest
from windrow.store.reader import load


@pytest.fixture
def run() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder / "run"


def busy(request: Request) -> str:
    raise InfraError("busy")


def refuse(request: Request) -> str:
    raise PolicyError("no")


def numbers(run: Path) -> dict[tuple[int, int], list[tuple[int, str]]]:
    """The attempts of each slot, in order, and how they ended."""
    found: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for rollout in load(run, attempts="all"):
        found.setdefault((rollout.task.index, rollout.sample), []).append((rollout.attempt, rollout.status))
    return found


async def collect_some(run: Path, count: int, **options: Any) -> list[tuple[str, int]]:
    """Let the policy be asked `count` times, then stop: what it was asked."""
    control = Control()
    asked: list[tuple[str, int]] = []

    def answer(request: Request) -> str:
        asked.append((request.id, request.attempt))
        if len(asked) == count:
            control.stop()
        return echo(request)

    await collect(run, control=control, answer=answer, **{**options, "concurrency": 1})
    return asked


# -- what is done stays done


async def test_the_same_command_again_adds_nothing(run: Path) -> None:
    await collect(run)
    before = (run / "rollouts.jsonl").read_bytes(), (run / "scores.jsonl").read_bytes()
    summary, committed = await collect(run)
    assert (summary.complete, summary.attempts, committed) == (True, 0, [])
    assert ((run / "rollouts.jsonl").read_bytes(), (run / "scores.jsonl").read_bytes()) == before


async def test_a_stopped_run_goes_on_where_it_stopped(run: Path) -> None:
    first = await collect_some(run, 2)
    second = await collect_some(run, 99)
    assert (len(first), len(second)) == (2, 4)
    assert sorted(first + second) == sorted(attempts(run))


async def test_more_samples_and_tasks_add_only_what_is_new(run: Path) -> None:
    await collect(run, tasks=rows(4), limit=2, samples=2)
    before = (run / "rollouts.jsonl").read_bytes()
    summary, committed = await collect(run, tasks=rows(4), samples=3)
    assert (summary.planned, len(committed)) == (12, 8)
    assert (run / "rollouts.jsonl").read_bytes().startswith(before)
    assert set(numbers(run)) == {(task, sample) for task in range(4) for sample in range(3)}


async def test_fewer_samples_count_only_what_is_asked_for(run: Path) -> None:
    await collect(run, samples=3)
    summary, _ = await collect(run, samples=1, limit=2)
    assert (summary.planned, summary.done, summary.attempts) == (2, 2, 0)
    assert len(attempts(run)) == 9


# -- what failed


async def test_what_failed_for_now_is_tried_again_with_the_next_number(run: Path) -> None:
    for _ in range(2):
        summary, _ = await collect(run, answer=busy, samples=1)
        assert (summary.done, summary.pending, summary.failed) == (0, 3, 0)
    summary, _ = await collect(run, samples=1)
    assert summary.complete
    assert set(map(tuple, numbers(run).values())) == {((1, "failed"), (2, "failed"), (3, "completed"))}


async def test_retries_of_one_call_are_numbered_on(run: Path) -> None:
    await collect(run, answer=busy, samples=1, retries=2)
    await collect(run, answer=busy, samples=1, retries=1)
    assert set(map(tuple, numbers(run).values())) == {tuple((number, "failed") for number in range(1, 6))}


async def test_attempts_are_numbered_on_from_the_highest_of_all_segments(run: Path) -> None:
    await collect(run, answer=busy, samples=1)
    (run / "rollouts.jsonl").rename(run / "rollouts.worker.jsonl")  # read after rollouts.jsonl, and older
    await collect(run, answer=refuse, samples=1)
    summary, _ = await collect(run, samples=1)
    assert (summary.failed, summary.attempts) == (3, 0), "the highest attempt says whether to try again"
    await collect(run, samples=1, redo="status=failed")
    assert set(map(tuple, numbers(run).values())) == {((1, "failed"), (2, "failed"), (3, "completed"))}


async def test_what_failed_for_good_is_not_tried_again_unless_redone(run: Path) -> None:
    await collect(run, answer=refuse, samples=1)
    summary, _ = await collect(run, samples=1)
    assert (summary.failed, summary.pending, summary.attempts, summary.complete) == (3, 0, 0, False)
    summary, _ = await collect(run, samples=1, redo="status=failed")
    assert (summary.complete, summary.attempts) == (True, 3)
    assert set(map(tuple, numbers(run).values())) == {((1, "failed"), (2, "completed"))}


async def test_what_was_cancelled_is_run_again(run: Path) -> None:
    control = Control()

    async def cancel(request: Request) -> str:
        control.cancel()
        return await never()

    await collect(run, answer=cancel, samples=1, concurrency=1, control=control)
    assert numbers(run) == {(0, 0): [(1, "cancelled")]}
    summary, _ = await collect(run, samples=1)
    assert summary.complete
    assert numbers(run)[0, 0] == [(1, "cancelled"), (2, "completed")]


async def never() -> str:
    await asyncio.sleep(3600)
    raise AssertionError


# -- redo


async def test_redo_runs_what_it_selects_once_more(run: Path) -> None:
    await collect(run)
    summary, committed = await collect(run, redo="task.index=1,sample=0")
    assert (summary.complete, [rollout.attempt for rollout in committed]) == (True, [2])
    assert Counter(len(slots) for slots in numbers(run).values()) == {1: 5, 2: 1}
    assert read_manifest(run).redo is None


async def test_redo_of_nothing_runs_nothing(run: Path) -> None:
    await collect(run)
    summary, _ = await collect(run, redo="status=failed")
    assert (summary.complete, summary.attempts) == (True, 0)


async def test_a_redo_that_failed_leaves_the_earlier_attempt_final(run: Path) -> None:
    await collect(run, samples=1)
    await collect(run, samples=1, answer=busy, redo="sample=0")
    assert [(rollout.attempt, rollout.status) for rollout in load(run)] == [(1, "completed")] * 3
    summary, _ = await collect(run, samples=1)
    assert (summary.complete, summary.attempts) == (True, 0)


async def test_a_redo_that_was_stopped_goes_on_and_repeats_nothing(run: Path) -> None:
    await collect(run)
    first = await collect_some(run, 2, redo="status=completed")
    assert read_manifest(run).redo is not None
    second = await collect_some(run, 99, redo="status=completed")
    assert len(first) + len(second) == 6
    assert {len(slots) for slots in numbers(run).values()} == {2}
    third = await collect_some(run, 99, redo="status=completed")
    assert len(third) == 6, "asked for once more after it was done, it is done once more"


@pytest.mark.parametrize("tail", [b"{", b"x" * 5000])
async def test_a_redo_that_began_on_a_torn_log_goes_on_and_repeats_nothing(run: Path, tail: bytes) -> None:
    await collect(run)
    with (run / "rollouts.jsonl").open("ab") as file:
        file.write(tail)
    first = await collect_some(run, 3, redo="status=completed")
    second = await collect_some(run, 99, redo="status=completed")
    assert len(first) + len(second) == 6
    assert {len(slots) for slots in numbers(run).values()} == {2}


async def test_a_redo_that_began_on_a_line_only_in_memory_repeats_nothing_after_a_power_cut(
    run: Path,
) -> None:
    """A killed call leaves a line unsynced; a redo begins, the power fails, and the same redo is given again."""
    root, call = run.parent / "disk", {"tasks": rows(2), "samples": 1, "concurrency": 1}
    await collect(run, limit=1, **call)
    for cut_at in itertools.count(1):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(run, root / "run")
        disk = UnsyncedRollouts(root)
        with pytest.raises(StoreError):
            await collect(root / "run", disk=disk, **call)
        assert len(attempts(root / "run")) == 2
        disk.restart(crash_at=cut_at)
        with contextlib.suppress(StoreError):
            await collect(root / "run", disk=disk, redo="status=completed", **call)
        left = disk.survivors(run.parent / f"left-{cut_at}") / "run"
        disk.close()
        if not disk.crashed:
            break
        for _ in range(3):
            if read_manifest(left).redo is not None:
                await collect_some(left, 1, redo="status=completed", **call)
        assert read_manifest(left).redo is None
        assert max(number for slot in numbers(left).values() for number, _ in slot) <= 2
    assert cut_at > 20


class UnsyncedRollouts(CrashDisk):
    """Crashes at the first sync that follows a write to a log of rollouts."""

    def write(self, descriptor: int, data: memoryview) -> int:
        written = super().write(descriptor, data)
        if self.crash_at is None and b'"attempt":' in bytes(data):
            self.crash_at = self.calls + 1
        return written


async def test_a_bad_line_is_reported_once_also_by_a_redo(run: Path) -> None:
    await collect(run)
    with (run / "rollouts.jsonl").open("ab") as file:
        file.write(b'{"attempt":"one","v":"two"}\n')
    collection = open_run(run, redo="status=failed")
    collection.close()
    assert sum("rollouts.jsonl:7" in warning for warning in collection.warnings) == 1


async def test_a_bad_condition_is_refused_before_anything_is_touched(run: Path) -> None:
    with pytest.raises(UsageError, match="no field 'statuss'"):
        open_run(run, redo="statuss=failed")
    assert not run.exists()


async def test_a_call_without_redo_gives_up_the_redo_that_was_stopped(run: Path) -> None:
    await collect(run)
    await collect_some(run, 1, redo="status=completed")
    summary, _ = await collect(run)
    assert (summary.complete, summary.attempts) == (True, 0)
    assert read_manifest(run).redo is None


# -- grading


async def test_what_is_ungraded_is_graded_from_the_record(run: Path) -> None:
    await collect(run)
    expected = contents(run)
    (run / "scores.jsonl").unlink()
    asked: list[Request] = []
    summary, _ = await collect(run, answer=lambda request: asked.append(request) or echo(request))
    assert (summary.complete, asked) == (True, [])
    assert contents(run) == expected


@pytest.mark.parametrize("after_commit", [False, True])
async def test_a_scorer_that_failed_is_asked_again_and_the_rollout_is_not(
    run: Path, after_commit: bool
) -> None:
    verdicts: list[float] = []

    def scorer(task: Any, reply: str) -> float:
        return verdicts[0]

    scorer.after_commit = after_commit  # type: ignore[attr-defined]
    await collect(run, scorers=(scorer,))
    assert {(rollout.grade, rollout.reward) for rollout in load(run)} == {("failed", None)}
    verdicts.append(0.5)
    summary, committed = await collect(run, scorers=(scorer,))
    assert (summary.complete, committed) == (True, [])
    assert {(rollout.grade, rollout.reward) for rollout in load(run)} == {("graded", 0.5)}


async def test_a_changed_grading_is_refused_without_regrade_and_touches_nothing(run: Path) -> None:
    await collect(run)
    before = (run / "run.json").read_bytes()
    with pytest.raises(UsageError, match="--regrade"):
        open_run(run, scorers=("exact",))
    assert (run / "run.json").read_bytes() == before
    summary, committed = await collect(run, scorers=("exact",), regrade=True)
    assert (summary.complete, committed) == (True, [])
    assert {tuple(sorted(rollout.scores)) for rollout in load(run)} == {("exact", "exact.format")}
    manifest = read_manifest(run)
    assert manifest.grading is not None
    assert manifest.grading.generation == 2


def test_what_its_environment_could_not_score_is_said_again_by_the_same_command(tmp_path, capsys) -> None:
    """Nothing but playing it again could grade it: a second call that said nothing would hide it."""
    (tmp_path / "s.yaml").write_text("replies: [{reply: ok}]\n")
    tasks = write_jsonl(tmp_path / "t.jsonl", [{"prompt": "go"}])
    flags = ["--env", "tests.unit.store.test_resume:Unscored", "--model", f"scripted:{tmp_path / 's.yaml'}"]
    for _ in range(2):
        assert main(["collect", str(tasks), *flags, "--out", str(tmp_path / "run")]) == 1
        assert "1 not graded: --redo grade=failed runs them again" in capsys.readouterr().err
    [rollout] = windrow.load(tmp_path / "run", attempts="all")
    assert (rollout.status, rollout.grade, rollout.reward) == ("completed", "failed", None)


class Unscored(windrow.Env):
    version = 1

    async def reset(self, task):
        return windrow.Observation([{"role": "user", "content": task["prompt"]}])

    async def step(self, reply, results):
        return windrow.Step(done=True)

    async def score(self, episode):
        raise ValueError("the judge is away")
