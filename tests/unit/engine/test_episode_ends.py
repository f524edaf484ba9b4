"""Every way an episode can go, one after the other: how it ends, and that its record is whole on each of them.

docs/environments.md has the same table for readers; a test here holds it against this one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.support.fake_clock import LIMIT_S, for_ever
from tests.support.scripted_envs import played
from windrow import Completion, Env, Observation, Request, Rollout, Score, Step, Tool
from windrow.errors import ContextOverflow, InfraError, PolicyError
from windrow.records import Call, Usage, encode
from windrow.tools import ToolStop

pytestmark = pytest.mark.slow

DOC = Path(__file__).parents[3] / "docs" / "environments.md"
SCHEMA = {"type": "object", "properties": {}}


class World(Env):
    """Keeps all it hands out and spoils it whenever it is called again; three turns long."""

    kept: list[Any]
    closed: list[str]

    async def reset(self, task: Any) -> Observation:
        message = {"role": "user", "content": [{"type": "text", "text": task["prompt"]}]}
        self.kept, self.steps = [message], 0
        self.at("reset")
        tools = [
            Tool(name=name, description="", parameters={**SCHEMA}, call=getattr(self, name))
            for name in ("fine", "broken", "final", "endless")
        ]
        return Observation([message], tools)

    def fine(self) -> list[str]:
        return ["fine"]

    def broken(self) -> str:
        raise ValueError("broken")

    def final(self) -> ToolStop:
        return ToolStop("over")

    async def endless(self) -> None:
        await for_ever()

    async def step(self, reply: Any, results: Any) -> Step:
        self.spoil()
        self.steps += 1
        said = {"role": "user", "content": [{"type": "text", "text": f"step {self.steps}"}]}
        state, numbers = {"steps": [self.steps]}, {"n": float(self.steps)}
        info = {"results": [result.content for result in results]}
        self.kept += [said, state, numbers, info]
        wrong = "unreadable" in reply.text
        self.at("step")
        return Step(
            messages=[said],
            state=state,
            info=info,
            metrics=numbers,
            scores=numbers,
            reward=0.5,
            parse_error="unreadable" if wrong else None,
            stop="parse_error" if reply.text == "unreadable for good" else None,
            done=self.steps == 3,
        )

    async def score(self, episode: Any) -> Score:
        self.spoil()
        self.at("score")
        return Score(1.0)

    async def close(self) -> None:
        self.spoil()
        closings.append(self.ctx.id)

    def at(self, place: str) -> None:
        if self.settings.get("crash") == place:
            self.spoil()
            raise RuntimeError(f"crash in {place}")

    def spoil(self) -> None:
        for thing in self.kept:
            if "content" in thing and isinstance(thing["content"], list):
                thing["content"][0]["text"] = "spoilt"
            thing["spoilt"] = "spoilt"


closings: list[str] = []


class Sent:
    """A policy that keeps what it was sent, as JSON, and then spoils it."""

    def __init__(self, answer: Callable[[Request], Any]) -> None:
        self._answer = answer
        self.prompts: list[bytes] = []

    async def __call__(self, request: Request) -> Any:
        self.prompts.append(encode(request.messages))
        for message in request.messages:
            if isinstance(message.content, list):
                message.content[0]["text"] = "spoilt"
        answer = self._answer(request)
        return await answer if asyncio.iscoroutine(answer) else answer


def calls(*names: str, arguments: str = "{}") -> Callable[[Request], Completion]:
    def answer(request: Request) -> Completion:
        found = tuple(
            Call(id=f"c{request.turn}{n}", name=name, arguments=arguments) for n, name in enumerate(names)
        )
        return Completion(content="", tool_calls=found)

    return answer


def at(turn: int, problem: Exception) -> Callable[[Request], Any]:
    def answer(request: Request) -> Any:
        if request.turn == turn:
            raise problem
        return calls("fine")(request)

    return answer


def says(text: str, first: int = 99) -> Callable[[Request], str]:
    return lambda request: text if request.turn < first else "ok"


async def hangs(request: Request) -> str:
    if request.turn:
        await for_ever()
    return "ok"


async def once(session: Any) -> None:
    await session.complete()


async def clumsy(session: Any) -> None:
    await session.complete()
    raise ZeroDivisionError("clumsy")


async def window(session: Any) -> None:
    while not session.ended:
        reply = await session.complete([{"role": "system", "content": "short"}, *session.messages[-1:]])
        if reply is not None:
            await session.step(reply)


class Ways(NamedTuple):
    policy: Callable[[Request], Any]
    status: str
    stop: str
    grade: str
    owner: str | None = None
    turns: int = 3
    unanswered: int = 0
    options: dict[str, Any] = {}  # noqa: RUF012 (never changed)


MALFORMED = Completion(content="<tool", malformed=("it is not JSON",))
LONG = Completion(
    content="and so on", finish="length", tool_calls=(Call(id="c", name="fine", arguments="{}"),)
)
USED = Completion(content="ok", usage=Usage(prompt_tokens=40, completion_tokens=30))
CRASH = "env.settings.crash="

PATHS: dict[str, Ways] = {
    "the environment ends it": Ways(says("ok"), "completed", "env_done", "graded"),
    "tools are called": Ways(calls("fine", "fine"), "completed", "env_done", "graded"),
    "a tool raises": Ways(calls("broken", "fine"), "completed", "env_done", "graded"),
    "an unknown tool": Ways(calls("nothing", "fine"), "completed", "env_done", "graded"),
    "arguments that are no object": Ways(calls("fine", arguments="[1]"), "completed", "env_done", "graded"),
    "a tool takes too long": Ways(
        calls("endless", "fine"), "completed", "env_done", "graded", options={"tool_timeout": LIMIT_S}
    ),
    "a tool ends it": Ways(calls("final"), "completed", "tool_stopped", "graded", turns=1),
    "a parse error, corrected": Ways(says("unreadable", 1), "completed", "env_done", "graded"),
    "a parse error ends it": Ways(says("unreadable for good"), "completed", "parse_error", "graded", turns=1),
    "malformed calls, too often": Ways(
        lambda request: MALFORMED, "completed", "parse_error", "graded", turns=3
    ),
    "an agent returns": Ways(says("ok"), "completed", "answered", "graded", turns=1, options={"agent": once}),
    "an agent's window": Ways(says("ok"), "completed", "env_done", "graded", options={"agent": window}),
    "max_turns": Ways(says("ok"), "truncated", "max_turns", "graded", turns=2, options={"max_turns": 2}),
    "max_tool_calls": Ways(
        calls("fine", "fine"),
        "truncated",
        "max_tool_calls",
        "graded",
        turns=2,
        unanswered=2,
        options={"max_tool_calls": 3},
    ),
    "max_episode_tokens": Ways(
        lambda request: USED,
        "truncated",
        "max_episode_tokens",
        "graded",
        turns=1,
        options={"max_episode_tokens": 60},
    ),
    "length": Ways(lambda request: LONG, "truncated", "length", "graded", turns=1, unanswered=1),
    "the first prompt does not fit": Ways(
        at(0, ContextOverflow("full")), "truncated", "context_overflow", "graded", turns=1
    ),
    "a later prompt does not fit": Ways(
        at(2, ContextOverflow("full")), "truncated", "context_overflow", "graded"
    ),
    "the episode's time, in a model call": Ways(
        hangs, "truncated", "timeout", "graded", turns=2, options={"episode_timeout": LIMIT_S}
    ),
    "the episode's time, in a tool": Ways(
        calls("endless"),
        "truncated",
        "timeout",
        "graded",
        turns=1,
        unanswered=1,
        options={"episode_timeout": LIMIT_S, "tool_timeout": 100 * LIMIT_S},
    ),
    "a model call takes too long": Ways(
        hangs, "failed", "error", "none", owner="infra", turns=2, options={"call_timeout": LIMIT_S}
    ),
    "a model call fails": Ways(
        at(1, InfraError("down", kind="http_503")), "failed", "error", "none", owner="infra", turns=2
    ),
    "the endpoint refuses a call": Ways(
        at(1, PolicyError("no", kind="http_400")), "failed", "error", "none", owner="policy", turns=2
    ),
    "a crash in reset": Ways(
        says("ok"), "failed", "error", "none", owner="env", turns=0, options={"sets": [f"{CRASH}reset"]}
    ),
    "a crash in step": Ways(
        says("ok"), "failed", "error", "none", owner="env", turns=1, options={"sets": [f"{CRASH}step"]}
    ),
    "a crash in the agent": Ways(
        says("ok"), "failed", "error", "none", owner="env", turns=1, options={"agent": clumsy}
    ),
    "a crash in score": Ways(
        says("ok"), "completed", "env_done", "failed", owner="env", options={"sets": [f"{CRASH}score"]}
    ),
}


@pytest.fixture(params=PATHS.items(), ids=PATHS)
async def episode(request, tmp_path) -> tuple[Ways, Rollout, Sent]:
    _, way = request.param
    sent = Sent(way.policy)
    closings.clear()
    return way, await played(World, tmp_path / "run", policy=sent, **way.options), sent


async def test_each_path_ends_as_the_table_says_with_a_whole_record(episode) -> None:
    way, rollout, sent = episode
    assert (rollout.status, rollout.stop, rollout.grade) == (way.status, way.stop, way.grade)
    assert (rollout.error and rollout.error.owner) == way.owner
    assert len(rollout.turns) == way.turns
    assert (rollout.reward is None) == (way.grade != "graded")
    assert closings == [rollout.id]
    nothing_is_spoilt(rollout)
    prompts_are_rebuilt(rollout, sent)
    every_turn_is_whole(rollout)
    numbers_are_raw(rollout)
    assert rollout.metrics.get("unanswered_tool_calls", 0) == way.unanswered


def nothing_is_spoilt(rollout: Rollout) -> None:
    assert b"spoilt" not in encode(rollout)


def prompts_are_rebuilt(rollout: Rollout, sent: Sent) -> None:
    """Byte for byte, and no message stands there twice."""
    rebuilt = [
        encode([m for start, stop in turn.reads for m in rollout.messages[start:stop]])
        for turn in rollout.turns
    ]
    assert rebuilt == sent.prompts
    written = [turn.writes for turn in rollout.turns if turn.writes is not None]
    assert written == [n for n, message in enumerate(rollout.messages) if message.origin == "policy"]
    own = [m.text for m in rollout.messages if m.origin in ("task", "env")]
    assert len(own) == len(set(own)) or rollout.stop == "parse_error"


def every_turn_is_whole(rollout: Rollout) -> None:
    for number, turn in enumerate(rollout.turns):
        if turn.writes is not None:
            assert rollout.messages[turn.writes].turn == number
        if turn.state is not None:
            steps = turn.state["steps"][0]
            assert (turn.reward, turn.metrics, turn.scores) == (0.5, {"n": steps}, {"n": steps})
            assert turn.info == {"results": [rollout.messages[call.result].text for call in turn.tool_calls]}
            assert f"step {steps}" in [message.text for message in rollout.messages]
        for call in turn.tool_calls:
            answer = rollout.messages[call.result]
            assert (answer.role, answer.tool_call_id) == ("tool", call.id)
            assert (call.error is not None) == call.failed
            assert call.seconds >= 0
        assert turn.seconds >= 0
    last = [turn.state for turn in rollout.turns if turn.state is not None][-1:]
    assert rollout.state == (last[0] if last else None)
    assert rollout.timing.total > 0


def numbers_are_raw(rollout: Rollout) -> None:
    plain = msgspec.json.decode(encode(rollout))
    found = [plain["reward"], *plain["metrics"].values()]
    found += [score[name] for score in plain["scores"].values() for name in ("value", "weight")]
    for turn in plain["turns"]:
        found += [turn.get("reward"), *turn.get("scores", {}).values(), *turn.get("metrics", {}).values()]
    assert all(value is None or type(value) in (int, float) for value in found)


# -- the table of the documentation


def documented() -> dict[str, list[str]]:
    rows = [
        [cell.strip() for cell in line.strip("|\n ").split("|")]
        for line in DOC.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and line.rstrip().endswith("` |")
    ]
    return {row[0]: row[1:] for row in rows}


def test_the_documented_table_is_this_one() -> None:
    table = documented()
    assert table.keys() >= PATHS.keys()
    for name, way in PATHS.items():
        assert table[name][:3] == [way.status, way.stop, way.grade], name


def test_the_tests_that_the_table_names_are_there() -> None:
    for name, row in documented().items():
        file, _, test = row[-1].strip("`").partition("::")
        source = (DOC.parents[1] / file).read_text(encoding="utf-8")
        function, _, path = test.partition("[")
        assert re.search(rf"^(async )?def {function}\(", source, re.M), f"{name}: {row[-1]}"
        assert not path or path.removesuffix("]") in PATHS, f"{name}: {row[-1]}"
