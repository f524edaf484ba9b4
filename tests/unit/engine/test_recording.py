"""What is recorded is what happened: frozen when it is recorded, finite, and with a reward only where one was given."""

from __future__ import annotations

import enum
import math
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.export_helpers import exported
from tests.support.fake_clock import LIMIT_S, for_ever
from tests.support.scripted_envs import played, raising, returning, world
from windrow import Completion, Env, Observation, Request, Score, Step, Tool
from windrow.records import Call

NAN, INF = math.nan, math.inf


# -- frozen


class Spoiler(Env):
    """Hands out things, keeps them, and spoils them as soon as it gets the chance again."""

    kept: list[Any]

    async def reset(self, task: Any) -> Observation:
        parts = [{"type": "text", "text": task["prompt"]}]
        message = {"role": "user", "content": parts, "tool_calls": []}
        schema: dict[str, Any] = {"type": "object", "properties": {}}
        self.kept = [parts, message, schema, task.data]
        tool = Tool(name="t", description="", parameters=schema, call=lambda: "ok")
        return Observation([message], [tool])

    async def step(self, reply: Any, results: Any) -> Step:
        parts, message, schema, row = self.kept
        parts[0]["text"] = "spoilt"
        parts.append({"type": "text", "text": "spoilt"})
        message["content"] = "spoilt"
        schema["properties"]["spoilt"] = True
        row["prompt"] = row["spoilt"] = "spoilt"
        self.state = {"board": [["x"]]}
        self.hint = [{"role": "user", "content": "hint"}]
        self.info: dict[str, Any] = {"log": ["a"]}
        self.numbers = {"m": 1.0}
        self.steps = getattr(self, "steps", 0) + 1
        return Step(
            messages=self.hint,
            state=self.state,
            info=self.info,
            metrics=self.numbers,
            scores=self.numbers,
            parse_error="?" if self.steps == 1 else None,
            done=self.steps == 2,
        )

    def spoil(self) -> None:
        self.state["board"][0][0] = "spoilt"
        self.hint[0]["content"] = "spoilt"
        self.info["log"].append("spoilt")
        self.numbers["m"] = 9.0

    async def score(self, episode: Any) -> Score:
        self.spoil()
        episode.state["board"] = "spoilt"
        episode.turns[0].info["log"] = "spoilt"
        episode.turns[0].state.clear()
        episode.messages[0].content[0]["text"] = "spoilt"
        self.evidence = {"why": ["because"]}
        return Score(1.0, evidence=self.evidence)

    async def close(self) -> None:
        self.spoil()
        if hasattr(self, "evidence"):
            self.evidence["why"].append("spoilt")


def unspoilt(rollout: windrow.Rollout) -> None:
    assert rollout.task.data == {"prompt": "go"}
    assert rollout.messages[0].content == [{"type": "text", "text": "go"}]
    assert rollout.tools == (
        {"name": "t", "description": "", "parameters": {"type": "object", "properties": {}}},
    )
    assert [m.content for m in rollout.messages if m.origin == "env"] == ["hint"] * sum(
        turn.state is not None for turn in rollout.turns
    )
    assert rollout.state == {"board": [["x"]]}
    turn = rollout.turns[0]
    assert (turn.state, turn.info, turn.metrics, turn.scores) == (
        {"board": [["x"]]},
        {"log": ["a"]},
        {"m": 1.0},
        {"m": 1.0},
    )


async def test_nothing_that_is_mutated_later_changes_the_record(tmp_path) -> None:
    rollout = await played(Spoiler, tmp_path / "run")
    assert (rollout.status, rollout.turns[0].parse_error) == ("completed", "?")
    assert rollout.scores["score"].evidence == {"why": ["because"]}
    unspoilt(rollout)


async def test_nor_after_a_timeout(tmp_path) -> None:
    async def answer(request: Request) -> str:
        if request.turn:
            await for_ever()
        return "ok"

    rollout = await played(Spoiler, tmp_path / "run", policy=answer, episode_timeout=LIMIT_S)
    assert (rollout.status, rollout.stop) == ("truncated", "timeout")
    unspoilt(rollout)


async def test_nor_after_a_crash(tmp_path) -> None:
    class Crashing(Spoiler):
        async def step(self, reply: Any, results: Any) -> Step:
            if hasattr(self, "steps"):
                self.spoil()
                raise RuntimeError("crash")
            return await super().step(reply, results)

    rollout = await played(Crashing, tmp_path / "run")
    assert (rollout.status, rollout.stop) == ("failed", "error")
    unspoilt(rollout)


async def test_a_policy_cannot_change_what_it_was_sent(tmp_path) -> None:
    def answer(request: Request) -> str:
        request.messages[0].content[0]["text"] = "spoilt"  # type: ignore[index]
        request.tools[0]["parameters"]["spoilt"] = True
        return "ok"

    unspoilt(await played(Spoiler, tmp_path / "run", policy=answer))


async def test_samples_of_one_task_do_not_see_each_others_changes_of_it(tmp_path) -> None:
    seen: list[Any] = []

    async def pop(env: Any) -> Observation:
        seen.append(list(env.task["deck"]))
        env.task["deck"].pop()
        return Observation([{"role": "user", "content": "go"}])

    def judge(task: Any, reply: str) -> float:
        return float(len(task["deck"]))

    rows = [{"prompt": "go", "deck": [1, 2, 3]}]
    options = {"env": world([], reset=pop), "policy": answering("ok"), "scorers": [judge], "samples": 3}
    rollouts = await collected(rows, **options, concurrency=1, out=str(tmp_path / "run"))
    assert seen == [[1, 2, 3]] * 3
    assert [r.task["deck"] for r in rollouts] == [[1, 2, 3]] * 3
    assert [r.reward for r in rollouts] == [3.0] * 3


# -- JSON


class Colour(enum.StrEnum):
    RED = "red"


class Name(str):
    def __str__(self) -> str:
        return "another"


class Rank(enum.IntEnum):
    ACE = 1


class Length(float):
    pass


class Scalar:
    """As a number of an array library is."""

    def item(self) -> float:
        return 0.5


async def test_what_is_nearly_json_is_recorded_as_json(tmp_path) -> None:
    state = {
        "name": Name("ann"),
        "colour": Colour.RED,
        "rank": Rank.ACE,
        "size": Length(2.5),
        "x": Scalar(),
        7: (1, None, True),
    }
    env = world([], step=returning(Step(done=True, state=state, reward=Scalar())))  # type: ignore[arg-type]
    rollout = await played(env, tmp_path / "run")
    assert rollout.state == {
        "name": "ann",
        "colour": "red",
        "rank": 1,
        "size": 2.5,
        "x": 0.5,
        "7": [1, None, True],
    }
    assert rollout.reward == 0.5


async def test_half_surrogate_pairs_are_replaced_wherever_they_come_from(tmp_path) -> None:
    bad = "a\ud83db"
    step = Step(
        done=True,
        messages=[{"role": "user", "content": bad, "name": bad}],
        state={bad: [bad]},
        info=bad,
        metrics={bad: 1.0},
        scores={bad: 1.0},
        parse_error=bad,
    )
    score = Score({bad: (1.0, 1.0)}, evidence=bad, metrics={bad: 1.0})

    def answer(request: Request) -> Completion:
        return Completion(content=bad, reasoning=bad, finish=bad, model=bad, version=bad)

    env = world([], step=returning(step), score=returning(score))
    rollout = await played(env, tmp_path / "run", policy=answer)
    good = "a\ufffdb"
    assert (rollout.status, rollout.reply, rollout.state) == ("completed", good, {good: [good]})
    assert rollout.messages[-1].name == good
    assert rollout.scores[good].evidence == good
    assert rollout.turns[0].versions == ((0, good),)
    assert rollout.metrics["repaired_strings"] > 0


async def test_an_error_text_that_is_not_unicode_is_recorded(tmp_path) -> None:
    rollout = await played(world([], step=raising(ValueError("\ud83d"))), tmp_path / "run")
    assert rollout.error is not None
    assert rollout.error.message == "\ufffd"


# -- rewards


async def test_step_rewards_sum_up_and_count_as_grading(tmp_path) -> None:
    async def step(env: Any) -> Step:
        return Step(done=env.steps == 3, reward=[0.5, None, -0.25][env.steps - 1])

    rollout = await played(world([], step=step), tmp_path / "run")
    assert (rollout.grade, rollout.reward, rollout.scores) == ("graded", 0.25, {})
    assert [turn.reward for turn in rollout.turns] == [0.5, None, -0.25]


async def test_scores_of_a_step_are_recorded_and_do_not_enter_the_reward(tmp_path) -> None:
    env = world([], step=returning(Step(done=True, scores={"style": 0.9}, metrics={"words": 3})))
    rollout = await played(env, tmp_path / "run")
    assert (rollout.grade, rollout.reward) == ("none", None)
    assert (rollout.turns[0].scores, rollout.turns[0].metrics) == ({"style": 0.9}, {"words": 3.0})


async def test_an_envs_scores_are_weighed_and_added_to_the_step_rewards(tmp_path) -> None:
    score = Score(
        {"won": (True, 2.0), "style": (0.5, 0.1), "seen": (7, 0)},
        evidence={"moves": [1, 2]},
        metrics={"n": 2},
    )
    env = world([], step=returning(Step(done=True, reward=0.5)), score=returning(score))
    rollout = await played(env, tmp_path / "run")
    assert rollout.grade == "graded"
    assert rollout.reward == pytest.approx(2.0 + 0.05 + 0.5)
    found = {name: (s.value, s.weight, s.scorer) for name, s in rollout.scores.items()}
    assert found == {"won": (1.0, 2.0, None), "style": (0.5, 0.1, None), "seen": (7.0, 0.0, None)}
    assert all(s.evidence == {"moves": [1, 2]} for s in rollout.scores.values())
    assert rollout.metrics == {"n": 2.0}


async def test_without_a_score_there_is_no_reward(tmp_path) -> None:
    rollout = await played(world([]), tmp_path / "run")
    assert (rollout.status, rollout.grade, rollout.reward, rollout.error) == ("completed", "none", None, None)


NOT_FINITE: dict[str, tuple[str, Any, str]] = {
    "step reward NaN": ("step", Step(done=True, reward=NAN), "failed"),
    "step reward infinite": ("step", Step(done=True, reward=INF), "failed"),
    "step scores": ("step", Step(done=True, scores={"s": NAN}), "failed"),
    "step metrics": ("step", Step(done=True, metrics={"s": -INF}), "failed"),
    "state": ("step", Step(done=True, state={"x": [NAN]}), "failed"),
    "info": ("step", Step(done=True, info={"x": INF}), "failed"),
    "message": (
        "step",
        Step(done=True, messages=[{"role": "user", "content": [{"type": "text", "x": NAN}]}]),
        "failed",
    ),
    "score NaN": ("score", Score(NAN), "completed"),
    "score infinite": ("score", Score({"a": (INF, 1.0)}), "completed"),
    "weight": ("score", Score({"a": (1.0, NAN)}), "completed"),
    "evidence": ("score", Score(1.0, evidence={"p": NAN}), "completed"),
    "metrics": ("score", Score(1.0, metrics={"p": NAN}), "completed"),
    "a product that overflows": ("score", Score({"a": (1e200, 1e200)}), "completed"),
    "a sum that overflows": ("score", Score({"a": (1e308, 1.0), "b": (1e308, 1.0)}), "completed"),
    "a score that is no number": ("score", Score("good"), "completed"),  # type: ignore[arg-type]
    "not a score": ("score", 1.0, "completed"),
}


@pytest.mark.parametrize(("place", "value", "status"), NOT_FINITE.values(), ids=NOT_FINITE)
async def test_what_is_not_a_finite_number_is_an_error_of_the_environments(
    tmp_path, place, value, status
) -> None:
    rollout = await played(world([], **{place: returning(value)}), tmp_path / "run")
    assert (rollout.status, rollout.reward) == (status, None)
    assert rollout.grade == ("failed" if status == "completed" else "none")
    assert rollout.error is not None
    assert (rollout.error.owner, rollout.error.phase) == ("env", "score" if status == "completed" else "env")
    assert b"NaN" not in (tmp_path / "run" / "rollouts.jsonl").read_bytes()


async def test_step_rewards_that_add_up_to_infinity_are_an_error_too(tmp_path) -> None:
    class Generous(Env):
        async def reset(self, task: Any) -> Observation:
            self.steps = 0
            return Observation([{"role": "user", "content": "go"}])

        async def step(self, reply: Any, results: Any) -> Step:
            self.steps += 1
            return Step(done=self.steps == 2, reward=1e308)

    rollout = await played(Generous, tmp_path / "run")
    assert rollout.error is not None
    assert (rollout.grade, rollout.reward, rollout.error.owner) == ("failed", None, "env")


async def test_a_failed_score_of_the_environments_is_not_made_up_for_by_the_scorers(tmp_path) -> None:
    options = {
        "env": world([], score=raising(RuntimeError("no verdict"))),
        "policy": answering("yes"),
        "scorers": ["exact"],
        "out": str(tmp_path / "run"),
    }
    for _ in range(2):
        await collected([{"prompt": "go", "answer": "yes"}], **options)
        [rollout] = windrow.load(tmp_path / "run")
        assert (rollout.status, rollout.grade, rollout.reward) == ("completed", "failed", None)
        assert rollout.error is not None
        assert rollout.error.owner == "env"


async def test_tool_calls_of_a_message_in_dict_form_are_recorded(tmp_path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    first = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
    ]
    rollout = await played(world([], reset=returning(Observation(first))), tmp_path / "run")
    assert rollout.messages[0].tool_calls == (Call(id="c1", name="f", arguments='{"x": 1}'),)
    assert rollout.messages[1].tool_call_id == "c1"


@pytest.mark.parametrize(
    ("versions", "lowest"),
    [
        (["10", "9"], "9"),
        (["7", "7"], "7"),
        (["step-2", "step-2"], "step-2"),
        (["step-1", "step-2"], None),
        (["step-1", "2"], None),
        ([None, "4"], "4"),
        ([None, None], None),
    ],
)
async def test_the_policy_version_of_a_rollout_is_the_lowest_of_its_turns(
    versions: list[str | None], lowest: str | None, tmp_path
) -> None:
    def answer(request: Request) -> Completion:
        return Completion(content="go on", version=versions[request.turn])

    async def step(world: Any) -> Step:
        return Step(done=world.reply.turn == 1)

    rollout = await played(world([], step=step), tmp_path / "run", policy=answering(answer))
    assert rollout.policy.version == lowest
    [line] = exported(tmp_path / "run", "tinker")
    assert line["sampling_client_step"] == (int(lowest) if lowest and lowest.isdigit() else None)
