"""`trl-env:module:Class`: what TRL's `environment_factory` takes, as an environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import answering, collected, single
from tests.support.trl_env import Counter
from windrow import Completion, Request
from windrow.errors import UsageError
from windrow.records import Call

MODULE = "tests.support.trl_env"
ROW: dict[str, Any] = {"prompt": "Go.", "goal": 4}


def counting(request: Request) -> Completion | str:
    if request.turn == 2:
        return "done"
    call = Call(id=str(request.turn), name="add", arguments=json.dumps({"step": 1 + request.turn}))
    return Completion(content=None, tool_calls=(call,))


async def test_its_methods_are_tools_its_reset_tells_and_its_reward_counts(tmp_path: Path) -> None:
    Counter.closed.clear()
    rollout = await single(
        [ROW], env=f"trl-env:{MODULE}:Counter", policy=answering(counting), out=str(tmp_path / "run")
    )
    assert rollout.messages[0].text == "Go. Count to 4."
    assert [tool["name"] for tool in rollout.tools] == ["add"]
    assert [message.text for message in rollout.messages if message.role == "tool"] == ["1", "3"]
    assert (rollout.stop, rollout.reward, rollout.scores["Counter"].weight) == ("answered", 0.75, 1.0)
    assert Counter.closed == [3]


async def test_each_sample_has_an_instance_of_its_own(tmp_path: Path) -> None:
    rollouts = await collected(
        [ROW],
        env=f"trl-env:{MODULE}:Counter",
        policy=answering(counting),
        samples=8,
        out=str(tmp_path / "run"),
    )
    assert [rollout.reward for rollout in rollouts] == [0.75] * 8


async def test_an_environment_without_a_reward_leaves_it_to_scorers(tmp_path: Path) -> None:
    row = {"prompt": "2+2", "answer": "4"}
    rollout = await single(
        [row],
        env=f"trl-env:{MODULE}:Silent",
        policy=answering("4"),
        scorers=["exact"],
        out=str(tmp_path / "run"),
    )
    assert (rollout.messages[0].text, rollout.tools, rollout.reward) == ("2+2", (), 1.0)


@pytest.mark.parametrize(
    ("env", "said"),
    [(f"trl-env:{MODULE}:Absent", "has no 'Absent'"), ("trl-env", "write --env trl-env:MODULE:CLASS")],
)
async def test_what_cannot_be_played_is_refused_before_the_run(env: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        await collected([ROW], env=env, policy=answering("x"), out=str(tmp_path / "run"))


async def test_a_row_cannot_name_the_class(tmp_path: Path) -> None:
    row = {**ROW, "env": f"trl-env:{MODULE}:Counter"}
    with pytest.raises(UsageError, match="rows are data"):
        await collected([row], policy=answering("x"), out=str(tmp_path / "run"))
