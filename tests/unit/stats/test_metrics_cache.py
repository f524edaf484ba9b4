"""metrics.cache: an unchanged run is not read again, and whatever changes a run, or the cache, is noticed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.collect_helpers import answering, collected
from tests.support.fake_disks import QuickDisk
from tests.support.run_builders import (
    FAILED,
    GRADING,
    folder_in_memory,
    make_grading,
    make_rollout,
    open_run,
    write_lines,
    write_run,
)
from windrow import Rollout, rescore
from windrow.cli.collect_report import closing
from windrow.cli.main import main
from windrow.cli.stats import text
from windrow.collecting.merge import merge
from windrow.collecting.running import run_collection
from windrow.engine.control import Control
from windrow.envs.problem import Problem
from windrow.grading.rescoring.generations import use_generation
from windrow.identity import rollout_id
from windrow.records import OPPONENT, RecordedScore, Timing, Usage
from windrow.stats.cache import CACHE
from windrow.stats.metrics import measure, measure_run, unchanged_metrics, write_metrics
from windrow.stats.summary import Stats, summarise
from windrow.store.manifest import MANIFEST, read_manifest
from windrow.store.run_directory import RunDirectory

PLANTED = 987_654


def write(run: Path) -> None:
    write_metrics(run, measure_run(run), QuickDisk())


def plant(run: Path, **changes: Any) -> None:
    """Change numbers in the cache, so that whoever goes by it is found out."""
    cache = json.loads((run / CACHE).read_bytes())
    cache["metrics"]["summary"] |= {"rollouts": PLANTED, **changes}
    cache["metrics"]["coverage"]["rollouts"] = PLANTED
    (run / CACHE).write_text(json.dumps(cache))


def goes_by_the_cache(run: Path) -> bool:
    return summarise(run).rollouts == PLANTED


def scanned(run: Path) -> Stats:
    """What the logs say."""
    (run / CACHE).unlink(missing_ok=True)
    return summarise(run)


def graded(name: str, reward: float, answer: str | None = "", **changes: Any) -> Rollout:
    evidence = {"answer": answer} if answer != "" else None
    score = RecordedScore(value=reward, weight=1.0, scorer="judge", evidence=evidence)
    usage = Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=1, cost=0.1)
    timing = Timing(started_at=5.0, total=1.5, policy=0.3)
    scores = {"judge": score, "judge.format": RecordedScore(value=1.0, weight=0.0, scorer="judge")}
    fields = {"grade": "graded", "reward": reward, "scores": scores, "usage": usage, "timing": timing}
    return make_rollout(name, **{**fields, **changes})


def seats(name: str, index: int) -> list[Rollout]:
    """A match of an agent, another one and an opponent."""
    group = make_rollout(name).group
    shared = {"index": index, "episode": "e" * 24, "seats": 3}
    return [
        graded(name, reward, id=rollout_id(group, 0, seat), agent=agent, seat=seat, **shared)
        for seat, (agent, reward) in enumerate((("chat", 1.0), ("pkg:Other", 0.5), (OPPONENT, 0.0)))
    ]


def run_of_everything(path: Path) -> Path:
    """Every status, seats, agents and environments, groups, answers, errors, gradings of a judge, and a bad line."""
    pending = make_rollout("late", index=7, grade="pending")
    unjudged = make_rollout("never", index=8, grade="pending")
    refused = make_rollout("refused", index=9, grade="pending")
    rollouts = [
        graded("votes", 1.0, "4", index=0),
        graded("votes", 0.0, "5", index=0, sample=1),
        graded("votes", 0.0, None, index=0, sample=2),
        graded("unread", 0.25, index=1),
        graded("alike", 1.0, "1", index=2, env="chat", metrics={"steps": 3.0}),
        graded("alike", 1.0, "1", index=2, env="chat", sample=1, status="truncated", stop="max_turns"),
        make_rollout("down", index=3, status="failed", stop="error", error=FAILED),
        graded("down", 1.0, index=3, attempt=2),
        make_rollout("lost", index=4, status="failed", stop="error", error=FAILED, agent="pkg:Other"),
        make_rollout("left", index=5, status="cancelled", stop="cancelled", reason="surplus"),
        *seats("match", 6),
        pending,
        unjudged,
        refused,
    ]
    usage = Usage(prompt_tokens=100, completion_tokens=10, cost=0.25)
    gradings = [make_grading(pending, 0.5, usage=usage), make_grading(refused, None)]
    run = write_run(path, rollouts, gradings)
    with (run / "rollouts.jsonl").open("ab") as log:
        log.write(b"{broken\n")
    manifest = json.loads((run / MANIFEST).read_text())
    planned = {"counts": {"planned": 20}, "agents": {"chat": 15, "pkg:Other": 3}}
    (run / MANIFEST).write_text(json.dumps({**manifest, **planned}))
    return run


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["stats", *arguments]) == 0
    return capsys.readouterr().out


# -- the same numbers


def test_stats_of_an_unchanged_run_are_those_of_a_scan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of_everything(tmp_path / "run")
    for flags in ([], ["--json"]):
        (run / CACHE).unlink(missing_ok=True)
        before = said(capsys, str(run), *flags)
        assert said(capsys, str(run), "--write", *flags) == before
        assert said(capsys, str(run), *flags) == before
        plant(run)
        assert f"{PLANTED}" in said(capsys, str(run), "--json")
    for row in ("episodes", "errors", "majority", "groups", "judges", "opponents", "bad lines"):
        assert row in text(scanned(run))


def test_the_metrics_that_are_kept_are_those_of_the_file(tmp_path: Path) -> None:
    run = run_of_everything(tmp_path / "run")
    write(run)
    kept = read_kept(run)
    whole = msgspec.to_builtins(measure(run))
    for entry in whole["agents"]:
        entry["group_level_metrics"] = []
    assert msgspec.to_builtins(kept) == whole
    assert json.loads((run / "metrics.json").read_bytes())["summary"] == whole["summary"]


def read_kept(run: Path) -> Any:
    found = unchanged_metrics(run, envs={"chat": Problem, "problem": Problem})
    assert found is not None
    return found


def test_the_sums_over_agents_do_not_depend_on_when_each_comes_up(tmp_path: Path) -> None:
    """Beyond the first lines that are counted together."""
    rollouts = [graded(f"t{n}", n % 3 / 2, str(n % 5), index=n) for n in range(600)]
    others = [graded(f"o{n}", n % 2, "1", index=n, agent="pkg:Other") for n in range(5)]
    run = write_run(tmp_path / "run", [*rollouts, *others])
    write(run)
    assert summarise(run) == scanned(run)
    assert (summarise(run).rollouts, summarise(run).tasks) == (605, 605)


async def test_a_call_with_nothing_to_do_does_not_measure_and_says_the_same(tmp_path: Path) -> None:
    run = tmp_path / "run"

    async def call() -> str:
        collection = open_run(run)
        summary = await run_collection(collection, aggregate=True)
        assert collection.metrics is not None
        _, *rest = closing(collection, summary, Control()).splitlines()
        return "\n".join(rest)

    await call()
    written = (run / "metrics.json").stat()
    before = await call()
    assert "chat: reward 1.000" in before
    assert await call() == before
    assert (run / "metrics.json").stat() == written
    cache = json.loads((run / CACHE).read_bytes())
    cache["metrics"]["agents"][0]["agent_metrics"]["reward"]["value"] = 0.125
    (run / CACHE).write_text(json.dumps(cache))
    assert "chat: reward 0.125" in await call()


# -- what changes a run


def append(run: Path) -> None:
    write_lines(run / "rollouts.jsonl", [graded("new", 0.0, index=11)])


def add_segment(run: Path) -> None:
    write_lines(run / "rollouts.w1.jsonl", [graded("new", 0.0, index=11)])


def cut(run: Path) -> None:
    log = run / "rollouts.jsonl"
    os.truncate(log, log.read_bytes()[:-1].rindex(b"\n") + 1)


def edit(run: Path) -> None:
    log = run / "rollouts.jsonl"
    size = log.stat().st_size
    with log.open("r+b") as file:
        file.write(log.read_bytes().replace(b'"reward":1.0', b'"reward":0.0'))
    assert log.stat().st_size == size


def edit_and_set_the_time_back(run: Path) -> None:
    before = (run / "rollouts.jsonl").stat()
    written_ns, clock = (run / CACHE).stat().st_ctime_ns, run.parent / "clock"
    clock.touch()
    while clock.stat().st_ctime_ns <= written_ns:  # within one tick nothing would tell
        clock.touch()
    edit(run)
    os.utime(run / "rollouts.jsonl", ns=(before.st_atime_ns, before.st_mtime_ns))


def edit_and_keep_the_time(run: Path) -> None:
    """As a file that is copied over another one with its time."""
    log, other = run / "rollouts.jsonl", run / "other"
    shutil.copy2(log, other)
    edit(run)
    other.write_bytes(log.read_bytes())
    before = json.loads((run / CACHE).read_bytes())["files"][log.name][2]
    os.utime(other, ns=(before, before))
    os.replace(other, log)


def grade(run: Path) -> None:
    write_lines(run / "scores.jsonl", [make_grading(make_rollout("never"), 1.0)])


def edit_a_grading(run: Path) -> None:
    log = run / "scores.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"value":0.5', b'"value":0.9'))


def change_manifest(**changes: Any) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        manifest = json.loads((run / MANIFEST).read_text())
        (run / MANIFEST).write_text(json.dumps({**manifest, **changes}))

    return change


def remove_metrics(run: Path) -> None:
    (run / "metrics.json").unlink()


def rewrite_metrics(run: Path) -> None:
    (run / "metrics.json").write_bytes((run / "metrics.json").read_bytes().replace(b"chat", b"chap"))


OTHER = {"hash": "grading-b", "of": {"scorers": [{"name": "other", "weight": 1.0}]}, "generation": 2}
CHANGES: dict[str, Callable[[Path], None]] = {
    "append": append,
    "another segment": add_segment,
    "cut": cut,
    "edit in place": edit,
    "edit in place with the time set back": edit_and_set_the_time_back,
    "another file with the same size and time": edit_and_keep_the_time,
    "grading": grade,
    "edited grading": edit_a_grading,
    "another scorer": change_manifest(grading=OTHER),
    "another generation": change_manifest(grading={**msgspec.to_builtins(GRADING), "generation": 2}),
    "planned": change_manifest(counts={"planned": 3}),
    "planned by agent": change_manifest(agents={"chat": 99}),
    "samples": change_manifest(config={"samples": 1}),
    "no metrics.json": remove_metrics,
    "another metrics.json": rewrite_metrics,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_the_run_is_noticed(tmp_path: Path, change: Callable[[Path], None]) -> None:
    run = run_of_everything(tmp_path / "run")
    write(run)
    plant(run)
    assert goes_by_the_cache(run)
    change(run)
    assert not goes_by_the_cache(run)
    assert summarise(run) == scanned(run)


def test_an_edit_is_noticed_however_soon_it_follows(tmp_path: Path) -> None:
    """Within one tick of the file system's clock, which gives both the same time."""
    run = write_run(tmp_path / "run")
    log = run / "rollouts.jsonl"
    for reward in (0.0, 1.0) * 10:
        log.write_bytes(msgspec.json.encode(graded("a", reward)) + b"\n")
        write(run)
        log.write_bytes(msgspec.json.encode(graded("a", 1.0 - reward)) + b"\n")
        found = summarise(run).reward
        assert found is not None
        assert found.value == 1.0 - reward


def test_another_pass_reward_or_other_formulas_are_measured_anew(tmp_path: Path) -> None:
    run = run_of_everything(tmp_path / "run")
    write(run)
    plant(run)
    assert summarise(run, pass_reward=0.5).rollouts != PLANTED
    cache = json.loads((run / CACHE).read_bytes())
    cache["metrics"]["stamp"]["formulas"] += 1
    (run / CACHE).write_text(json.dumps(cache))
    assert not goes_by_the_cache(run)


def test_a_copy_and_a_run_of_another_name_are_measured_anew(tmp_path: Path) -> None:
    run = run_of_everything(tmp_path / "run")
    write(run)
    plant(run)
    shutil.copytree(run, tmp_path / "copy")
    assert not goes_by_the_cache(tmp_path / "copy")
    assert goes_by_the_cache(run)
    run.rename(tmp_path / "renamed")  # its name stands in metrics.json
    assert not goes_by_the_cache(tmp_path / "renamed")


ROWS = [{"prompt": "one", "answer": "1"}, {"prompt": "two", "answer": "2"}]


@pytest.mark.parametrize("how", ["redo", "regrade", "more samples", "rescore", "merge"])
async def test_what_commands_do_to_a_run_is_in_its_numbers(tmp_path: Path, how: str) -> None:
    run = tmp_path / "run"
    replies = iter("1" * 4 + "2" * 40)
    options: dict[str, Any] = {"policy": answering(lambda _: next(replies)), "out": str(run), "samples": 2}
    await collected(ROWS, scorers=["exact"], **options)
    first = summarise(run)
    plant(run)
    if how == "redo":
        await collected(ROWS, scorers=["exact"], redo="status=completed", **options)
    elif how == "regrade":
        await collected(ROWS, scorers=["contains=2"], regrade=True, **options)
    elif how == "more samples":
        await collected(ROWS, scorers=["exact"], **{**options, "samples": 4})
    elif how == "rescore":
        await rescore(run, scorers=["contains=3"])
    else:
        await collected(
            [{"prompt": "three", "answer": "3"}], scorers=["exact"], **{**options, "out": str(tmp_path / "b")}
        )
        merge([tmp_path / "b"], run)
    after = summarise(run)
    assert after.rollouts != PLANTED
    assert after != first
    assert after == scanned(run)


async def test_another_active_generation_has_its_own_numbers(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await collected(ROWS, policy=answering("1"), out=str(run), scorers=["exact"])
    first = summarise(run)
    await rescore(run, scorers=["contains=3"])
    plant(run)
    use_generation(run, 1)
    assert summarise(run) == first == scanned(run)


def test_a_merged_run_need_not_be_measured_again(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [graded("a", 1.0)])
    write_run(tmp_path / "b", [graded("b", 0.0, index=1)])
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "run", disk=QuickDisk())
    before = summarise(tmp_path / "run")
    plant(tmp_path / "run")
    assert goes_by_the_cache(tmp_path / "run")
    assert before == scanned(tmp_path / "run")


steps = st.lists(
    st.sampled_from(["append", "cut", "edit", "grade", "write", "generation", "restart"]), max_size=12
)


@given(steps=steps)
@settings(max_examples=40)
def test_whatever_happens_the_numbers_are_those_of_the_logs(steps: list[str]) -> None:
    with folder_in_memory() as folder:
        run = write_run(folder / "run", [graded("a", 1.0), make_rollout("never", grade="pending", index=8)])
        for number, step in enumerate(["write", *steps]):
            if step == "write":
                write(run)
            elif step == "append":
                write_lines(run / "rollouts.jsonl", [graded(f"n{number}", 0.5, index=number)])
            elif step == "grade":
                grade(run)
            elif step == "generation":
                directory = RunDirectory(run, disk=QuickDisk())
                active = msgspec.structs.replace(GRADING, generation=number)
                directory.write_manifest(msgspec.structs.replace(read_manifest(run), grading=active))
                directory.close()
            elif step == "restart":
                (run / CACHE).unlink(missing_ok=True)
            elif (run / "rollouts.jsonl").stat().st_size > 2000:
                {"cut": cut, "edit": edit}[step](run)
            found = summarise(run)
            cache = (run / CACHE).read_bytes() if (run / CACHE).exists() else None
            assert found == scanned(run)
            if cache is not None:
                (run / CACHE).write_bytes(cache)


# -- what may stand there


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"files":{},"metrics":{}}', b"\xff\xfe", b"[" * 5000, b'{"files":7}'],
)
def test_what_is_no_cache_is_ignored(tmp_path: Path, content: bytes) -> None:
    run = run_of_everything(tmp_path / "run")
    write(run)
    (run / CACHE).write_bytes(content)
    assert summarise(run) == scanned(run)
    (run / CACHE).mkdir()
    assert summarise(run).bad_lines == 1


def test_a_cache_of_another_run_is_ignored(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one" / "run", [graded("a", 1.0)])
    two = write_run(tmp_path / "two" / "run", [graded("b", 1.0)])
    write(one)
    write(two)
    plant(one)
    shutil.copy2(one / CACHE, two / CACHE)
    assert not goes_by_the_cache(two)


class NoCache(QuickDisk):
    """A disk that is full once metrics.json is written."""

    def replace(self, path: Path, data: Any) -> None:
        if path.name == CACHE:
            raise OSError(28, "No space left on device")
        super().replace(path, data)


def test_metrics_without_a_cache_are_written_and_an_older_cache_does_not_count(tmp_path: Path) -> None:
    run = run_of_everything(tmp_path / "run")
    write(run)
    plant(run)
    append(run)
    write_metrics(run, measure_run(run), NoCache())
    assert json.loads((run / "metrics.json").read_bytes())["coverage"]["rollouts"] == 16
    assert not goes_by_the_cache(run)


def test_gradings_that_cannot_be_read_are_warned_of_every_time(tmp_path: Path) -> None:
    pending = make_rollout("a", grade="pending")
    bad = make_grading(pending, 1.0, scores=())
    run = write_run(tmp_path / "run", [pending], [bad])
    with pytest.warns(UserWarning, match="is left out"):
        write(run)
    assert not (run / CACHE).exists()
    with pytest.warns(UserWarning, match="is left out"):
        summarise(run)


# -- environments with a hook of their own


class Asked(Problem):
    version = 1
    times = 0

    @classmethod
    def aggregate(cls, rollouts: Any) -> dict[str, float]:
        Asked.times += 1
        return {"asked": Asked.times}


class Later(Problem):
    version = 1


async def test_a_hook_is_asked_again_each_time(tmp_path: Path) -> None:
    options: dict[str, Any] = {"env": Asked, "policy": answering("1"), "out": str(tmp_path / "run")}
    for _ in range(3):
        await collected(ROWS, **options)
    entry = json.loads((tmp_path / "run" / "metrics.json").read_bytes())["agents"][0]
    assert list(entry["agent_metrics"]["aggregate"].values()) == [{"asked": 3.0}]


async def test_a_hook_that_is_added_later_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"env": Later, "policy": answering("1"), "out": str(tmp_path / "run")}
    await collected(ROWS, **options)
    monkeypatch.setattr(Later, "aggregate", classmethod(lambda cls, rollouts: {"many": len(rollouts)}))
    await collected(ROWS, **options)
    entry = json.loads((tmp_path / "run" / "metrics.json").read_bytes())["agents"][0]
    assert list(entry["agent_metrics"]["aggregate"].values()) == [{"many": 2.0}]
