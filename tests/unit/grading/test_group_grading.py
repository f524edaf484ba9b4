"""Groups are judged together: each verdict lands on its own rollout, and counts while the group is what it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from windrow import Env, Observation, RolloutGroup, Score, Step
from windrow.errors import InfraError, PolicyError, UsageError
from windrow.policies import Request

pytestmark = pytest.mark.slow

ROWS = [{"id": name, "prompt": f"Say {name}."} for name in ("a", "b", "c")]


def numbered(request: Request) -> str:
    return request.id


def own_number(group: RolloutGroup) -> dict[tuple[str, int], float]:
    """The sample index: known only to the rollout that has it."""
    return {rollout.key: float(rollout.sample) for rollout in group.rollouts}


own_number.unit = "group"  # type: ignore[attr-defined]
own_number.version = 1  # type: ignore[attr-defined]


def options(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {
        "policy": answering(numbered),
        "scorers": [own_number],
        "samples": 4,
        "out": str(tmp_path / "run"),
        "retries": 0,
        **more,
    }


def gradings(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "scores.jsonl").read_text().splitlines()]


async def test_each_verdict_of_a_group_lands_on_its_own_rollout_though_they_finish_shuffled(
    tmp_path: Path,
) -> None:
    async def shuffled(request: Request) -> str:
        await asyncio.sleep(int(request.id[:4], 16) / 0xFFFF / 50)
        return request.id

    found = await collected(ROWS, **options(tmp_path, policy=answering(shuffled), concurrency=12))
    assert len(found) == 12
    for rollout in [*found, *windrow.load(tmp_path / "run")]:
        assert (rollout.grade, rollout.reward, rollout.reply) == ("graded", rollout.sample, rollout.id)
    assert sorted(len(line["members"]) for line in gradings(tmp_path / "run")) == [4, 4, 4]


def failing_once(sample_text: str) -> Callable[[Request], str]:
    """A policy that fails for one rollout until it is told to stop."""

    def answer(request: Request) -> str:
        if answer.fails and answer.victim in (None, request.id):  # type: ignore[attr-defined]
            answer.victim = request.id  # type: ignore[attr-defined]
            raise InfraError("down", again=False)
        return request.id

    answer.fails, answer.victim = True, None  # type: ignore[attr-defined]
    return answer


async def test_a_missing_member_holds_its_group_back_and_is_refilled_alone(tmp_path: Path) -> None:
    policy = failing_once("a")
    given = options(tmp_path, policy=answering(policy))
    first = await collected(ROWS, **given)
    assert sorted(rollout.grade for rollout in first) == ["graded"] * 8 + ["none"] + ["pending"] * 3
    policy.fails = False  # type: ignore[attr-defined]
    second = await collected(ROWS, **given)
    assert [rollout.id for rollout in second] == [policy.victim]  # type: ignore[attr-defined]
    assert all(r.grade == "graded" and r.reward == r.sample for r in windrow.load(tmp_path / "run"))
    assert sorted(len(line["members"]) for line in gradings(tmp_path / "run")) == [4, 4, 4]


async def test_min_group_judges_what_is_there_and_a_refilled_group_is_judged_anew(tmp_path: Path) -> None:
    policy = failing_once("a")
    given = options(tmp_path, policy=answering(policy), min_group=0.75)
    await collected(ROWS, **given)
    partial = list(windrow.load(tmp_path / "run"))
    assert sorted(rollout.grade for rollout in partial) == ["graded"] * 11 + ["none"]
    assert all(rollout.reward == rollout.sample for rollout in partial if rollout.grade == "graded")
    policy.fails = False  # type: ignore[attr-defined]
    await collected(ROWS, **given)
    assert [line["unit"] for line in gradings(tmp_path / "run")].count(partial[0].group) <= 2
    assert sorted(len(line["members"]) for line in gradings(tmp_path / "run")) == [3, 4, 4, 4]
    assert all(r.grade == "graded" and r.reward == r.sample for r in windrow.load(tmp_path / "run"))


async def test_a_larger_k_judges_the_groups_that_it_touches_anew_and_no_other(tmp_path: Path) -> None:
    def size(group: RolloutGroup) -> dict[tuple[str, int], float]:
        return dict.fromkeys((rollout.key for rollout in group.rollouts), float(len(group.rollouts)))

    size.unit, size.version = "group", 1  # type: ignore[attr-defined]
    given = options(tmp_path, scorers=[size], samples=2)
    await collected(ROWS, **given)
    assert {rollout.reward for rollout in windrow.load(tmp_path / "run")} == {2.0}
    await collected(ROWS, **{**given, "samples": 3, "limit": 2})
    by_task = {rollout.task.key: rollout.reward for rollout in windrow.load(tmp_path / "run")}
    assert by_task == {"a": 3.0, "b": 3.0, "c": 2.0}
    assert len(gradings(tmp_path / "run")) == 5


async def test_a_group_grading_counts_only_while_its_members_are_the_final_attempts(tmp_path: Path) -> None:
    given = options(tmp_path)
    await collected(ROWS, **given)
    broken = tmp_path / "run" / "scores.jsonl"
    before = broken.read_bytes()
    await collected(ROWS, **given, redo="sample=1")
    assert all(rollout.reward == rollout.sample for rollout in windrow.load(tmp_path / "run"))
    assert len(gradings(tmp_path / "run")) == 6
    broken.write_bytes(before)  # as if it had been killed before it was graded again
    stale = list(windrow.load(tmp_path / "run"))
    assert {rollout.grade for rollout in stale} == {"pending"}
    assert {rollout.reward for rollout in stale} == {None}
    assert await collected(ROWS, **given) == []
    assert all(rollout.reward == rollout.sample for rollout in windrow.load(tmp_path / "run"))


async def test_a_redo_that_fails_leaves_the_group_and_its_verdict_as_they_were(tmp_path: Path) -> None:
    await collected(ROWS[:1], **options(tmp_path))

    def refusing(request: Request) -> str:
        raise PolicyError("no", kind="http_400", retryable=False)

    given = options(tmp_path, policy=answering(refusing), min_group=0.5)
    [failed] = await collected(ROWS[:1], **given, redo="sample=1")
    assert (failed.status, failed.attempt) == ("failed", 2)
    assert len(gradings(tmp_path / "run")) == 1
    assert [rollout.reward for rollout in windrow.load(tmp_path / "run")] == [0.0, 1.0, 2.0, 3.0]


async def test_a_member_whose_line_cannot_be_read_is_run_again_and_its_group_judged_anew(
    tmp_path: Path,
) -> None:
    run, told = tmp_path / "run", list[str]()
    await collected(ROWS[:1], **options(tmp_path))
    log = run / "rollouts.jsonl"
    first, *others = log.read_text().splitlines(keepends=True)
    spoilt = {**json.loads(first), "messages": 7}  # its head is sound
    log.write_text("".join([json.dumps(spoilt, separators=(",", ":")) + "\n", *others]))
    [again] = await collected(ROWS[:1], **options(tmp_path), on_warning=told.append)
    assert (again.sample, again.attempt, again.grade) == (spoilt["sample"], 2, "graded")
    assert any("rollouts.jsonl" in warning and "run again" in warning for warning in told)
    assert [rollout.reward for rollout in windrow.load(run)] == [0.0, 1.0, 2.0, 3.0]


async def test_the_verdict_of_an_attempt_whose_line_was_lost_is_never_that_of_another(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await collected(ROWS[:1], **options(tmp_path))
    log = run / "rollouts.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[1:]))
    [again] = await collected(ROWS[:1], **options(tmp_path))
    assert (again.attempt, again.grade) == (2, "graded")


@pytest.mark.parametrize("damage", [{"scores": 7}, {"scores": []}, {"metrics": [{}]}])
async def test_a_verdict_that_cannot_be_read_is_left_out_told_and_given_again(
    tmp_path: Path, damage: dict[str, Any]
) -> None:
    run = tmp_path / "run"
    await collected(ROWS[:1], **options(tmp_path))
    [grading] = gradings(run)
    (run / "scores.jsonl").write_text(json.dumps({**grading, **damage}) + "\n")
    with pytest.warns(UserWarning, match=r"scores\.jsonl: the line at byte 0 is left out"):
        assert {rollout.grade for rollout in windrow.load(run)} == {"pending"}
    with pytest.warns(UserWarning, match="is left out"):
        await collected(ROWS[:1], **options(tmp_path))
    with pytest.warns(UserWarning, match="is left out"):
        assert [rollout.reward for rollout in windrow.load(run)] == [0.0, 1.0, 2.0, 3.0]


async def test_groups_that_were_never_judged_are_judged_by_the_next_call_and_given_out(
    tmp_path: Path,
) -> None:
    given = options(tmp_path)
    await collected(ROWS, **given)
    (tmp_path / "run" / "scores.jsonl").write_bytes(b"")
    groups: list[Any] = await collected(ROWS, **given, groups=True)
    assert sorted(group.task.key for group in groups) == ["a", "b", "c"]
    assert {group.rewards for group in groups} == {(0.0, 1.0, 2.0, 3.0)}


class Dialogue(Env):
    version = 1

    async def reset(self, task: Any) -> Observation:
        self.left = 3
        return Observation([{"role": "user", "content": task["prompt"]}])

    async def step(self, reply: Any, results: Any) -> Step:
        self.left -= 1
        return Step(messages=[{"role": "user", "content": "Go on."}], done=not self.left)

    @classmethod
    async def score_group(cls, settings: Any, group: RolloutGroup, ctx: Any) -> Any:
        assert all(len(rollout.turns) == 3 for rollout in group.rollouts)
        return {rollout.key: Score(rollout.sample / 10) for rollout in group.rollouts}


async def test_an_environment_scores_groups_of_several_turns_itself(tmp_path: Path) -> None:
    found = await collected(ROWS, **options(tmp_path, scorers=None, env=Dialogue))
    assert [rollout.reward for rollout in found] == [rollout.sample / 10 for rollout in found]
    assert {score for rollout in found for score in rollout.scores} == {"env"}


@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        (lambda group: {}, "gave no verdict"),
        (lambda group: {("x", 1): 1.0}, "not in the group"),
        (lambda group: [1.0] * 4, "expected a dict"),
        (lambda group: {rollout.key: float("nan") for rollout in group.rollouts}, "finite"),
    ],
)
async def test_a_group_scorer_that_answers_amiss_fails_the_grading_and_nothing_is_guessed(
    tmp_path: Path, verdict: Any, message: str
) -> None:
    def amiss(group: RolloutGroup) -> Any:
        return verdict(group)

    amiss.unit = "group"  # type: ignore[attr-defined]
    found = await collected(ROWS[:1], **options(tmp_path, scorers=[amiss]))
    assert {(rollout.grade, rollout.reward) for rollout in found} == {("failed", None)}
    assert all(rollout.error is not None and message in rollout.error.message for rollout in found)


async def test_a_member_that_a_group_scorer_does_not_apply_to_is_not_asked_about_again(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    def odd_only(group: RolloutGroup) -> Any:
        asked.append(group.id)
        return {r.key: (1.0 if r.sample % 2 else None) for r in group.rollouts}

    odd_only.unit, odd_only.version = "group", 1  # type: ignore[attr-defined]
    found = await collected(ROWS, **options(tmp_path, scorers=[odd_only]))
    assert {(r.sample % 2, r.grade, r.reward) for r in found} == {(0, "none", None), (1, "graded", 1.0)}
    await collected(ROWS, **options(tmp_path, scorers=[odd_only]))
    assert len(asked) == 3


@pytest.mark.slow
async def test_workers_collect_and_the_parent_judges_the_groups(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    found = await collected(
        tasks,
        **options(
            tmp_path,
            policy=None,
            model="scripted:tests.unit.grading.test_group_grading:numbered",
            scorers=["tests.unit.grading.test_group_grading:own_number"],
            workers=2,
            concurrency=4,
        ),
    )
    assert len(found) == 12
    assert all(rollout.reward == rollout.sample for rollout in found)


async def test_a_share_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="min_group"):
        await collected(ROWS, **options(tmp_path, min_group=0))


async def test_a_group_of_matches_is_judged_without_the_opponents(tmp_path: Path) -> None:
    rounds = [{"id": "d", "rounds": 1}]
    given = options(
        tmp_path,
        policy=answering("C"),
        env="examples.dilemma:Dilemma",
        sets=[
            "env.settings.opponents={1: {model: 'scripted:tests.unit.grading.test_group_grading:defecting'}}"
        ],
    )
    await collected(rounds, **given)
    found = list(windrow.load(tmp_path / "run"))
    assert len(found) == 8
    judged = {rollout.sample: rollout for rollout in found if not rollout.opponent}
    assert {sample: (r.grade, r.scores[NAME].value) for sample, r in judged.items()} == {
        sample: ("graded", sample) for sample in range(4)
    }
    assert not any(NAME in rollout.scores for rollout in found if rollout.opponent)
    assert await collected(rounds, **given) == []
    assert len(gradings(tmp_path / "run")) == 1


def defecting(request: Request) -> str:
    return "D"


NAME = "tests.unit.grading.test_group_grading:own_number"


def spoils(group: RolloutGroup) -> dict[tuple[str, int], float]:
    for rollout in group.rollouts:
        rollout.scores.clear()
        rollout.metrics["spoilt"] = 1.0
        assert rollout.task.data is not None
        rollout.task.data.clear()
    return {rollout.key: 1.0 for rollout in group.rollouts}


async def test_what_a_group_scorer_does_to_its_group_is_seen_by_nobody_else(tmp_path: Path) -> None:
    spoils.unit = "group"  # type: ignore[attr-defined]
    found = await collected(ROWS[:1], **options(tmp_path, scorers=[spoils, own_number]))
    for rollout in [*found, *windrow.load(tmp_path / "run")]:
        assert (rollout.grade, rollout.reward) == ("graded", 1.0 + rollout.sample)
        assert rollout.metrics == {}
        assert rollout.task.data == ROWS[0]


async def test_a_group_scorer_that_judges_again_sees_only_the_scores_of_those_before_it(
    tmp_path: Path,
) -> None:
    down, seen = True, []

    def first(group: RolloutGroup) -> dict[tuple[str, int], float]:
        seen.append({name for rollout in group.rollouts for name in rollout.scores})
        if down:
            raise OSError("down")
        return {rollout.key: 1.0 for rollout in group.rollouts}

    first.unit = "group"  # type: ignore[attr-defined]
    await collected(ROWS[:1], **options(tmp_path, scorers=[first, own_number]))
    down = False
    await collected(ROWS[:1], **options(tmp_path, scorers=[first, own_number]))
    assert seen == [set(), set()]
    assert [rollout.reward for rollout in windrow.load(tmp_path / "run")] == [1.0, 2.0, 3.0, 4.0]
