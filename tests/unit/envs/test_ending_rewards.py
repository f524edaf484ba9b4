"""Rewards for ends that no scorer sees: off by default, added where they are set, in every environment that comes along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import answering, single
from windrow import Completion
from windrow.errors import ContextOverflow, UsageError

ROW = {"prompt": "2+2", "answer": "4"}
CUT = Completion(content="4", finish="length")
BROKEN = Completion(content="<broken>", malformed=("not valid JSON",))


def overflowing(request: Any) -> Completion:
    raise ContextOverflow("too long")


ENDS = [
    ("failed_parse_reward", lambda request: BROKEN, "parse_error"),
    ("context_overflow_reward", overflowing, "context_overflow"),
    ("cut_reply_reward", lambda request: CUT, "length"),
]


@pytest.mark.parametrize("env", ["problem", "tool"])
@pytest.mark.parametrize(("setting", "reply", "stop"), ENDS)
async def test_an_end_has_the_reward_that_is_set_for_it(
    env: str, setting: str, reply: Any, stop: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"env": env, "policy": answering(reply), "scorers": ["exact"]}
    before = await single([ROW], out=str(tmp_path / "off"), **given)
    assert before.stop == stop
    assert setting not in before.scores
    after = await single([ROW], out=str(tmp_path / "on"), sets=[f"env.settings.{setting}=-0.25"], **given)
    assert after.scores[setting].value == -0.25
    assert before.reward is not None
    assert after.reward == before.reward - 0.25


async def test_an_ordinary_end_has_none_and_a_prompt_without_scorers_stays_ungraded(tmp_path: Path) -> None:
    sets = [f"env.settings.{setting}=-1" for setting, _, _ in ENDS]
    graded = await single([ROW], env="problem", policy=answering("4"), sets=sets, out=str(tmp_path / "a"))
    assert graded.reward == 1.0
    assert not set(graded.scores) & {setting for setting, _, _ in ENDS}
    plain = await single([ROW], env="prompt", policy=answering("4"), sets=sets, out=str(tmp_path / "b"))
    assert (plain.grade, plain.reward) == ("none", None)


async def test_one_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'cut_reply_reward' must be a number, found 'much'"):
        await single(
            [ROW],
            env="problem",
            policy=answering("4"),
            sets=["env.settings.cut_reply_reward=much"],
            out=str(tmp_path / "run"),
        )
