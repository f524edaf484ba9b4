"""Opponents: other policies in some of the seats, which the policy plays against and is never mixed up with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.exact_token_policy import ExactPolicy
from tests.support.match_game import Tagged, echo, seat_of
from windrow import Request, Rollout, export
from windrow.errors import InfraError, UsageError
from windrow.exports.tokens.drift import drift_of
from windrow.stats.metrics import measure
from windrow.stats.summary import summarise

pytestmark = pytest.mark.slow

ROBOT = "scripted:tests.unit.engine.test_opponents:robot"
AGAINST = f'{{"1": {{"model": "{ROBOT}", "sampling": {{"temperature": 0.5}}}}}}'


def robot(request: Request) -> str:
    return echo(request)


def faulty(request: Request) -> str:
    raise InfraError("down", kind="down")


async def against(
    run: Path, policy: Any = echo, *, opponents: str = AGAINST, sets: Any = (), **options: Any
) -> list[Rollout]:
    who = policy if hasattr(policy, "complete") else answering(policy)
    usual: dict[str, Any] = {"env": Tagged, "retries": 0, "call_retries": 0, **options}
    sets = [f"env.settings.opponents={opponents}", *sets]
    tasks = usual.pop("tasks", [{"id": "game"}])
    await collected(tasks, policy=who, out=str(run), sets=sets, **usual)
    return list(windrow.load(run, attempts="all"))


async def test_an_opponent_plays_its_seat_as_it_is_configured(tmp_path: Path) -> None:
    own, other = await against(tmp_path / "run", temperature=0.9)
    assert [(r.seat, r.agent, r.opponent) for r in (own, other)] == [
        (0, "chat", False),
        (1, "opponent", True),
    ]
    assert (own.policy.model, own.policy.sampling) == ("test", {"temperature": 0.9})
    assert (other.policy.model, other.policy.sampling) == (ROBOT, {"temperature": 0.5})
    assert {turn.role for turn in own.turns} == {"agent"}
    assert {turn.role for turn in other.turns} == {"auxiliary"}
    assert (own.reward, other.reward) == (2.5, 4.5)


@pytest.mark.parametrize(
    ("shift", "row", "seats"),
    [
        ("0", {}, [0, 0, 0, 0]),
        ("1", {}, [1, 1, 1, 1]),
        ("sample", {}, [0, 1, 0, 1]),
        ("sample", {"seat_shift": 1}, [1, 1, 1, 1]),
    ],
)
async def test_the_policys_seat_is_shifted_by_a_number_by_the_sample_or_by_the_row(
    tmp_path: Path, shift: str, row: Any, seats: list[int]
) -> None:
    found = await against(
        tmp_path / "run", samples=4, tasks=[{"id": "game", **row}], sets=[f"env.settings.seat_shift={shift}"]
    )
    assert [r.seat for r in found if not r.opponent] == seats
    assert [r.seat for r in found if r.opponent] == [1 - seat for seat in seats]


async def test_an_opponent_that_fails_fails_the_episode(tmp_path: Path) -> None:
    opponents = AGAINST.replace(":robot", ":faulty").replace('"sampling"', '"call_retries": 0, "sampling"')
    own, other = await against(tmp_path / "run", opponents=opponents, retries=0)
    assert [r.error and r.error.kind for r in (own, other)] == ["seat", "down"]


async def test_an_opponent_is_part_of_the_behaviour_and_where_it_is_served_is_not(tmp_path: Path) -> None:
    await against(tmp_path / "run")
    with pytest.raises(UsageError, match=r"opponent_1.*temperature"):
        await against(tmp_path / "run", opponents=AGAINST.replace("0.5", "0.6"))
    with pytest.raises(UsageError, match="seat_shift"):
        await against(tmp_path / "run", sets=["env.settings.seat_shift=1"])
    await against(tmp_path / "run", opponents=AGAINST.replace('"sampling"', '"backoff_s": 2, "sampling"'))


async def test_opponents_are_in_no_mean_and_no_pass_rate_of_the_policys(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await against(run, samples=2, scorers=[flat])
    stats = summarise(run, pass_reward=5.0)
    assert stats.reward is not None
    assert (stats.reward.n, stats.reward.value) == (2, 2.5 + 2.0)
    assert (stats.rollouts, stats.episodes, stats.planned, stats.opponents) == (2, 2, 2, 2)
    assert stats.pass_at == {"1": 0.0, "2": 0.0}
    assert stats.usage == stats.opponent_usage
    entries = {entry.agent: entry for entry in measure(run).agents}
    assert entries["chat"].key_metrics["mean/reward"] == 4.5
    assert entries["opponent"].key_metrics["n/reward"] == 2
    assert [entry.key_metrics["coverage"] for entry in entries.values()] == [1.0, 1.0]


def flat(task: Any, reply: str) -> float:
    return 2.0


@pytest.mark.parametrize("late", [False, True])
async def test_the_scorers_judge_the_policy_and_not_its_opponents(tmp_path: Path, late: bool) -> None:
    def judge(task: Any, reply: str) -> float:
        judged.append(reply)
        return 2.0

    judged: list[str] = []
    judge.after_commit = late  # type: ignore[attr-defined]
    run = tmp_path / "run"
    await against(run, samples=2, scorers=[judge])
    assert len(judged) == 2
    found = list(windrow.load(run))
    assert [(r.grade, r.reward) for r in found if not r.opponent] == [("graded", 2.5 + 2.0)] * 2
    assert [(r.grade, r.reward) for r in found if r.opponent] == [("graded", 4.5)] * 2
    await against(run, samples=2, scorers=[judge])
    assert len(judged) == 2


async def test_opponents_are_in_no_group_and_are_not_rescored(tmp_path: Path) -> None:
    options: dict[str, Any] = {"policy": answering(echo), "env": Tagged, "out": str(tmp_path / "run")}
    sets = [f"env.settings.opponents={AGAINST}"]
    groups = [
        [rollout.seat for rollout in group.rollouts]
        async for group in windrow.collect([{"id": "a"}], groups=True, samples=2, sets=sets, **options)
    ]
    assert groups == [[0, 0]]
    done = await windrow.rescore(tmp_path / "run", scorers=["tests.unit.engine.test_opponents:flat"])
    assert (done.judged, done.whole) == (2, True)
    assert [(r.opponent, r.reward) for r in windrow.load(tmp_path / "run")] == [(False, 4.5), (True, 4.5)] * 2


@pytest.mark.parametrize("to", ["sft", "trl", "parquet"])
async def test_exports_leave_opponents_out_and_say_so(tmp_path: Path, to: str) -> None:
    run, out = tmp_path / "run", tmp_path / "rows"
    await against(
        run, ExactPolicy(echo), samples=2, capture="tokens", sets=["env.settings.seat_shift=sample"]
    )
    report = export(run, to=to, out=out)
    assert (report.exported, report.left_out) == (2, {"played by an opponent": 2})
    if to != "parquet":
        own = {rollout.id for rollout in windrow.load(run) if not rollout.opponent}
        assert {json.loads(line)["rollout_id"] for line in out.read_bytes().splitlines()} == own


async def test_advantages_are_over_the_policys_rewards_alone(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "rows"
    options: dict[str, Any] = {"tasks": [{"seats": 3}], "sets": ["env.settings.seat_shift=sample"]}
    found = await against(run, ExactPolicy(echo), samples=2, capture="tokens", **options)
    own = [[r.reward for r in found if r.sample == sample and not r.opponent] for sample in range(2)]
    assert own == [[3.0, 7.0], [3.0, 5.0]]
    export(run, to="trl", out=out, advantages="centered")
    rows = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [row["advantage"] for row in rows] == [-1.5, 2.5, -1.5, 0.5]


async def test_the_tokens_of_opponents_are_not_trained(tmp_path: Path) -> None:
    await against(tmp_path / "run", ExactPolicy(echo), capture="tokens")
    drift = drift_of(windrow.load(tmp_path / "run"))
    assert (drift.exact, drift.trained) == (1, drift.sampled)


async def test_a_price_and_a_budget_hold_for_opponents_too(tmp_path: Path) -> None:
    prices = f'prices={{"{ROBOT}": {{"prompt": 1000000, "completion": 0}}, "test": {{"prompt": 0, "completion": 0}}}}'
    own, other = await against(tmp_path / "run", sets=[prices])
    assert (own.usage.cost, other.usage.cost) == (0.0, float(other.usage.prompt_tokens))
    with pytest.raises(UsageError, match="--budget-cost needs the price of 'scripted:"):
        await against(
            tmp_path / "more", budget_cost=1, sets=['prices={"test": {"prompt": 0, "completion": 0}}']
        )


async def test_no_seed_of_the_run_is_sent_to_an_opponent(tmp_path: Path) -> None:
    own, other = await against(tmp_path / "run", seeds="id")
    assert [turn.sampling for turn in own.turns] == [{"seed": own.seed}] * 2
    assert [turn.sampling for turn in other.turns] == [None] * 2


async def test_an_agent_of_the_run_drives_the_policys_seats_alone(tmp_path: Path) -> None:
    async def driver(session: Any) -> None:
        while not session.ended:
            session.add([{"role": "user", "content": "think"}])
            reply = await session.complete()
            await session.step(reply)

    own, other = await against(tmp_path / "run", agent=driver)
    assert [message.text == "think" for message in own.messages].count(True) == 2
    assert "think" not in [message.text for message in other.messages]


@pytest.mark.parametrize(
    ("opponents", "row", "message"),
    [
        ('{"2": {"model": "m"}}', {}, "'opponents' names seat 2; the seats are 0 to 1"),
        (f'{{"0": {{"model": "{ROBOT}"}}, "1": {{"model": "{ROBOT}"}}}}', {}, "one must be the policy's"),
        ('{"x": {"model": "m"}}', {}, "Expected `int`, got `str`"),
        ('{"1": {"modl": "m"}}', {}, "unknown field `modl`"),
        (AGAINST, {"seat_shift": "sample"}, "'seat_shift' must be a number, found 'sample'"),
    ],
)
async def test_a_seating_that_cannot_be_is_refused_before_the_run(
    tmp_path: Path, opponents: str, row: Any, message: str
) -> None:
    opponents = opponents.replace('"m"', f'"{ROBOT}"')
    with pytest.raises(UsageError) as refused:
        await against(tmp_path / "run", opponents=opponents, tasks=[{"id": "game", **row}])
    assert message in str(refused.value)


async def test_a_game_is_given_its_own_settings_and_not_its_seating(tmp_path: Path) -> None:
    class Strict(Tagged):
        @classmethod
        def check_settings(cls, settings: Any) -> None:
            seen.append(dict(settings))

        async def reset(self, task: Any) -> None:
            seen.append(dict(self.settings))
            await super().reset(task)

    seen: list[Any] = []
    await against(tmp_path / "run", env=Strict, sets=["env.settings.together=true"])
    assert seen == [{"together": True}] * 2


async def test_seats_of_opponents_never_mix_with_the_policys(tmp_path: Path) -> None:
    def answer(request: Request) -> str:
        assert seat_of(request) in (0, 2)
        return echo(request)

    tasks = [{"id": f"game {n}", "seats": 3} for n in range(10)]
    found = await against(tmp_path / "run", answer, tasks=tasks, samples=3, concurrency=30)
    assert {(r.seat, r.opponent, r.status) for r in found} == {
        (0, False, "completed"),
        (1, True, "completed"),
        (2, False, "completed"),
    }
