"""`windrow replay`: the recorded replies go through the environment again; what comes out otherwise is told."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from windrow import Completion, Env, Observation, Request, Score, Step, Tool
from windrow.cli.main import main
from windrow.collecting.replay import Replay, find_rollout, replay
from windrow.errors import InfraError
from windrow.records import Call

HERE = "tests.unit.collecting.test_replay"


class Counter(Env):
    """Counts to three, with everything a step can say; `drift` makes it come out otherwise."""

    version = 1
    drift: Any = None

    async def reset(self, task: Any) -> Observation:
        self.count = 0
        first = "go!" if self.drift == "observation" else "go"
        add = Tool(name="add", description="", parameters={"type": "object"}, call=self.add)
        return Observation([{"role": "user", "content": first}], [add])

    def add(self, n: int) -> int:
        self.count += n
        return self.count + (self.drift == "tool")

    async def step(self, reply: Any, results: Any) -> Step:
        if not reply.tool_calls:
            if self.drift == "crash":
                raise RuntimeError("drifted")
            return Step(done=True, stop="parse_error" if self.drift == "stop" else None)
        return Step(
            messages=[{"role": "user", "content": f"you are at {self.count}"}],
            reward=0.5 if self.drift != "reward" else 0.25,
            state={"count": self.count, "deep": {"x": 2 if self.drift == "state" else 1}},
            info={"seen": True},
            metrics={"m": 1.0},
            scores={"s": 1.0},
        )

    async def score(self, episode: Any) -> Score:
        return Score(float(self.count) + (self.drift == "score"))


def counting(request: Request) -> Any:
    if request.turn == 3:
        return "done"
    call = Call(id=f"c{request.turn}", name="add", arguments='{"n": 1}')
    return Completion(content=None, tool_calls=(call,))


async def recorded(run: Any, policy: Any = counting, **options: Any) -> Any:
    rows = [{"prompt": "go", "answer": "done"}]
    options = {"env": Counter, "retries": 0, "call_retries": 0, **options}
    await collected(rows, policy=answering(policy), out=str(run), **options)
    [rollout] = windrow.load(run)
    return rollout


async def again(run: Any) -> Replay:
    [rollout] = windrow.load(run)
    return await replay(run, rollout)


async def test_what_follows_from_the_replies_comes_out_again(tmp_path) -> None:
    rollout = await recorded(tmp_path / "run", scorers=["exact"])
    found = await again(tmp_path / "run")
    assert found.differences == ()
    assert (found.replayed.messages, found.replayed.reward) == (rollout.messages, rollout.reward)
    assert rollout.reward == 3 + 1.5 + 1


DRIFTS = {
    "observation": "messages[0].content",
    "tool": "messages[2].content",
    "reward": "turns[0].reward",
    "state": "turns[0].state.deep.x",
    "stop": "stop",
    "score": "scores.score",
    "crash": "status",
}


@pytest.mark.parametrize(("drift", "place"), DRIFTS.items(), ids=DRIFTS)
async def test_a_change_in_the_environment_is_told_where_it_shows(
    tmp_path, monkeypatch, drift, place
) -> None:
    await recorded(tmp_path / "run")
    monkeypatch.setattr(Counter, "drift", drift)
    places = [difference.path for difference in (await again(tmp_path / "run")).differences]
    assert place in places


async def test_nothing_is_written_to_the_run(tmp_path) -> None:
    await recorded(tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    await again(tmp_path / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()} == before


@pytest.mark.parametrize("options", [{"max_turns": 2}, {"max_tool_calls": 1}])
async def test_a_limit_ends_the_replay_as_it_ended_the_episode(tmp_path, options) -> None:
    rollout = await recorded(tmp_path / "run", **options)
    assert rollout.status == "truncated"
    assert (await again(tmp_path / "run")).differences == ()


async def test_a_length_stop_and_an_overflow_come_out_again(tmp_path) -> None:
    from windrow.errors import ContextOverflow

    def cut(request: Request) -> Completion:
        return Completion(content="ha", finish="length")

    def full(request: Request) -> Any:
        if request.turn:
            raise ContextOverflow("full")
        return counting(request)

    for name, policy, stop in (("cut", cut, "length"), ("full", full, "context_overflow")):
        rollout = await recorded(tmp_path / name, policy)
        assert rollout.stop == stop
        assert (await again(tmp_path / name)).differences == ()


async def test_malformed_calls_are_corrected_again(tmp_path) -> None:
    def stammering(request: Request) -> Any:
        if request.turn < 2:
            return Completion(content="<tool", malformed=("one is not JSON", "two has no name"))
        return counting(request) if request.turn < 3 else "done"

    rollout = await recorded(tmp_path / "run", stammering)
    assert rollout.turns[0].parse_error is not None
    assert (await again(tmp_path / "run")).differences == ()


async def test_what_the_clock_or_the_infrastructure_ended_is_compared_as_far_as_it_went(
    tmp_path, monkeypatch
) -> None:
    def failing(request: Request) -> Any:
        if request.turn == 2:
            raise InfraError("down", kind="http_503")
        return counting(request)

    rollout = await recorded(tmp_path / "run", failing)
    assert rollout.status == "failed"
    assert (await again(tmp_path / "run")).differences == ()
    monkeypatch.setattr(Counter, "drift", "reward")
    places = [difference.path for difference in (await again(tmp_path / "run")).differences]
    assert places == ["turns[0].reward", "turns[1].reward"]


async def test_a_scorer_that_changed_its_mind_is_told(tmp_path) -> None:
    await recorded(tmp_path / "run", scorers=[f"{HERE}:moody"])
    [difference] = (await again(tmp_path / "run")).differences
    assert difference.path.startswith("scores.")


_moods = itertools.count()


def moody(task: Any, reply: str) -> float:
    return float(next(_moods))


def customer(request: Request) -> str:
    return "more" if len(request.messages) < 6 else "[END]"


async def test_the_models_of_the_environment_are_not_asked_either(tmp_path, monkeypatch) -> None:
    user = f'{{"policy": {{"model": "scripted:{HERE}:customer"}}, "prompt": "Be brief."}}'
    sets = ["env.name=chat", f"env.settings.user={user}"]
    await collected([{"prompt": "go"}], policy=answering("ok"), sets=sets, out=str(tmp_path / "run"))
    [rollout] = windrow.load(tmp_path / "run")
    assert rollout.metrics["user_calls"] >= 2

    def asked(request: Request) -> str:
        raise AssertionError("a model was asked")

    monkeypatch.setattr(f"{HERE}.customer", asked)
    assert (await again(tmp_path / "run")).differences == ()


async def windowed(session: Any) -> None:
    while not session.ended:
        reply = await session.complete(session.messages[-2:])
        if reply is not None and not session.ended:
            await session.step(reply)


async def test_the_agents_own_loop_runs_again(tmp_path) -> None:
    rollout = await recorded(tmp_path / "run", agent=windowed)
    assert rollout.turns[2].reads != ((0, 7),)
    assert (await again(tmp_path / "run")).differences == ()


def test_the_command_says_what_differs_and_exits_1(tmp_path, monkeypatch, capsys) -> None:
    import asyncio

    rollout = asyncio.run(recorded(tmp_path / "run"))
    run = str(tmp_path / "run")
    assert main(["replay", run, rollout.id[:6]]) == 0
    assert "4 turns came out as recorded" in capsys.readouterr().out
    monkeypatch.setattr(Counter, "drift", "state")
    assert main(["replay", run, rollout.id]) == 1
    assert "turns[0].state.deep.x\n  recorded  1\n  replayed  2\n" in capsys.readouterr().out
    assert main(["replay", run, "nothing"]) == 2
    assert main(["replay", run, rollout.id, "--attempt", "7"]) == 2


async def test_a_rollout_without_its_messages_cannot_be_replayed(tmp_path) -> None:
    await recorded(tmp_path / "run", capture="none")
    with pytest.raises(windrow.WindrowError, match="without its messages"):
        await again(tmp_path / "run")


async def test_an_id_that_means_several_is_refused(tmp_path) -> None:
    rows = [{"prompt": "go"}]
    await collected(rows, env=Counter, policy=answering(counting), samples=2, out=str(tmp_path / "run"))
    with pytest.raises(windrow.WindrowError, match="give more of the id"):
        find_rollout(tmp_path / "run", "")


class Clock(Env):
    """Says how late it is; its ticks are measured, its tocks are not."""

    version = 1
    measured = frozenset({"ticks"})
    time = itertools.count()

    async def reset(self, task: Any) -> Observation:
        return Observation([{"role": "user", "content": "tick"}])

    async def step(self, reply: Any, results: Any) -> Step:
        now = next(self.time)
        return Step(done=True, info={"ticks": now, "tocks": now}, state={"ticks": 1})

    async def score(self, episode: Any) -> Score:
        return Score(1.0, metrics={"ticks": next(self.time), "tocks": 2.0})


async def test_what_an_environment_measures_is_not_compared(tmp_path) -> None:
    rollouts = await collected(
        [{"prompt": "x"}], env=f"{HERE}:Clock", policy=answering("ok"), out=str(tmp_path / "run")
    )
    found = await replay(tmp_path / "run", rollouts[0])
    assert [difference.path for difference in found.differences] == ["turns[0].info.tocks"]
