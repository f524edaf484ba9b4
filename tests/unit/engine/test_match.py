"""A match: one game, a rollout a seat, whatever happens to any of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.exact_token_policy import ExactPolicy, numbers
from tests.support.fake_clock import LIMIT_S, for_ever
from tests.support.match_game import TAG, Tagged, closings, echo, match, said, seat_of, shuffled
from windrow import Completion, Match, Observation, Request, Step, Tool
from windrow.errors import InfraError, PolicyError
from windrow.identity import episode_id, rollout_id, seed_of
from windrow.records import Call
from windrow.util.token_contexts import prompt_ids

pytestmark = pytest.mark.slow

KINDS = pytest.mark.parametrize("together", [False, True], ids=["in turns", "at once"])


@KINDS
async def test_every_seat_has_its_own_conversation_turns_and_rewards(tmp_path: Path, together: bool) -> None:
    one, two = await match(tmp_path / "run", settings={"together": together})
    for seat, rollout in enumerate((one, two)):
        told = [f"<{rollout.episode} seat {seat} round {number}>" for number in range(2)]
        assert said(rollout.messages) == [told[0], f"{told[0]} said", told[1], f"{told[1]} said"]
        assert [message.origin for message in rollout.messages] == ["task", "policy", "env", "policy"]
        assert [turn.reads for turn in rollout.turns] == [((0, 1),), ((0, 3),)]
        assert (rollout.status, rollout.stop, rollout.grade) == ("completed", "env_done", "graded")
        assert rollout.state == {"seat": seat, "round": 1}
        assert rollout.metrics["replies"] == 2
    assert (one.reward, two.reward) == (2 * (1 + 0.25), 2 * (2 + 0.25))


async def test_what_another_seats_move_brings_is_added_to_the_last_turn(tmp_path: Path) -> None:
    one, two = await match(tmp_path / "run")
    assert [turn.reward for turn in one.turns] == [1.25, 1.25]
    assert [turn.reward for turn in two.turns] == [2.25, 2.0]  # the first move was made before it had a turn
    assert two.scores["reward"].value == 0.25


async def test_seats_are_named_by_their_episode_and_each_has_a_seed_of_its_own(tmp_path: Path) -> None:
    found = await match(tmp_path / "run", samples=2)
    for number, rollout in enumerate(found):
        sample, seat = divmod(number, 2)
        assert (rollout.sample, rollout.seat, rollout.seats) == (sample, seat, 2)
        assert rollout.id == rollout_id(rollout.group, sample, seat)
        assert rollout.episode == episode_id(rollout.group, sample)
        assert rollout.seed == seed_of(rollout.id, 1)


@KINDS
async def test_seats_never_mix_whatever_the_order_of_replies(tmp_path: Path, together: bool) -> None:
    rows = [{"id": f"game {n}", "seats": 2 + n % 3, "rounds": 3} for n in range(30)]
    options: dict[str, Any] = {"tasks": rows, "samples": 3, "concurrency": 50}
    found = await match(tmp_path / "run", shuffled(), settings={"together": together}, **options)
    assert len(found) == 3 * sum(row["seats"] for row in rows)
    for rollout in found:
        own = {f"<{rollout.episode} seat {rollout.seat} round {number}>" for number in range(3)}
        assert {tag[0] for text in said(rollout.messages) if (tag := TAG.search(text))} == own
        assert len(rollout.turns) == 3
        assert rollout.seat is not None
        assert rollout.seats is not None
        assert rollout.reward == 3 * (1 + rollout.seat) + 3 * 0.25 * (rollout.seats - 1)


async def test_the_tokens_of_seats_never_mix(tmp_path: Path) -> None:
    policy = ExactPolicy(echo)
    found = await match(tmp_path / "run", policy, samples=20, concurrency=20, capture="tokens")
    for rollout in found:
        prompt = "".join(map(chr, numbers(prompt_ids(rollout.turns, 1))))
        assert {tag.group(1, 2) for tag in TAG.finditer(prompt)} == {(rollout.episode, str(rollout.seat))}


async def test_the_lines_of_an_episode_stand_together_in_the_order_of_its_seats(tmp_path: Path) -> None:
    options: dict[str, Any] = {"tasks": [{"seats": 3}], "samples": 20, "concurrency": 20}
    await match(tmp_path / "run", shuffled(), **options)
    log = (tmp_path / "run" / "rollouts.jsonl").read_bytes().splitlines()
    lines = [msgspec.json.decode(line) for line in log]
    assert [line["seat"] for line in lines] == [0, 1, 2] * 20
    assert all(len({line["episode"] for line in lines[n : n + 3]}) == 1 for n in range(0, 60, 3))


async def test_every_seat_is_given_out_and_the_game_is_closed_once(tmp_path: Path) -> None:
    closings.clear()
    given = await collected([{"id": "game"}], env=Tagged, policy=answering(echo), out=str(tmp_path / "run"))
    assert [rollout.seat for rollout in given] == [0, 1]
    assert closings == [given[0].episode]


# -- what ends badly


@pytest.mark.parametrize("place", ["reset", "observe 1", "act 1"])
async def test_a_crash_of_the_game_fails_every_seat(tmp_path: Path, place: str) -> None:
    closings.clear()
    found = await match(tmp_path / "run", settings={"crash": place})
    for rollout in found:
        assert (rollout.status, rollout.stop, rollout.reward) == ("failed", "error", None)
        assert rollout.error is not None
        assert (rollout.error.owner, rollout.error.kind) == ("env", "RuntimeError")
        assert rollout.error.traceback
    assert closings == [found[0].episode]


async def broken(request: Request) -> str:
    if seat_of(request) == 1 and request.attempt == 1 and request.turn == 1:
        raise InfraError("down", kind="http_503")
    return echo(request)


@KINDS
async def test_a_call_that_fails_for_one_seat_fails_the_episode_which_is_tried_again_as_a_whole(
    tmp_path: Path, together: bool
) -> None:
    found = await match(tmp_path / "run", broken, settings={"together": together}, retries=1)
    assert [(rollout.attempt, rollout.seat, rollout.status) for rollout in found] == [
        (1, 0, "failed"),
        (1, 1, "failed"),
        (2, 0, "completed"),
        (2, 1, "completed"),
    ]
    errors = [rollout.error for rollout in found[:2]]
    assert [(error.owner, error.kind, error.retryable) for error in errors if error] == [
        ("infra", "seat", True),
        ("infra", "http_503", True),
    ]
    assert errors[0] is not None
    assert errors[0].message == "seat 1 failed, and with it the episode: http_503: down"
    assert len(found[1].turns) == 2  # what it had come to is kept
    assert [rollout.attempt for rollout in windrow.load(tmp_path / "run")] == [2, 2]


async def test_a_refusal_of_one_seat_is_final_for_all(tmp_path: Path) -> None:
    def refused(request: Request) -> str:
        if seat_of(request) == 0:
            raise PolicyError("no", kind="http_400")
        return echo(request)

    found = await match(tmp_path / "run", refused, retries=3)
    assert [(rollout.attempt, rollout.status) for rollout in found] == [(1, "failed"), (1, "failed")]
    again = await match(tmp_path / "run", refused, retries=3)
    assert again == found


async def leaving(session: Any) -> None:
    reply = await session.complete()
    await session.step(reply)
    if seat_of_text(reply.text) == 1:
        raise ZeroDivisionError("gone")
    while not session.ended:
        reply = await session.complete()
        await session.step(reply)


def seat_of_text(text: str) -> int:
    found = TAG.search(text)
    assert found is not None
    return int(found[2])


async def test_a_crash_of_one_seats_agent_strands_nobody(tmp_path: Path) -> None:
    one, two = await match(tmp_path / "run", agent=leaving)
    assert [rollout.error and rollout.error.kind for rollout in (one, two)] == ["seat", "ZeroDivisionError"]


class Exits(Tagged):
    async def act(self, replies: Any) -> Any:
        raise SystemExit("gone")


async def test_a_game_that_exits_ends_its_episode_and_not_the_run(tmp_path: Path) -> None:
    found = await match(tmp_path / "run", env=Exits, tasks=[{"id": "one"}, {"id": "two"}])
    assert [rollout.error and rollout.error.kind for rollout in found] == ["SystemExit"] * 4


class Cancels(Tagged):
    async def act(self, replies: Any) -> Any:
        raise asyncio.CancelledError


async def test_a_game_that_lets_a_cancellation_out_fails_its_episode_and_the_next_one_is_played(
    tmp_path: Path,
) -> None:
    tasks = [{"id": "one"}, {"id": "two"}]
    found = await match(tmp_path / "run", env=Cancels, tasks=tasks, concurrency=1)
    assert [rollout.error and rollout.error.kind for rollout in found] == ["CancelledError"] * 4


async def test_a_stop_after_an_episode_that_failed_records_what_was_running(tmp_path: Path) -> None:
    """Where the task that plays were left cancelled by the failure, the stop would not be known for one."""
    arrived, tried = asyncio.Event(), 0

    async def answer(request: Request) -> str:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise InfraError("down", kind="http_503")
        arrived.set()
        await asyncio.Event().wait()
        return ""

    consumer = asyncio.create_task(match(tmp_path / "run", answer, retries=1))
    await asyncio.wait_for(arrived.wait(), 30)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    rollouts = list(windrow.load(tmp_path / "run", attempts="all"))
    assert [(r.attempt, r.seat, r.status) for r in rollouts] == [
        (1, 0, "failed"),
        (1, 1, "failed"),
        (2, 0, "cancelled"),
        (2, 1, "cancelled"),
    ]
    assert {r.error.kind for r in rollouts[:2] if r.error is not None} == {"http_503", "seat"}


# -- what ends early


def cut(request: Request) -> Any:
    if seat_of(request) == 1 and request.turn == 1:
        return Completion(content="and so", finish="length")
    return echo(request)


@KINDS
async def test_a_seat_that_a_limit_ends_forfeits_and_by_default_the_game_is_over(
    tmp_path: Path, together: bool
) -> None:
    one, two = await match(tmp_path / "run", cut, settings={"together": together})
    assert (two.status, two.stop) == ("truncated", "length")
    assert (one.status, one.stop) == ("completed", "env_done")
    assert len(one.turns) == len(two.turns) == 2
    assert one.grade == two.grade == "graded"


@KINDS
async def test_a_game_may_go_on_without_a_seat_and_reward_it_for_leaving(
    tmp_path: Path, together: bool
) -> None:
    settings = {"together": together, "goes_on": True}
    found = await match(tmp_path / "run", cut, settings=settings, tasks=[{"seats": 3, "rounds": 3}])
    assert [(rollout.status, len(rollout.turns)) for rollout in found] == [
        ("completed", 3),
        ("truncated", 2),
        ("completed", 3),
    ]
    assert found[1].turns[1].reward == -1.0


async def test_max_turns_counts_the_turns_of_each_seat(tmp_path: Path) -> None:
    found = await match(tmp_path / "run", tasks=[{"rounds": 9}], max_turns=3)
    assert [(rollout.stop, len(rollout.turns)) for rollout in found] == [("max_turns", 3), ("env_done", 3)]


async def hangs(request: Request) -> str:
    if seat_of(request) == 1 and request.turn == 1:
        await for_ever()
    return echo(request)


async def test_the_episodes_time_truncates_every_seat_and_keeps_its_rewards(tmp_path: Path) -> None:
    one, two = await match(tmp_path / "run", hangs, episode_timeout=LIMIT_S)
    assert [(rollout.status, rollout.stop) for rollout in (one, two)] == [("truncated", "timeout")] * 2
    assert (len(one.turns), len(two.turns)) == (2, 2)
    assert (one.reward, two.reward) == (2.25, 2.5)


async def test_a_reset_that_takes_too_long_fails_every_seat(tmp_path: Path) -> None:
    class Slow(Tagged):
        async def reset(self, task: Any) -> None:
            await for_ever()

    found = await match(tmp_path / "run", env=Slow, episode_timeout=LIMIT_S)
    assert [rollout.error and rollout.error.kind for rollout in found] == ["timeout"] * 2


async def test_a_seat_that_never_had_a_turn_keeps_its_reward_and_what_it_was_told(tmp_path: Path) -> None:
    class Short(Match):
        async def reset(self, task: Any) -> None:
            self.over = False

        def to_act(self) -> list[int]:
            return [] if self.over else [0]

        async def observe(self, seat: int) -> Observation:
            return Observation([{"role": "user", "content": "go"}])

        async def act(self, replies: Any) -> Any:
            self.over = True
            told = [{"role": "user", "content": "You win."}]
            return {0: Step(reward=0.0), 1: Step(reward=1.0, messages=told, state={"won": True})}

    one, two = await match(tmp_path / "run", "x", env=Short)
    assert (one.reward, two.reward) == (0.0, 1.0)
    assert (two.turns, said(two.messages), two.state) == ((), ["You win."], {"won": True})
    assert (two.status, two.stop, two.grade) == ("completed", "env_done", "graded")


async def test_step_done_ends_the_game_for_that_seat_alone(tmp_path: Path) -> None:
    class Elimination(Tagged):
        async def act(self, replies: Any) -> Any:
            steps = dict(await super().act(replies))
            if self.left == [0, 1, 2] and self.round == 1:
                self.left, self.waiting = [0, 2], [0, 2]
                steps[1] = Step(done=True)
            return steps

    found = await match(tmp_path / "run", env=Elimination, tasks=[{"seats": 3, "rounds": 3}])
    assert [len(rollout.turns) for rollout in found] == [3, 1, 3]
    assert {rollout.stop for rollout in found} == {"env_done"}


async def test_a_step_may_say_why_the_game_is_over_for_a_seat(tmp_path: Path) -> None:
    class Strict(Tagged):
        async def act(self, replies: Any) -> Any:
            return {0: Step(done=True, stop="parse_error", reward=0.0), 1: Step(done=True, reward=1.0)}

    found = await match(tmp_path / "run", env=Strict)
    assert [(r.status, r.stop, r.reward) for r in found] == [
        ("completed", "parse_error", 0.0),
        ("completed", "env_done", 1.0),
    ]


async def test_a_close_that_raises_changes_nothing_but_is_counted_for_every_seat(tmp_path: Path) -> None:
    class Stuck(Tagged):
        async def close(self) -> None:
            raise RuntimeError("stuck")

    found = await match(tmp_path / "run", env=Stuck)
    assert [(r.status, r.metrics["close_failed"]) for r in found] == [("completed", 1.0)] * 2


async def test_a_crash_in_the_score_of_one_seat_leaves_the_others_graded(tmp_path: Path) -> None:
    one, two = await match(tmp_path / "run", settings={"crash": "score 1"})
    assert (one.status, one.grade) == ("completed", "graded")
    assert (two.status, two.grade, two.reward) == ("completed", "failed", None)
    assert two.error is not None
    assert (two.error.owner, two.error.phase) == ("env", "score")


async def test_a_game_is_called_once_at_a_time_and_what_it_hands_out_is_copied(tmp_path: Path) -> None:
    class Careful(Tagged):
        inside = 0

        async def observe(self, seat: int) -> Observation:
            return await self.alone(super().observe(seat))

        async def act(self, replies: Any) -> Any:
            return await self.alone(super().act(replies))

        async def alone(self, work: Any) -> Any:
            assert not self.inside
            self.inside += 1
            for _ in range(5):
                await asyncio.sleep(0)
            self.inside -= 1
            found = await work
            for message in self.handed:
                message["content"] = "spoilt"
            self.handed = list(found.messages) if isinstance(found, Observation) else []
            return found

        handed: list[Any] = []  # noqa: RUF012

        def is_move(self, seat: int, reply: Any) -> bool:
            assert not self.inside
            return True

    options: dict[str, Any] = {"settings": {"together": True}, "tasks": [{"seats": 4}], "samples": 5}
    found = await match(tmp_path / "run", shuffled(), env=Careful, **options)
    assert {r.status for r in found} == {"completed"}
    assert not any("spoilt" in said(r.messages) for r in found)


# -- illegal moves


@pytest.mark.parametrize(("most", "turns"), [(0, 1), (2, 3)])
async def test_an_illegal_move_is_told_and_asked_again_as_often_as_the_rule_says(
    tmp_path: Path, most: int, turns: int
) -> None:
    def clumsy(request: Request) -> str:
        return "illegal" if seat_of(request) == 0 else echo(request)

    one, two = await match(tmp_path / "run", clumsy, settings={"max_illegal": most})
    assert [turn.parse_error for turn in one.turns] == ["that was no move"] * turns
    assert said(one.messages).count("that was no move") == most
    assert (one.stop, two.stop, len(two.turns)) == ("env_done", "env_done", 0)


# -- a game that does not keep to the rules


class Wrong(Tagged):
    async def act(self, replies: Any) -> Any:
        return self.settings.get("result")

    def to_act(self) -> Any:
        return self.settings.get("to_act") or super().to_act()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"result": 7}, "act() returned int; expected {seat: Step}"),
        ({"result": {"0": "x"}}, "act() returned str for seat 0; expected a Step"),
        ({"to_act": [5]}, "to_act() named seat 5; the seats are 0 to 1"),
        ({"to_act": [1, 1]}, "to_act() named a seat twice"),
    ],
)
async def test_what_a_game_may_not_say_is_its_failure(tmp_path: Path, settings: Any, message: str) -> None:
    sets = {name: msgspec.json.encode(value).decode() for name, value in settings.items()}
    found = await match(tmp_path / "run", env=Wrong, settings=sets)
    assert [rollout.error and rollout.error.message for rollout in found] == [message] * 2


async def test_a_seat_that_replies_twice_is_told_that_it_was_not_asked(tmp_path: Path) -> None:
    async def impatient(session: Any) -> None:
        first = await session.complete()
        second = await session.complete()
        try:
            async with asyncio.timeout(0.05):
                await session.step(first)
        except TimeoutError:
            await session.step(second)

    def answer(request: Request) -> Any:
        return hangs_for_good() if seat_of(request) == 1 else echo(request)

    async def hangs_for_good() -> str:
        await asyncio.Event().wait()
        return ""

    found = await match(tmp_path / "run", answer, agent=impatient)
    errors = [rollout.error.message for rollout in found if rollout.error]
    assert "seat 0 replied when it was not asked" in errors


# -- tools


async def test_a_seat_may_call_tools_before_it_moves_and_each_has_its_own(tmp_path: Path) -> None:
    class Tooled(Tagged):
        async def observe(self, seat: int) -> Observation:
            seen = await super().observe(seat)
            tool = Tool(name=f"look{seat}", description="", parameters={}, call=lambda: f"seat {seat} looks")
            return Observation(seen.messages, [tool])

    def answer(request: Request) -> Any:
        if request.messages[-1].role == "tool":
            return echo(request)
        call = Call(id=f"c{request.turn}", name=f"look{seat_of(request)}", arguments="{}")
        return Completion(content="", tool_calls=(call,))

    found = await match(tmp_path / "run", answer, env=Tooled)
    for seat, rollout in enumerate(found):
        assert [tool["name"] for tool in rollout.tools] == [f"look{seat}"]
        results = [message.text for message in rollout.messages if message.role == "tool"]
        assert results == [f"seat {seat} looks"] * 2
        assert len(rollout.turns) == 4


# -- cancellation


@pytest.mark.parametrize("place", ["reset", "observe", "policy", "act", "score"])
async def test_a_cancelled_match_is_recorded_seat_by_seat_closed_once_and_run_again(
    tmp_path: Path, place: str
) -> None:
    closings.clear()
    arrived = asyncio.Event()

    async def hang() -> None:
        arrived.set()
        await asyncio.Event().wait()

    class Hanging(Tagged):
        pass

    def hanging(name: str) -> Any:
        async def deed(self: Any, *arguments: Any) -> Any:
            if self.ctx.attempt == 1:
                await hang()
            return await getattr(Tagged, name)(self, *arguments)

        return deed

    if place != "policy":
        setattr(Hanging, place, hanging(place))

    async def answer(request: Request) -> str:
        if place == "policy" and request.attempt == 1 and seat_of(request) == 1:
            await hang()
        return echo(request)

    consumer = asyncio.create_task(match(tmp_path / "run", answer, env=Hanging))
    await asyncio.wait_for(arrived.wait(), 30)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    cancelled = list(windrow.load(tmp_path / "run", attempts="all"))
    assert [(r.seat, r.status, r.reason) for r in cancelled] == [
        (0, "cancelled", "interrupted"),
        (1, "cancelled", "interrupted"),
    ]
    assert [(r.grade, r.reward) for r in cancelled] == [("none", None)] * 2
    assert closings == [cancelled[0].episode]
    found = await match(tmp_path / "run", answer, env=Hanging)
    assert [(r.attempt, r.status) for r in found[2:]] == [(2, "completed")] * 2
