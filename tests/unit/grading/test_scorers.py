"""Scorers: which ones a run has, what they may return, and what their failure means for a rollout."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected, lines
from tests.support.model_server import write_jsonl
from tests.support.scripted_envs import returning, world
from windrow import Rollout, Score, Task
from windrow.collecting.resolve import resolve
from windrow.config import load_config
from windrow.errors import UsageError

NUMBERS = [{"prompt": "2 + 2?", "answer": "4"}, {"prompt": "half of 1?", "answer": 0.5}]
WORDS = [{"prompt": "capital?", "answer": "Paris"}, {"prompt": "2 + 2?", "answer": "4"}]


async def graded(tmp_path: Path, scorers: Any, reply: str = "ok", row: Any = None, **options: Any) -> Rollout:
    """One rollout with these scorers, as it is read back."""
    row = row or {"prompt": "go", "answer": "ok"}
    options = {"policy": answering(reply), "out": str(tmp_path / "run"), **options}
    await collected([row], scorers=scorers, **options)
    [rollout] = windrow.load(tmp_path / "run")
    return rollout


def mine(name: str) -> str:
    return f"{__name__}:{name}"


def values(rollout: Rollout) -> dict[str, tuple[float, float]]:
    return {name: (score.value, score.weight) for name, score in rollout.scores.items()}


# -- which scorers a run has


def notes(tmp_path: Path, rows: Any) -> tuple[list[str], tuple[str, ...]]:
    """The scorers that a run of these rows would have, and what is said about them."""
    tasks = write_jsonl(tmp_path / "tasks.jsonl", rows)
    resolved = resolve(
        load_config((), {"tasks": str(tasks), "model": "m", "base_url": "http://127.0.0.1:9/v1"})
    )
    return [scorer.name for scorer in resolved.run_scorers.scorers], resolved.notes


def test_number_is_the_default_where_every_answer_is_one_and_that_is_said(tmp_path) -> None:
    names, [said] = notes(tmp_path, NUMBERS)
    assert names == ["number"]
    assert said.startswith("scorer: number")


@pytest.mark.parametrize("answer", ["Paris", True, ["4", "four"], "", "4 apples"])
def test_exact_is_the_default_where_an_answer_is_not_a_number(tmp_path, answer) -> None:
    names, [said] = notes(tmp_path, [*NUMBERS, {"prompt": "x", "answer": answer}])
    assert names == ["exact"]
    assert said.startswith("scorer: exact")


async def test_without_any_answer_nothing_is_graded_and_that_is_said(tmp_path) -> None:
    names, [said] = notes(tmp_path, [{"prompt": "a"}, {"prompt": "b", "answer": None}])
    assert names == []
    assert "no row has an 'answer'" in said
    await collected([{"prompt": "a"}], policy=answering("x"), out=str(tmp_path / "run"))
    [rollout] = windrow.load(tmp_path / "run")
    assert (rollout.status, rollout.grade, rollout.reward, rollout.scores) == ("completed", "none", None, {})


async def test_where_some_rows_lack_an_answer_they_are_listed_and_nothing_is_run(tmp_path) -> None:
    rows = [*NUMBERS, {"prompt": "a"}, {"prompt": "b"}]
    with pytest.raises(UsageError) as refusal:
        await collected(rows, policy=answering("x"), out=str(tmp_path / "run"))
    said = str(refusal.value)
    assert "some rows have an 'answer' and some do not" in said
    assert "rows[2]: no 'answer'" in said
    assert "rows[3]: no 'answer'" in said
    assert lines(tmp_path / "run") == []


async def test_a_named_scorer_that_needs_answers_lists_the_rows_without(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"scorer 'contains' needs an 'answer' in every row(.|\n)*rows\[1\]"):
        await collected(
            [NUMBERS[0], {"prompt": "a"}],
            policy=answering("x"),
            scorers=["contains"],
            out=str(tmp_path / "run"),
        )


async def test_the_default_is_for_problem_only(tmp_path) -> None:
    elsewhere = f"{__name__}:Elsewhere"
    rows = [*NUMBERS, {"prompt": "go", "env": elsewhere}, {"prompt": "go", "env": elsewhere, "answer": "4"}]
    rollouts = await collected(rows, policy=answering("4"), out=str(tmp_path / "run"), trust_rows=True)
    found = {(r.env, r.task.get("answer")): (r.grade, r.reward, sorted(r.scores)) for r in rollouts}
    assert found == {
        ("problem", "4"): ("graded", 1.0, ["number", "number.format"]),
        ("problem", 0.5): ("graded", 0.0, ["number", "number.format"]),
        (elsewhere, None): ("none", None, []),
        (elsewhere, "4"): ("none", None, []),
    }


async def test_a_named_scorer_is_for_every_env_and_adds_to_the_envs_own_score(tmp_path) -> None:
    env = world([], score=returning(Score(0.25)))
    rollout = await graded(tmp_path, ["exact=2"], env=env)
    assert values(rollout) == {"score": (0.25, 1.0), "exact": (1.0, 2.0), "exact.format": (1.0, 0.0)}
    assert rollout.reward == 2.25
    assert {name: score.scorer for name, score in rollout.scores.items()} == {
        "score": None,
        "exact": "exact",
        "exact.format": "exact",
    }


class Elsewhere(world([])):  # type: ignore[misc]
    pass


# -- weights


async def test_weights_and_several_scorers_add_up(tmp_path) -> None:
    rollout = await graded(tmp_path, ["exact=0.5", "contains=-1", mine("length")], reply="ok then")
    assert values(rollout) == {
        "exact": (0.0, 0.5),
        "exact.format": (1.0, 0.0),
        "contains": (1.0, -1.0),
        "contains.format": (1.0, 0.0),
        mine("length"): (7.0, 1.0),
    }
    assert rollout.reward == 6.0


async def test_the_format_is_a_score_of_its_own_with_a_weight_of_its_own(tmp_path) -> None:
    scorer = {"name": "number", "settings": {"format_weight": 0.1}}
    options = {"config": tmp_path / "run.yaml"}
    (tmp_path / "run.yaml").write_text(f"scorers: [{scorer}]")
    row = {"prompt": "2 + 2?", "answer": "4"}
    wrong = await graded(tmp_path, None, reply="5", row=row, **options)
    assert (values(wrong), wrong.reward) == ({"number": (0.0, 1.0), "number.format": (1.0, 0.1)}, 0.1)


@pytest.mark.parametrize(
    ("scorers", "says"),
    [
        (["exact", "exact=2"], "scorer 'exact' is named twice"),
        ([mine("length"), mine("length")], "is named twice"),
        (["exat"], "did you mean 'exact'"),
        (["exact=much"], "the weight after '=' must be a number"),
        (["exact=nan"], "finite"),
        (["no_such_module:f"], "cannot import 'no_such_module'"),
        ([mine("no_such_function")], "has no 'no_such_function'"),
        ([mine("NUMBERS")], "is not a function"),
    ],
)
async def test_scorers_that_cannot_be_are_refused_before_anything_runs(tmp_path, scorers, says) -> None:
    with pytest.raises(UsageError, match=says):
        await graded(tmp_path, scorers)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("{name: number, settings: {tolerence: 1}}", "did you mean 'tolerance'"),
        ("{name: number, settings: {tolerance: wide}}", "tolerance must be a number"),
        ("{name: regex, settings: {pattern: '('}}", "the pattern does not compile"),
        ("{name: exact, settings: {pattern: x}}", "has no setting 'pattern'"),
    ],
)
async def test_settings_that_a_scorer_has_not_are_refused(tmp_path, settings, says) -> None:
    (tmp_path / "run.yaml").write_text(f"scorers: [{settings}]")
    with pytest.raises(UsageError, match=says):
        await graded(tmp_path, None, config=tmp_path / "run.yaml")


# -- functions of a user's own


def length(task: Task, reply: str) -> int:
    return len(reply)


async def later(task: Task, reply: str) -> float:
    await asyncio.sleep(0)
    return 0.5 if reply == task["answer"] else 0.0


def several(task: Task, reply: str) -> dict[str, Any]:
    return {"right": True, "style": (0.5, 0.1)}


def whole(task: Task, reply: str) -> Score:
    return Score(0.75, evidence={"said": reply}, metrics={"chars": len(reply)})


def whole_of_several(task: Task, reply: str) -> Score:
    return Score({"a": (1.0, 1.0), "b": (0.5, 2.0)})


def picky(task: Task, reply: str, *, minimum: int = 0) -> bool:
    return len(reply) >= minimum


class Judge:
    async def __call__(self, task: Task, reply: str) -> float:
        return 0.5


judge = Judge()


@pytest.mark.parametrize(
    ("name", "found", "reward"),
    [
        ("length=2", {"length": (2.0, 2.0)}, 4.0),
        ("later", {"later": (0.5, 1.0)}, 0.5),
        ("several=2", {"several.right": (1.0, 2.0), "several.style": (0.5, 0.2)}, 2.1),
        ("whole", {"whole": (0.75, 1.0)}, 0.75),
        ("whole_of_several=2", {"whole_of_several.a": (1.0, 2.0), "whole_of_several.b": (0.5, 4.0)}, 4.0),
        ("judge", {"judge": (0.5, 1.0)}, 0.5),
    ],
)
async def test_a_function_may_return_a_number_a_dict_or_a_score(tmp_path, name, found, reward) -> None:
    rollout = await graded(tmp_path, [mine(name)])
    assert values(rollout) == {mine(key): pair for key, pair in found.items()}
    assert (rollout.grade, rollout.reward) == ("graded", pytest.approx(reward))


async def test_evidence_and_metrics_are_kept(tmp_path) -> None:
    rollout = await graded(tmp_path, [whole])
    assert rollout.scores[mine("whole")].evidence == {"said": "ok"}
    assert rollout.metrics == {"chars": 2.0}


async def test_settings_are_handed_to_the_function(tmp_path) -> None:
    (tmp_path / "run.yaml").write_text(f"scorers: [{{name: '{mine('picky')}', settings: {{minimum: 3}}}}]")
    rollout = await graded(tmp_path, None, config=tmp_path / "run.yaml")
    assert rollout.reward == 0.0


# -- scorers that fail


def nothing(task: Task, reply: str) -> None:
    return None


def nan(task: Task, reply: str) -> float:
    return math.nan


def empty(task: Task, reply: str) -> dict[str, float]:
    return {}


def empty_score(task: Task, reply: str) -> Score:
    return Score({})


def text(task: Task, reply: str) -> str:
    return "good"


def crash(task: Task, reply: str) -> float:
    raise LookupError("no rubric")


async def hang(task: Task, reply: str) -> float:
    await asyncio.Event().wait()
    return 1.0


def block(task: Task, reply: str) -> float:
    time.sleep(1.0)
    return 1.0


async def give_up(task: Task, reply: str) -> float:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("nothing", "scorer", "returned None"),
        ("nan", "ValueError", "not a finite number"),
        ("empty", "scorer", "empty dict"),
        ("empty_score", "scorer", "empty dict"),
        ("text", "ValueError", "not a number"),
        ("crash", "LookupError", "no rubric"),
        ("hang", "timeout", "did not finish within 0.2 s"),
        ("block", "timeout", "did not finish within 0.2 s"),
        ("give_up", "CancelledError", "CancelledError"),
    ],
)
async def test_a_scorer_that_fails_leaves_the_outcome_and_no_reward(tmp_path, name, kind, says) -> None:
    limit = {"score_timeout": 0.2} if kind == "timeout" else {}
    rollout = await graded(tmp_path, ["exact", mine(name)], **limit)
    assert (rollout.status, rollout.stop, rollout.grade, rollout.reward) == (
        "completed",
        "answered",
        "failed",
        None,
    )
    assert rollout.error is not None
    assert (rollout.error.owner, rollout.error.kind, rollout.error.phase) == ("scorer", kind, "score")
    assert says in rollout.error.message


@pytest.mark.parametrize("after_commit", [False, True], ids=["before the commit", "after the commit"])
async def test_a_failed_grading_alone_is_repeated_by_the_next_call(tmp_path, after_commit) -> None:
    asked: list[Any] = []
    judged: list[str] = []

    def answer(request: Any) -> str:
        asked.append(request)
        return "ok"

    def flaky(task: Task, reply: str) -> float:
        judged.append(reply)
        if len(judged) == 1:
            raise OSError("judge is down")
        return 0.5

    flaky.after_commit = after_commit  # type: ignore[attr-defined]
    options = {"policy": answering(answer), "scorers": ["exact", flaky], "out": str(tmp_path / "run")}
    row = {"prompt": "go", "answer": "ok"}
    [first] = await collected([row], **options)
    assert first.error is not None
    assert (first.grade, first.reward, first.error.owner) == ("failed", None, "scorer")
    assert await collected([row], **options) == []
    assert await collected([row], **options) == []
    [second] = windrow.load(tmp_path / "run", attempts="all")
    assert (second.grade, second.reward, second.error) == ("graded", 1.5, None)
    assert (len(asked), len(judged)) == (1, 2)


async def test_an_after_commit_scorer_judges_what_is_already_on_disk(tmp_path) -> None:
    on_disk: list[bytes] = []

    def look(task: Task, reply: str) -> float:
        on_disk.extend(lines(tmp_path / "run"))
        return 0.5

    look.after_commit = True  # type: ignore[attr-defined]
    options = {"policy": answering("ok"), "scorers": ["exact", look], "out": str(tmp_path / "run")}
    [rollout] = await collected([{"prompt": "go", "answer": "ok"}], **options)
    assert (rollout.grade, rollout.reward) == ("graded", 1.5)
    [line] = on_disk
    assert b'"grade":"pending"' in line
    assert lines(tmp_path / "run") == on_disk
    assert [r.reward for r in windrow.load(tmp_path / "run")] == [1.5]


async def test_a_blocking_scorer_does_not_hold_up_the_other_episodes(tmp_path) -> None:
    asked: list[Any] = []
    all_asked = threading.Event()

    def answer(request: Any) -> str:
        asked.append(request)
        if len(asked) == 4:
            all_asked.set()
        return "ok"

    def patient(task: Task, reply: str) -> float:
        return float(all_asked.wait(30))  # on the loop's own thread this would never come

    rows = [{"prompt": f"q{n}"} for n in range(4)]
    rollouts = await collected(rows, policy=answering(answer), scorers=[patient], out=str(tmp_path / "run"))
    assert [r.reward for r in rollouts] == [1.0] * 4
