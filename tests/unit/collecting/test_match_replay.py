"""`windrow replay` and `windrow show` of a seat: the whole episode is played again, and the others are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.match_game import Tagged, echo, match, seat_of
from windrow import Completion, Request, Rollout, Step
from windrow.cli.main import main
from windrow.collecting.replay import Replay, replay
from windrow.errors import InfraError, UsageError

ROBOT = '{"1": {"model": "scripted:tests.support.match_game:echo"}}'


class Drifting(Tagged):
    drift: str | None = None

    async def act(self, replies: Any) -> Any:
        steps = dict(await super().act(replies))
        if self.drift == "reward":
            steps[1] = Step(reward=7.0)
        return steps


async def replayed(run: Path, rollout: Rollout, monkeypatch: Any, drift: str | None = None) -> Replay:
    monkeypatch.setattr(Drifting, "drift", drift)
    return await replay(run, rollout)


@pytest.mark.parametrize("settings", [{}, {"together": True}, {"opponents": ROBOT}], ids=str)
async def test_any_seat_replays_the_whole_episode(tmp_path: Path, monkeypatch: Any, settings: Any) -> None:
    run = tmp_path / "run"
    for rollout in await match(run, env=Drifting, settings=settings):
        same = await replayed(run, rollout, monkeypatch)
        assert same.differences == ()
        assert (same.replayed.id, same.replayed.reward) == (rollout.id, rollout.reward)
        other = await replayed(run, rollout, monkeypatch, "reward")
        assert {difference.path.split(":")[0] for difference in other.differences} == {"seat 1"}


async def test_an_episode_in_which_a_seat_was_cut_off_replays(tmp_path: Path, monkeypatch: Any) -> None:
    def cut(request: Request) -> Any:
        return Completion(content="and", finish="length") if seat_of(request) else echo(request)

    found = await match(tmp_path / "run", cut, env=Drifting)
    assert [rollout.status for rollout in found] == ["completed", "truncated"]
    assert (await replayed(tmp_path / "run", found[0], monkeypatch)).differences == ()


async def test_a_failed_episode_replays_as_far_as_it_went(tmp_path: Path, monkeypatch: Any) -> None:
    def down(request: Request) -> str:
        if seat_of(request) == 1 and request.turn == 1:
            raise InfraError("down")
        return echo(request)

    for rollout in await match(tmp_path / "run", down, env=Drifting):
        assert (await replayed(tmp_path / "run", rollout, monkeypatch)).differences == ()


async def test_an_episode_of_which_a_seat_is_missing_is_not_replayed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    one, _ = await match(run, env=Drifting)
    log = run / "rollouts.jsonl"
    log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(UsageError, match="1 of the 2 seats of episode"):
        await replay(run, one)


async def test_show_names_the_episode_the_seat_and_the_others(tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    own, other = await match(run, settings={"opponents": ROBOT})
    assert main(["show", str(run), own.id]) == 0
    said = capsys.readouterr().out
    assert f"seat    0 of 2, played by chat, episode {own.episode}\n" in said
    assert f"        seat 1 is {other.id}\n" in said
    assert main(["show", str(run)]) == 0
    assert [line.split()[2:5] for line in capsys.readouterr().out.splitlines()] == [
        ["seat", "0", "completed"],
        ["seat", "1*", "completed"],
    ]


async def test_stats_count_episodes_and_opponents_apart(tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    await match(run, settings={"opponents": ROBOT}, samples=3)
    assert main(["stats", str(run)]) == 0
    said = capsys.readouterr().out
    assert "episodes   3 done of 3 planned\n" in said
    assert "rollouts   3 done, 1 tasks, 6 attempts\n" in said
    assert "opponents  3 rollouts, " in said
    assert list(windrow.load(run))[1].opponent
