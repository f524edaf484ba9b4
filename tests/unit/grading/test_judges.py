"""Judges: asked once for each question, read or asked again, never guessed; their calls are evidence, and cost."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.fake_clock import LIMIT_S, for_ever, time_passes
from tests.support.model_server import ModelServer
from windrow import Completion, Request, Task
from windrow.cli.main import main
from windrow.errors import InfraError, UsageError
from windrow.records import Usage

pytestmark = pytest.mark.slow

ROWS = [{"id": f"t{n}", "prompt": f"Say {n}."} for n in range(4)]
JUDGE = "scripted:tests.unit.grading.test_judges:judge"
ASKED: list[str] = []


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    ASKED.clear()
    judge.says = lambda text: "Score: 7"  # type: ignore[attr-defined]


async def judge(request: Request) -> Completion:
    text = request.messages[-1].text
    ASKED.append(text)
    await asyncio.sleep(0.005)
    said = judge.says(text)  # type: ignore[attr-defined]
    if isinstance(said, Completion):
        return said
    return Completion(content=said, usage=Usage(prompt_tokens=100, completion_tokens=10))


def score(reply: str) -> float:
    found = re.fullmatch(r"Score: (\d+)", reply)
    if found is None:
        raise ValueError("it is not 'Score: N'")
    return int(found[1]) / 10


async def graded(task: Task, reply: str, ctx: Any) -> float:
    question = [{"role": "user", "content": f"How good is: {reply}"}]
    found: float = await ctx.ask(question, score, about="quality")
    return found


async def stern(task: Task, reply: str, ctx: Any) -> float:
    found: float = await ctx.ask([{"role": "user", "content": f"{task.key}: is {reply} enough?"}], score)
    return found


graded.version = stern.version = 1  # type: ignore[attr-defined]


def options(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {
        "policy": answering(lambda request: request.messages[-1].text),
        "scorers": [graded],
        "judge": JUDGE,
        "out": str(tmp_path / "run"),
        **more,
    }


def gradings(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "run" / "scores.jsonl").read_text().splitlines()]


async def test_a_judgement_is_evidence_with_question_reply_and_usage(tmp_path: Path) -> None:
    found = await collected(ROWS, **options(tmp_path))
    assert [rollout.reward for rollout in found] == [0.7] * 4
    [first, *_] = gradings(tmp_path)
    assert first["usage"]["prompt_tokens"] == 100
    [said] = first["judgements"]
    assert (said["about"], said["reply"], said["model"]) == ("quality", "Score: 7", JUDGE)
    assert said["messages"][0]["content"].startswith("How good is: Say")


async def test_the_same_question_is_asked_once_also_side_by_side_and_in_a_later_call(tmp_path: Path) -> None:
    same = answering("the same")
    found = await collected(ROWS, **options(tmp_path, policy=same, samples=3))
    assert ([rollout.reward for rollout in found], len(ASKED)) == ([0.7] * 12, 1)
    assert [line["usage"] is None for line in gradings(tmp_path)].count(False) == 1
    found = await collected(ROWS, **options(tmp_path, policy=same, samples=4))
    assert ([rollout.reward for rollout in found], len(ASKED)) == ([0.7] * 4, 1)


async def test_a_killed_grading_repeats_no_call_of_the_judge(tmp_path: Path) -> None:
    await collected(ROWS, **options(tmp_path))
    (tmp_path / "run" / "scores.jsonl").write_bytes(b"")  # killed after it had asked, before it had graded
    assert await collected(ROWS, **options(tmp_path)) == []
    assert ([r.reward for r in windrow.load(tmp_path / "run")], len(ASKED)) == ([0.7] * 4, 4)


async def test_other_weights_ask_the_judge_nothing(tmp_path: Path) -> None:
    named = {"scorers": ["tests.unit.grading.test_judges:graded"]}
    await collected(ROWS, **options(tmp_path, **named))
    await windrow.rescore(tmp_path / "run", scorers=["tests.unit.grading.test_judges:graded=10"])
    assert ([r.reward for r in windrow.load(tmp_path / "run")], len(ASKED)) == ([7.0] * 4, 4)


async def test_another_judge_is_another_grading_and_another_address_is_not(tmp_path: Path) -> None:
    await collected(ROWS, **options(tmp_path))
    with pytest.raises(UsageError, match=r"judge.*→|models"):
        await collected(ROWS, **options(tmp_path, judge="scripted:tests.unit.grading.test_judges:other"))
    assert await collected(ROWS, **options(tmp_path), sets=["judge.call_retries=1"]) == []


async def other(request: Request) -> str:
    return "Score: 1"


async def test_a_reply_that_cannot_be_read_is_asked_about_again_and_told_what_was_wrong(
    tmp_path: Path,
) -> None:
    judge.says = lambda text: "Score: 4" if "could not be read" in text else "Not bad!"  # type: ignore[attr-defined]
    found = await collected(ROWS[:1], **options(tmp_path))
    assert [rollout.reward for rollout in found] == [0.4]
    [line] = gradings(tmp_path)
    assert [said.get("problem") for said in line["judgements"]] == ["it is not 'Score: N'", None]
    assert line["usage"]["prompt_tokens"] == 200


@pytest.mark.parametrize(
    "said", ["Not success", "", "Score: ten", Completion(content="Score: 9", finish="length")]
)
async def test_a_judgement_that_stays_unreadable_fails_the_grading_and_is_never_zero(
    tmp_path: Path, said: Any
) -> None:
    judge.says = lambda text: said  # type: ignore[attr-defined]
    found = await collected(ROWS, **options(tmp_path))
    assert {(rollout.grade, rollout.reward) for rollout in found} == {("failed", None)}
    assert {rollout.error.kind for rollout in found if rollout.error} == {"unreadable_judgement"}
    assert {rollout.status for rollout in found} == {"completed"}
    assert len(gradings(tmp_path)[0]["judgements"]) == 3
    judge.says = lambda text: "Score: 5"  # type: ignore[attr-defined]
    assert await collected(ROWS, **options(tmp_path)) == []
    assert [rollout.reward for rollout in windrow.load(tmp_path / "run")] == [0.5] * 4


async def test_a_judge_that_is_down_fails_the_grading_and_the_next_call_asks_again(tmp_path: Path) -> None:
    def down(text: str) -> str:
        raise InfraError("connection refused", again=False)

    judge.says = down  # type: ignore[attr-defined]
    found = await collected(ROWS, **options(tmp_path))
    assert {(rollout.grade, rollout.reward) for rollout in found} == {("failed", None)}
    judge.says = lambda text: "Score: 5"  # type: ignore[attr-defined]
    await collected(ROWS, **options(tmp_path))
    assert [rollout.reward for rollout in windrow.load(tmp_path / "run")] == [0.5] * 4


async def test_a_scorer_without_a_judge_is_told_how_to_have_one(tmp_path: Path) -> None:
    found = await collected(ROWS[:1], **options(tmp_path, judge=None))
    assert found[0].grade == "failed"
    assert found[0].error is not None
    assert "--judge" in found[0].error.message


async def test_a_judge_without_an_address_is_told_which_flag_gives_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--judge-base-url"):
        await collected(ROWS, **options(tmp_path, judge="some-model"))


def test_the_judges_tokens_count_in_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tasks.jsonl").write_text(
        "".join(json.dumps({"id": str(n), "prompt": f"{n}"}) + "\n" for n in range(40))
    )
    Path("script.yaml").write_text("replies: [{match: '(.*)', reply: 'I say {1}'}]\n")
    command = ["collect", "tasks.jsonl", "--model", "scripted:script.yaml", "--out", "run", "--quiet"]
    command += ["--scorer", "tests.unit.grading.test_judges:graded", "--judge", JUDGE, "--concurrency", "1"]
    assert main([*command, "--budget-tokens", "2000"]) == 3
    capsys.readouterr()
    graded_first = sum(rollout.grade == "graded" for rollout in windrow.load("run"))
    assert 0 < graded_first < 40
    assert main([*command]) == 0
    stern = ["rescore", "run", "--scorer", "tests.unit.grading.test_judges:stern", "--judge-concurrency", "1"]
    assert main([*stern, "--budget-tokens", "150"]) == 3
    assert {tuple(rollout.scores) for rollout in windrow.load("run")} == {
        ("tests.unit.grading.test_judges:graded",)
    }
    assert main(stern) == 0
    assert {tuple(rollout.scores) for rollout in windrow.load("run")} == {
        ("tests.unit.grading.test_judges:stern",)
    }


async def test_stats_say_what_the_judges_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = [f"prices={{'{JUDGE}': {{prompt: 1000, completion: 0}}}}"]
    await collected(ROWS, **options(tmp_path), sets=prices)
    assert main(["stats", str(tmp_path / "run")]) == 0
    assert "400 prompt, 40 completion tokens, cost 0.4" in capsys.readouterr().out


async def test_show_prints_what_the_judge_was_asked_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [rollout] = await collected(ROWS[:1], **options(tmp_path))
    assert main(["show", str(tmp_path / "run"), rollout.id, "--judgements"]) == 0
    shown = capsys.readouterr().out
    assert "quality" in shown
    assert "[user] How good is: Say 0." in shown
    assert "→ Score: 7" in shown
    assert main(["show", str(tmp_path / "run"), "--judgements"]) == 2


def test_the_judges_key_reaches_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUDGES_KEY", "sk-judge-0123456789")
    Path("tasks.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    Path("script.yaml").write_text("replies: [{reply: 'ok'}]\n")
    with ModelServer("your key is sk-judge-0123456789") as server:
        command = ["collect", "tasks.jsonl", "--model", "scripted:script.yaml", "--out", "run"]
        command += ["--scorer", "tests.unit.grading.test_judges:graded", "--judge", "stub"]
        command += ["--judge-base-url", server.url, "--judge-api-key-env", "JUDGES_KEY"]
        assert main(command) == 1
    shown = capsys.readouterr()
    assert "sk-judge-0123456789" not in shown.out + shown.err
    for file in Path("run").rglob("*"):
        assert not file.is_file() or b"sk-judge-0123456789" not in file.read_bytes()


async def test_a_scorer_that_hangs_beside_its_judge_fails_in_its_own_time_which_a_slow_judge_takes_none_of(
    tmp_path: Path,
) -> None:
    async def hangs(task: Task, reply: str, ctx: Any) -> float:
        found: float = await ctx.ask([{"role": "user", "content": "slowly, please"}], score)
        if task.key == "t1":
            await for_ever()
        return found

    named = "scripted:tests.unit.grading.test_judges:slow_judge"
    limits = {"scorers": [hangs], "judge": named, "score_timeout": LIMIT_S}
    for row in ROWS[:2]:  # one after the other: what is too long for one is too long for both
        await collected([row], **options(tmp_path, **limits))
    one, other = windrow.load(tmp_path / "run")
    assert (one.grade, one.reward) == ("graded", 0.7)
    assert other.error is not None
    assert (other.grade, other.error.kind) == ("failed", "timeout")


async def slow_judge(request: Request) -> Completion:
    time_passes()
    await asyncio.sleep(0.01)  # whatever is due is done
    return Completion(content="Score: 7")


async def test_a_scorer_that_holds_up_the_loop_still_asks_its_judge(
    tmp_path: Path, stub: Callable[..., ModelServer]
) -> None:
    async def blocking(task: Task, reply: str, ctx: Any) -> float:
        time.sleep(0.26)  # noqa: ASYNC251
        found: float = await ctx.ask([{"role": "user", "content": reply}], lambda said: 1.0)
        return found

    told: list[str] = []
    more = {"judge": "stub", "judge_base_url": stub().url, "concurrency": 1, "on_warning": told.append}
    found = await collected(ROWS, **options(tmp_path, scorers=[blocking], **more))
    assert [rollout.reward for rollout in found] == [1.0] * 4
    assert any("asyncio.to_thread" in warning for warning in told)
