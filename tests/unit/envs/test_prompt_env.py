"""`prompt`: one prompt, one reply, nothing graded unless a scorer is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import windrow
from tests.support.collect_helpers import answering, collected, single
from windrow import Completion
from windrow.cli.main import main
from windrow.errors import InfraError, UsageError

ROW = {"prompt": "What is 2 + 2?", "answer": "4"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where runs go that are given no place."""
    monkeypatch.chdir(tmp_path)


async def test_one_reply_answers_and_nothing_is_graded_also_where_the_row_has_an_answer(tmp_path) -> None:
    rows = [
        ROW,
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]},
    ]
    rollouts = await collected(rows, env="prompt", policy=answering("4"), out=str(tmp_path / "run"))
    assert len(rollouts) == 2
    for rollout in windrow.load(tmp_path / "run"):
        assert (rollout.env, rollout.status, rollout.stop) == ("prompt", "completed", "answered")
        assert (rollout.grade, rollout.reward, rollout.scores, rollout.reply) == ("none", None, {}, "4")
        assert len(rollout.turns) == 1
    roles = [[message.role for message in rollout.messages] for rollout in windrow.load(tmp_path / "run")]
    assert roles == [["user", "assistant"], ["system", "user", "assistant"]]
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["grading"] is None


async def test_a_scorer_that_is_named_grades_all_the_same() -> None:
    rollout = await single([ROW], env="prompt", policy=answering("4"), scorers=["exact"])
    assert (rollout.stop, rollout.grade, rollout.reward) == ("answered", "graded", 1.0)


async def test_a_reply_that_is_cut_off_is_truncated_and_still_not_graded() -> None:
    cut = answering(lambda request: Completion(content="4 and", finish="length"))
    rollout = await single([ROW], env="prompt", policy=cut)
    assert (rollout.status, rollout.stop, rollout.grade) == ("truncated", "length", "none")
    assert (rollout.reward, rollout.reply) == (None, "4 and")


async def test_a_call_that_fails_is_a_failed_rollout_that_is_run_again(tmp_path) -> None:
    down = [True]

    def answer(request: windrow.Request) -> str:
        if down:
            raise InfraError("it is down", kind="http_503")
        return "4"

    options = {"env": "prompt", "policy": answering(answer), "out": str(tmp_path / "run"), "call_retries": 0}
    rollout = await single([ROW], **options)
    assert rollout.error is not None
    assert (rollout.status, rollout.error.owner, rollout.grade) == ("failed", "infra", "none")
    assert rollout.turns[0].writes is None
    down.clear()
    again = await single([ROW], **options)
    assert (again.attempt, again.stop, again.grade) == (2, "answered", "none")


async def test_a_prompt_template_makes_the_prompt_of_any_row(tmp_path: Path) -> None:
    template = tmp_path / "ask.yaml"
    template.write_text("user: Explain {{ word }}.\n")
    rollout = await single(
        [{"word": "hay"}], env="prompt", policy=answering("Dry grass."), prompt=str(template)
    )
    assert [message.text for message in rollout.messages] == ["Explain hay.", "Dry grass."]


async def test_a_row_may_name_it_and_is_not_graded_beside_rows_that_are() -> None:
    rows = [ROW, {"prompt": "Say anything.", "env": "prompt"}]
    rollouts = await collected(rows, policy=answering("4"))
    assert {rollout.env: (rollout.grade, rollout.reward) for rollout in rollouts} == {
        "problem": ("graded", 1.0),
        "prompt": ("none", None),
    }


async def test_what_it_would_ignore_is_refused() -> None:
    with pytest.raises(UsageError, match="'prompt' has no setting 'turns'"):
        await single([ROW], env="prompt", policy=answering("4"), sets=["env.settings.turns=2"])
    with pytest.raises(UsageError, match="neither 'prompt' nor 'messages'"):
        await single([{"question": "?"}], env="prompt", policy=answering("4"))


def test_the_command_is_done_when_every_prompt_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tasks.jsonl").write_text(json.dumps(ROW) + "\n")
    Path("script.yaml").write_text("replies: [{reply: four}]\n")
    command = ["collect", "tasks.jsonl", "--env", "prompt", "--model", "scripted:script.yaml", "--out", "run"]
    assert main(command) == 0
    assert main([*command, "--tool", "os:getcwd"]) == 2
    assert "env 'prompt' ends with the first reply" in capsys.readouterr().err
