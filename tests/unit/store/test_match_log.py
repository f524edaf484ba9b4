"""The seats of an episode in the log: done together, run again together, and never half there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, lines
from tests.support.match_game import Tagged, echo, match, seat_of
from windrow import Request, Rollout
from windrow.errors import InfraError
from windrow.policies.scripted import CallablePolicy

ROWS = [{"id": "one", "seats": 3}, {"id": "two", "seats": 2}]


class Counting(CallablePolicy):
    def __init__(self) -> None:
        super().__init__(self._answer, name="test")
        self.asked: list[str] = []

    def _answer(self, request: Request) -> str:
        self.asked.append(request.id)
        return echo(request)


def named(rollouts: list[Rollout]) -> list[tuple[str, int, int, int | None]]:
    return [(r.task.key, r.sample, r.attempt, r.seat) for r in rollouts]


async def test_the_same_command_again_runs_nothing_and_a_larger_k_only_what_is_new(tmp_path: Path) -> None:
    first = await match(tmp_path / "run", tasks=ROWS)
    policy = Counting()
    assert await match(tmp_path / "run", policy, tasks=ROWS) == first
    assert policy.asked == []
    extended = await match(tmp_path / "run", policy, tasks=ROWS, samples=2)
    assert named(extended) == [
        *(("one", sample, 1, seat) for sample in range(2) for seat in range(3)),
        *(("two", sample, 1, seat) for sample in range(2) for seat in range(2)),
    ]
    assert set(policy.asked) == {rollout.id for rollout in extended if rollout.sample == 1}


@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("rest", ["nothing", "a piece of the next line"])
async def test_an_episode_that_a_power_cut_tore_is_set_aside_whole_and_run_again(
    tmp_path: Path, kept: int, rest: str
) -> None:
    run = tmp_path / "run"
    await match(run, tasks=[{"id": "before"}, ROWS[0]], concurrency=1)
    whole = lines(run)
    torn = b"".join(line + b"\n" for line in whole[2 : 2 + kept])
    torn += whole[2 + kept][:100] if rest != "nothing" else b""
    (run / "rollouts.jsonl").write_bytes(b"".join(line + b"\n" for line in whole[:2]) + torn)
    assert named(list(windrow.load(run))) == [("before", 0, 1, 0), ("before", 0, 1, 1)]

    warnings: list[str] = []
    policy = Counting()
    found = await match(run, policy, tasks=[{"id": "before"}, ROWS[0]], on_warning=warnings.append)
    assert named(found[2:]) == [("one", 0, 1, seat) for seat in range(3)]
    assert {rollout.id for rollout in found[2:]} == set(policy.asked)
    [aside] = (run / "torn").iterdir()
    assert aside.read_bytes() == torn
    assert [str(aside) in warning for warning in warnings] == [True]
    assert lines(run)[:2] == whole[:2]


@pytest.mark.filterwarnings("ignore:.*is left out")
async def test_an_episode_with_a_bad_line_in_the_middle_of_the_log_is_tried_again_as_a_whole(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    await match(run, tasks=ROWS, concurrency=1)
    whole = lines(run)
    whole[1] = b"{ not a rollout"
    (run / "rollouts.jsonl").write_bytes(b"".join(line + b"\n" for line in whole))
    found = await match(run, tasks=ROWS)
    assert named(list(windrow.load(run))) == [
        *(("one", 0, 2, seat) for seat in range(3)),
        *(("two", 0, 1, seat) for seat in range(2)),
    ]
    assert len(found) == 2 + 2 + 3


async def test_seats_of_two_attempts_never_mix_though_a_line_of_the_later_one_is_damaged(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    await match(run)
    await match(run, redo="seat=0")
    *kept, _ = lines(run)
    (run / "rollouts.jsonl").write_bytes(b"\n".join([*kept, b'{"damaged', b""]))
    with pytest.warns(UserWarning, match="is left out"):
        assert named(list(windrow.load(run))) == [("game", 0, 1, 0), ("game", 0, 1, 1)]


async def test_redo_of_one_seat_runs_the_whole_episode(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await match(run, tasks=ROWS)
    await match(run, tasks=ROWS, redo="seat=2")
    assert named(list(windrow.load(run))) == [
        *(("one", 0, 2, seat) for seat in range(3)),
        *(("two", 0, 1, seat) for seat in range(2)),
    ]


async def test_an_episode_that_failed_is_run_again_by_the_next_call(tmp_path: Path) -> None:
    def down(request: Request) -> str:
        if seat_of(request) == 1:
            raise InfraError("down")
        return echo(request)

    await match(tmp_path / "run", down)
    found = await match(tmp_path / "run")
    assert [(r.attempt, r.seat, r.status) for r in found] == [
        (1, 0, "failed"),
        (1, 1, "failed"),
        (2, 0, "completed"),
        (2, 1, "completed"),
    ]


async def test_a_group_has_every_seat_of_every_sample_also_those_of_earlier_calls(tmp_path: Path) -> None:
    options: dict[str, Any] = {"policy": answering(echo), "env": Tagged, "out": str(tmp_path / "run")}
    await match(tmp_path / "run", tasks=ROWS)
    found = [
        [(rollout.task.key, rollout.sample, rollout.seat) for rollout in group.rollouts]
        async for group in windrow.collect(ROWS, groups=True, samples=2, **options)
    ]
    assert sorted(found) == [
        [("one", sample, seat) for sample in range(2) for seat in range(3)],
        [("two", sample, seat) for sample in range(2) for seat in range(2)],
    ]


async def test_a_seat_whose_scorer_failed_is_graded_by_the_next_call_and_the_game_is_not_played_again(
    tmp_path: Path,
) -> None:
    def judge(task: Any, reply: str) -> float:
        if "seat 0" in reply and not fine:
            raise RuntimeError("down")
        return 1.0

    judge.after_commit = True  # type: ignore[attr-defined]
    fine: list[bool] = []
    before = await match(tmp_path / "run", scorers=[judge])
    assert [rollout.grade for rollout in before] == ["failed", "graded"]
    fine.append(True)
    policy = Counting()
    after = await match(tmp_path / "run", policy, scorers=[judge])
    assert [(rollout.grade, rollout.attempt) for rollout in after] == [("graded", 1), ("graded", 1)]
    assert policy.asked == []


async def test_progress_counts_episodes_and_a_failure_once(tmp_path: Path) -> None:
    def down(request: Request) -> str:
        if seat_of(request) == 1 and request.attempt == 1:
            raise InfraError("down", kind="down")
        return echo(request)

    seen: list[Any] = []
    await match(tmp_path / "run", down, samples=3, retries=1, on_progress=seen.append)
    last = seen[-1]
    assert (last.planned, last.settled, last.attempts, last.failed) == (3, 3, 6, 3)
    assert (last.failures, last.rewards, last.left) == ({"infra/down": 3}, 6, {"chat": 0})


async def test_a_budget_counts_the_tokens_of_every_seat(tmp_path: Path) -> None:
    found = await match(tmp_path / "run", samples=9, concurrency=1, budget_tokens=60)
    used = [r.usage.prompt_tokens + r.usage.completion_tokens for r in found]
    assert sum(used) >= 60 > sum(used[:-2])


async def test_run_examples_gives_every_seat(tmp_path: Path) -> None:
    rows = [{"id": "game", "seats": 3}]
    given = [
        (row["id"], rollout.seat)
        async for row, rollout in windrow.run_examples(rows, env=Tagged, policy=answering(echo))
    ]
    assert given == [("game", 0), ("game", 1), ("game", 2)]
