"""What an environment may do beside answering: act on what a reply says in words, and choose what is shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.image_env import Pictured
from tests.support.scripted_envs import played, returning, world
from windrow import Env, Observation, Request, Step
from windrow.cli.main import main
from windrow.envs import Act
from windrow.records import encode


class Pages(Env):
    """Turns a page at every reply, and shows the opening and the last two messages."""

    version = 1

    async def reset(self, task: Any) -> Observation:
        self.page = 0
        return Observation([{"role": "user", "content": "Read."}, {"role": "user", "content": "page 0"}])

    async def step(self, reply: Any, results: Any) -> Step:
        self.page += 1
        error = "the book is shut" if reply.text == "back" else None
        turned = Act(name="turn", arguments={"to": [self.page]}, started_at=1.5, seconds=0.25, error=error)
        return Step(
            messages=[{"role": "user", "content": f"page {self.page}"}], acts=[turned], done=self.page == 4
        )

    def window(self, messages: Any) -> Any:
        return self.settings.get("window") or ((0, 1), (len(messages) - 1, len(messages)))


async def test_an_act_is_a_tool_call_of_its_turn_and_the_steps_message_its_result(tmp_path: Path) -> None:
    said = iter(["on", "back", "on", "on"])
    rollout = await played(Pages, tmp_path / "run", policy=lambda request: next(said))
    calls = [call for turn in rollout.turns for call in turn.tool_calls]
    assert [(call.id, call.name, call.arguments) for call in calls] == [
        (f"act-{number}", "turn", {"to": [number + 1]}) for number in range(4)
    ]
    assert [rollout.messages[call.result].text for call in calls] == [
        "page 1",
        "page 2",
        "page 3",
        "page 4",
    ]
    assert [(call.failed, call.error) for call in calls[:2]] == [(False, None), (True, "the book is shut")]
    assert {(call.started_at, call.seconds) for call in calls} == {(1.5, 0.25)}
    assert [turn.tools_seconds for turn in rollout.turns] == [0.25] * 4
    assert rollout.tool_use["turn"].calls == 4
    assert rollout.tools == ()


async def test_acts_count_as_tool_calls_and_the_limit_ends_the_episode_when_it_is_reached(
    tmp_path: Path,
) -> None:
    rollout = await played(Pages, tmp_path / "run", max_tool_calls=2)
    assert (rollout.status, rollout.stop, len(rollout.turns)) == ("truncated", "max_tool_calls", 2)
    whole = await played(Pages, tmp_path / "whole", max_tool_calls=4)
    assert (whole.status, whole.stop) == ("completed", "env_done")


async def test_a_window_is_what_is_sent_and_reads_are_its_ranges(tmp_path: Path) -> None:
    sent: list[Request] = []

    def answer(request: Request) -> str:
        sent.append(request)
        return "on"

    rollout = await played(Pages, tmp_path / "run", policy=answer)
    assert [turn.reads for turn in rollout.turns] == [
        ((0, 1), (1, 2)),
        ((0, 1), (3, 4)),
        ((0, 1), (5, 6)),
        ((0, 1), (7, 8)),
    ]
    for request, turn in zip(sent, rollout.turns, strict=True):
        read = tuple(message for start, stop in turn.reads for message in rollout.messages[start:stop])
        assert encode(read) == encode(request.messages)
    assert len(rollout.messages) == 2 + 2 * 4


async def test_a_window_that_is_none_is_the_environments_error(tmp_path: Path) -> None:
    for number, window in enumerate([[[0, 9]], [[1, 1]], [[-1, 1]]]):
        rollout = await played(Pages, tmp_path / f"{number}", sets=[f"env.settings.window={window}"])
        assert rollout.error is not None
        assert (rollout.error.owner, rollout.status) == ("env", "failed")
        assert "no ranges of 2 messages" in rollout.error.message


async def test_an_act_that_nobody_is_told_of_is_the_environments_error(tmp_path: Path) -> None:
    silent = Step(acts=[Act(name="turn", arguments={}, started_at=0.0, seconds=0.0)])
    rollout = await played(world([], step=returning(silent)), tmp_path / "run")
    assert rollout.error is not None
    assert (rollout.error.owner, rollout.status) == ("env", "failed")
    assert "without a message" in rollout.error.message


async def test_show_prints_what_was_done_on_a_replys_words_and_where_its_images_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    acted = await played(Pages, tmp_path / "acts", policy="on")
    seen = await played(Pictured, tmp_path / "images", policy="ok")
    assert main(["show", str(tmp_path / "acts"), acted.id]) == 0
    assert capsys.readouterr().out.count('→ turn({"to":[') == 4
    assert main(["show", str(tmp_path / "images"), seen.id]) == 0
    paths = re.findall(r"^\[image/png, 8 × 6\] (.*)$", capsys.readouterr().out, re.M)
    assert len(paths) == 2
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in paths)
