"""What is recorded is judged again: generations side by side, one of them active, nothing judged twice after a crash."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.command_process import PATIENCE_S
from windrow import Env, Message, Observation, RolloutGroup, Step, Task
from windrow.cli.main import main
from windrow.config import ScorerConfig
from windrow.engine.control import Control
from windrow.errors import UsageError
from windrow.grading.rescoring import RescoreProgress, generations, use_generation
from windrow.policies import Request
from windrow.records import Grading
from windrow.store.sinks import GradingSink
from windrow.tools import ToolResult

pytestmark = pytest.mark.slow

ROWS = [{"id": f"t{n}", "prompt": f"Say {n}.", "answer": str(n)} for n in range(6)]


def answer(request: Request) -> str:
    return request.messages[-1].text.removeprefix("Say ").removesuffix(".")


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    await collected(ROWS, policy=answering(answer), samples=2, out=str(tmp_path / "run"))
    return tmp_path / "run"


def rewards(run: Path) -> list[float | None]:
    return [rollout.reward for rollout in windrow.load(run)]


def gradings(run: Path) -> list[dict[str, Any]]:
    file = run / "scores.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def half(task: Task, reply: str) -> float:
    return 0.5


async def test_new_scorers_make_a_generation_that_becomes_active_and_the_old_one_can_be_chosen_again(
    run: Path,
) -> None:
    log = (run / "rollouts.jsonl").read_bytes()
    found = await windrow.rescore(run, scorers=[half])
    assert (found.generation, found.judged, found.failed, found.active) == (2, 12, 0, True)
    assert rewards(run) == [0.5] * 12
    assert (run / "rollouts.jsonl").read_bytes() == log
    use_generation(run, 1)
    assert rewards(run) == [1.0] * 12
    assert (
        json.loads((run / "metrics.json").read_text())["agents"][0]["agent_metrics"]["reward"]["value"] == 1.0
    )
    assert [(one.number, one.active, one.gradings) for one in generations(run)] == [
        (1, True, 0),
        (2, False, 12),
    ]
    with pytest.raises(UsageError, match="no generation 7"):
        use_generation(run, 7)


async def test_a_rescore_that_is_repeated_judges_anew_with_the_code_that_is_there_now(run: Path) -> None:
    value = 0.25

    def mine(task: Task, reply: str) -> float:
        return value

    await windrow.rescore(run, scorers=[mine])
    value = 0.75
    found = await windrow.rescore(run, scorers=[mine])
    assert (found.generation, rewards(run)) == (3, [0.75] * 12)


async def test_a_rescore_that_was_stopped_goes_on_with_what_is_missing(run: Path) -> None:
    judged: list[str] = []
    control = Control()

    def mine(task: Task, reply: str) -> float:
        judged.append(task.key)
        if len(judged) == 5:
            control.stop()
        return 0.25

    mine.version = 1  # type: ignore[attr-defined]
    stopped = await windrow.rescore(run, scorers=[mine], control=control)
    assert (stopped.active, rewards(run)) == (False, [1.0] * 12)
    before = len(gradings(run))
    found = await windrow.rescore(run, scorers=[mine])
    assert (found.generation, found.judged, found.active) == (2, 12 - before, True)
    assert (len(judged), rewards(run)) == (12, [0.25] * 12)


async def test_failed_gradings_keep_the_generation_from_becoming_active_and_are_judged_again_alone(
    run: Path,
) -> None:
    down = True

    def moody(task: Task, reply: str) -> float:
        if down and task.key == "t3":
            raise OSError("the judge is down")
        return 0.5

    found = await windrow.rescore(run, scorers=[moody])
    assert (found.failed, found.active, found.example) == (2, False, "the judge is down")
    assert rewards(run) == [1.0] * 12
    down = False
    found = await windrow.rescore(run, scorers=[moody])
    assert (found.generation, found.judged, found.active) == (2, 2, True)
    assert rewards(run) == [0.5] * 12


async def test_failed_only_judges_in_place_what_the_runs_own_scorer_could_not(tmp_path: Path) -> None:
    down = True

    def moody(task: Task, reply: str) -> float:
        if down and task.key in ("t1", "t4"):
            raise OSError("down")
        return 0.5

    out = tmp_path / "run"
    await collected(ROWS, policy=answering(answer), out=str(out), scorers=[moody])
    assert rewards(out).count(None) == 2
    down = False
    with pytest.raises(UsageError, match="--failed-only"):
        await windrow.rescore(out, scorers=[half], failed_only=True)
    found = await windrow.rescore(out, scorers=[moody], failed_only=True)
    assert (found.generation, found.judged, found.active) == (1, 2, True)
    assert rewards(out) == [0.5] * 6


async def test_where_judges_a_part_and_says_that_the_generation_is_not_whole(run: Path) -> None:
    found = await windrow.rescore(run, scorers=[half], where="task.key=t2")
    assert (found.judged, found.whole, found.active) == (2, False, False)
    assert rewards(run) == [1.0] * 12
    in_place = await windrow.rescore(run, where="task.key=t2")
    assert (in_place.generation, in_place.judged, in_place.active) == (1, 2, True)
    with pytest.raises(UsageError, match="no field"):
        await windrow.rescore(run, where="nonsense=1")


def best(group: RolloutGroup) -> dict[tuple[str, int], float]:
    return {rollout.key: float(rollout.sample + len(group.rollouts)) for rollout in group.rollouts}


best.unit, best.version = "group", 1  # type: ignore[attr-defined]


async def test_groups_are_judged_again_together(run: Path) -> None:
    found = await windrow.rescore(run, scorers=[best])
    assert (found.judged, rewards(run)) == (12, [2.0, 3.0] * 6)
    assert len(gradings(run)) == 6


async def test_a_group_with_too_few_samples_is_left_out_and_said(run: Path) -> None:
    log = run / "rollouts.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    found = await windrow.rescore(run, scorers=[best])
    assert (found.judged, found.short, rewards(run).count(None)) == (10, 1, 1)
    found = await windrow.rescore(run, scorers=[best], min_group=0.5)
    assert (found.judged, found.short, rewards(run).count(None)) == (11, 0, 0)


async def test_a_grading_that_was_rescored_is_continued_by_collect_or_taken_back(run: Path) -> None:
    await windrow.rescore(run, scorers=["contains"])
    options = {"policy": answering(answer), "samples": 3, "out": str(run)}
    with pytest.raises(UsageError, match="--regrade"):
        await collected(ROWS, **options)
    await collected(ROWS, scorers=["contains"], **options)
    assert {tuple(rollout.scores) for rollout in windrow.load(run)} == {("contains", "contains.format")}
    await collected(ROWS, regrade=True, **options)
    assert {tuple(rollout.scores) for rollout in windrow.load(run)} == {("number", "number.format")}


async def test_what_is_not_a_run_or_has_no_scorers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a run"):
        await windrow.rescore(tmp_path / "nowhere", scorers=[half])
    assert not (tmp_path / "nowhere").exists()
    out = tmp_path / "run"
    await collected([{"prompt": "x"}], policy=answering("y"), out=str(out))
    with pytest.raises(UsageError, match="--scorer"):
        await windrow.rescore(out)


async def test_progress_counts_up_to_all_rollouts(run: Path) -> None:
    seen: list[tuple[int, int]] = []

    def look(progress: RescoreProgress) -> None:
        seen.append((progress.read, progress.total))

    await windrow.rescore(run, scorers=[half], on_progress=look)
    assert seen[-1] == (12, 12)


def test_the_command_lists_chooses_and_says_what_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    Path("script.yaml").write_text("replies: [{match: 'Say (\\d+)', reply: '{1}'}]\n")
    collect = ["collect", "tasks.jsonl", "--model", "scripted:script.yaml", "--out", "run", "--quiet"]
    assert main(collect) == 0
    capsys.readouterr()
    assert main(["rescore", "run", "--scorer", "contains=2"]) == 0
    assert capsys.readouterr().out == (
        "run: 6 gradings, generation 2\ngeneration 2 is active: windrow stats run\n"
    )
    assert main(["rescore", "run", "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "generation  scorers   gradings  failed",
        "  1         number    0         0",
        "* 2         contains  6         0",
    ]
    assert main(["rescore", "run", "--use", "1"]) == 0
    assert capsys.readouterr().out == "run: generation 1 is active (number)\n"
    assert main(["rescore", "run", "--scorer", "rubric"]) == 2
    assert "--judge" in capsys.readouterr().err


async def test_after_a_rescore_by_others_the_runs_own_scorers_are_those_of_the_active_generation(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    await collected(ROWS, policy=answering(answer), scorers=["exact"], out=str(run))
    await windrow.rescore(run, scorers=["contains=0.5"])
    assert rewards(run) == [0.5] * 6
    found = await windrow.rescore(run)
    assert (found.judged, generations(run)[-1].scorers, rewards(run)) == (6, ("contains",), [0.5] * 6)
    found = await windrow.rescore(run, failed_only=True)
    assert (found.judged, found.generation) == (0, 3)


async def test_scorers_that_a_configuration_names_take_the_place_of_the_runs_own(tmp_path: Path) -> None:
    run, config = tmp_path / "run", tmp_path / "again.yaml"
    await collected(ROWS, policy=answering(answer), scorers=["exact"], out=str(run))
    config.write_text("scorers: [{name: contains, weight: 0.25}]")
    await windrow.rescore(run, config=config)
    assert (generations(run)[-1].scorers, rewards(run)) == (("contains",), [0.25] * 6)


class Graceful(Env):
    """Brings a scorer of its own, for rows that name it."""

    async def reset(self, task: Task) -> Observation:
        return Observation([{"role": "user", "content": "Say 7."}])

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        return Step(done=True)

    @classmethod
    def scorers(cls, settings: Mapping[str, Any]) -> list[ScorerConfig]:
        return [ScorerConfig(name="contains", weight=0.5)]


async def test_a_scorer_that_an_environment_brings_judges_only_the_rollouts_of_that_environment(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    own = {"prompt": "Say 7.", "answer": "7", "env": f"{__name__}:Graceful"}
    await collected([*ROWS[:2], own], policy=answering(answer), out=str(run), trust_rows=True)
    assert rewards(run) == [1.0, 1.0, 0.5]
    found = await windrow.rescore(run)
    assert (found.judged, found.failed, found.active) == (3, 0, True)
    assert rewards(run) == [1.0, 1.0, 0.5]


async def test_what_a_condition_selected_is_judged_to_its_end_also_when_its_first_verdict_undoes_the_condition(
    tmp_path: Path,
) -> None:
    run, value, control = tmp_path / "run", 0.0, Control()

    def first(task: Task, reply: str) -> float:
        return value

    def second(task: Task, reply: str) -> float:
        if value and not control.cancelled:
            control.cancel()  # as if it were killed between the two
        return value

    scorers = [first, second]
    await collected(ROWS[:1], policy=answering(answer), scorers=scorers, out=str(run))
    value = 0.5
    await windrow.rescore(run, scorers=scorers, where="reward=0", control=control)
    assert rewards(run) == [0.5]
    found = await windrow.rescore(run, scorers=scorers, where="reward=0")
    assert (found.judged, rewards(run)) == (1, [1.0])


async def test_another_generation_that_was_made_active_meanwhile_is_the_one_that_failed_only_goes_on_with(
    tmp_path: Path,
) -> None:
    run, down = tmp_path / "run", True

    def moody(task: Task, reply: str) -> float:
        if down:
            raise OSError("the judge is down")
        return 0.5

    scorers = [moody]
    await collected(ROWS[:2], policy=answering(answer), scorers=scorers, out=str(run))
    await windrow.rescore(run, scorers=scorers)
    use_generation(run, 2)
    await windrow.rescore(run, scorers=scorers, failed_only=True)
    use_generation(run, 1)
    down = False
    found = await windrow.rescore(run, scorers=scorers, failed_only=True)
    assert (found.generation, rewards(run)) == (1, [0.5] * 2)


async def test_a_condition_that_nothing_meets_makes_no_generation(run: Path) -> None:
    found = await windrow.rescore(run, scorers=["contains"], where="reward=77")
    assert (found.chosen, found.judged, found.active) == (0, 0, False)
    assert [one.number for one in generations(run)] == [1]
    assert rewards(run) == [1.0] * 12


async def test_a_run_whose_own_scorers_cannot_be_found_says_how_to_name_them(tmp_path: Path) -> None:
    def local(task: Task, reply: str) -> float:
        return 1.0

    await collected(ROWS[:1], policy=answering(answer), scorers=[local], out=str(tmp_path / "run"))
    with pytest.raises(UsageError, match=r"<locals>.*\n.*name its scorers with --scorer"):
        await windrow.rescore(tmp_path / "run")


async def test_as_many_groups_are_in_memory_as_have_their_members_side_by_side(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.grading.rescoring.running.AT_A_TIME", 4)
    there: set[str] = set()
    most = 0

    async def held(group: RolloutGroup) -> dict[tuple[str, int], float]:
        nonlocal most
        there.add(group.id)
        most = max(most, len(there))
        await asyncio.sleep(0.01)
        there.remove(group.id)
        return {rollout.key: 0.5 for rollout in group.rollouts}

    held.unit = "group"  # type: ignore[attr-defined]
    await windrow.rescore(run, scorers=[held])
    assert (most, rewards(run)) == (2, [0.5] * 12)


async def test_in_place_only_what_is_chosen_is_judged_again_and_of_a_failure_only_what_failed(
    tmp_path: Path,
) -> None:
    run, down, judged = tmp_path / "run", True, list[str]()

    def steady(task: Task, reply: str) -> float:
        judged.append("steady")
        return 1.0

    def moody(task: Task, reply: str) -> float:
        judged.append("moody")
        if down:
            raise OSError("the judge is down")
        return 0.5

    scorers = [steady, moody, "best-of-n"]
    steady.after_commit = moody.after_commit = True  # type: ignore[attr-defined]
    await collected(ROWS[:1], policy=answering(answer), scorers=scorers, samples=3, out=str(run))
    assert rewards(run).count(None) == 3
    down = False
    judged.clear()
    found = await windrow.rescore(run, scorers=scorers, failed_only=True)
    assert (set(judged), found.failed, sorted(map(float, filter(None, rewards(run))))) == (
        {"moody"},
        0,
        [1.5, 1.5, 2.5],
    )
    judged.clear()
    await windrow.rescore(run, scorers=scorers, where="sample=1")
    assert sorted(judged) == ["moody", "steady"]
    assert sorted(map(float, filter(None, rewards(run)))) == [1.5, 1.5, 2.5]


def commits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many gradings each write to scores.jsonl has, from now on."""
    found: list[int] = []
    commit = GradingSink.commit

    async def noted(sink: GradingSink, made: Sequence[Grading]) -> None:
        found.append(len(made))
        await commit(sink, made)

    monkeypatch.setattr(GradingSink, "commit", noted)
    return found


async def test_verdicts_that_took_no_wait_share_writes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.grading.rescoring.running.AT_A_TIME", 5)
    sizes = commits(monkeypatch)
    await windrow.rescore(run, scorers=["exact"])
    assert (sizes, len(gradings(run)), rewards(run)) == ([5, 5, 2], 12, [1.0] * 12)


async def test_a_verdict_is_counted_once_it_is_on_disk(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.grading.rescoring.running.AT_A_TIME", 5)
    seen: list[int] = []

    def look(progress: RescoreProgress) -> None:
        assert progress.judged <= len(gradings(run))
        seen.append(progress.judged)

    await windrow.rescore(run, scorers=["exact"], on_progress=look)
    assert (seen[0], seen[-1]) == (0, 12)


async def test_as_many_scorers_wait_side_by_side_as_may(run: Path) -> None:
    met = asyncio.Barrier(12)

    async def patient(task: Task, reply: str) -> float:
        async with asyncio.timeout(PATIENCE_S):
            await met.wait()
        return 0.5

    found = await windrow.rescore(run, scorers=[patient])
    assert (found.failed, rewards(run)) == (0, [0.5] * 12)


async def test_a_verdict_that_took_a_wait_is_on_disk_while_others_are_waited_for(run: Path) -> None:
    others_judged = asyncio.Event()

    def look(progress: RescoreProgress) -> None:
        if progress.judged == 10:
            others_judged.set()

    async def last_of_all(task: Task, reply: str) -> float:
        await asyncio.sleep(0)
        if task.key == "t0":
            async with asyncio.timeout(PATIENCE_S):
                await others_judged.wait()
            assert len(gradings(run)) >= 10
        return 0.5

    found = await windrow.rescore(run, scorers=[last_of_all], on_progress=look, score_timeout=PATIENCE_S)
    assert (found.failed, len(gradings(run))) == (0, 12)


async def test_what_was_judged_before_a_cancellation_is_on_disk_and_is_not_judged_again(run: Path) -> None:
    judged: list[str] = []
    control = Control()
    hangs = True

    async def mine(task: Task, reply: str) -> float:
        if hangs and len(judged) == 5:
            control.cancel()
            await asyncio.Event().wait()
        judged.append(task.key)
        return 0.25

    mine.version = 1  # type: ignore[attr-defined]
    cut = await windrow.rescore(run, scorers=[mine], control=control)
    assert (cut.active, len(gradings(run)), rewards(run)) == (False, 5, [1.0] * 12)
    hangs = False
    found = await windrow.rescore(run, scorers=[mine])
    assert (found.judged, len(judged), rewards(run)) == (7, 12, [0.25] * 12)


async def test_what_a_scorer_spoils_the_next_one_does_not_see(run: Path) -> None:
    async def spoiler(task: Task, reply: str) -> float:
        assert task.data is not None
        task.data["answer"] = "spoilt"
        return 0.0

    async def honest(task: Task, reply: str) -> float:
        return float(reply == task["answer"])

    await windrow.rescore(run, scorers=[spoiler, honest])
    assert rewards(run) == [1.0] * 12


async def test_a_scorer_that_waits_too_long_has_failed_and_the_others_are_judged(run: Path) -> None:
    async def stuck(task: Task, reply: str) -> float:
        if task.key == "t3":
            await asyncio.Event().wait()
        return 0.5

    found = await windrow.rescore(run, scorers=[stuck], score_timeout=0.05)
    assert (found.judged, found.failed) == (12, 2)
    assert "did not finish within 0.05 s" in found.example


async def test_a_rollout_that_cannot_be_read_is_left_out_and_said(run: Path) -> None:
    log = run / "rollouts.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"turns":[', b'"turns":[5,', 1)  # which the head of a line does not show
    log.write_bytes(b"".join(lines))
    with pytest.warns(UserWarning, match=r"rollouts\.jsonl:4 is left out"):
        found = await windrow.rescore(run, scorers=[half])
    assert found.judged == 11
