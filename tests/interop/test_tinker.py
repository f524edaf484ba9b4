"""The real tinker-cookbook: what `--to tinker` writes is read by its own types and store, and is what its own code makes of the same
trajectories."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tinker
from hypothesis import given, settings
from hypothesis import strategies as st
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.renderers.base import ToolCall, message_to_jsonable
from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages
from tinker_cookbook.rl.rollout_logging import serialize_rollout_summaries
from tinker_cookbook.rl.types import STOP_METRIC_PREFIX, StopReason, Trajectory, TrajectoryGroup, Transition
from tinker_cookbook.stores.storage import LocalStorage
from tinker_cookbook.stores.training_store import TrainingRunStore
from tinker_cookbook.utils.logtree_formatters import ConversationFormatter

import windrow
from tests.support.collect_helpers import answering
from tests.support.exact_token_policy import ExactPolicy, numbers
from tests.support.export_helpers import sampled
from tests.support.run_builders import folder_in_memory, write_run
from windrow import Completion, Env, Observation, Request, Score, Step, Tool
from windrow.errors import UsageError
from windrow.exports.tokens.arrays import floats_of
from windrow.integrations.tinker.summaries import STOPS
from windrow.records import Call, Rollout, Stop
from windrow.util.token_contexts import prompt_ids

OURS = (
    "windrow",
)  # what a line has beyond their schema; a step: stop_reason and trace, of their pull request 748
OF_STEPS = ("stop_reason", "trace")


class Maze(Env):
    """Three turns: a call of a tool, a reply that cannot be read, an answer; a reward for each, and a score."""

    async def reset(self, task: Any) -> Observation:
        self.steps = 0
        look = Tool(name="look", description="", parameters={"type": "object"}, call=lambda: "a wall")
        return Observation([{"role": "user", "content": task["prompt"]}], (look,))

    async def step(self, reply: Any, results: Any) -> Step:
        self.steps += 1
        said = [{"role": "user", "content": f"step {self.steps}"}]
        wrong = "no direction" if self.steps == 2 else None
        return Step(
            messages=said,
            reward=0.25 * self.steps,
            metrics={"depth": float(self.steps)},
            state={"at": self.steps},
            done=self.steps == 3,
            parse_error=wrong,
        )

    async def score(self, episode: Any) -> Score:
        said = [message for message in episode.messages if message.origin == "policy"]
        return Score(float(len(said[-1].text)), evidence="42")


def talking() -> Callable[[Request], Completion]:
    """Calls the tool first; each reply is longer than the one before it, so that no two rewards are alike."""
    length = count(1)

    def answer(request: Request) -> Completion:
        if request.turn == 0:
            call = Call(id="c", name="look", arguments='{"far": true}')
            return Completion(content="", tool_calls=(call,))
        return Completion(content="n" * next(length), reasoning="why not")

    return answer


class Written(NamedTuple):
    run: Path
    folder: Path
    lines: list[dict[str, Any]]
    data: list[tinker.Datum]
    places: list[dict[str, int]]

    @property
    def rollouts(self) -> list[Rollout]:
        return list(windrow.load(self.run))


def write(run: Path, folder: Path, **options: Any) -> Written:
    """An export into the directory of an iteration, the datums read by the types of tinker itself."""
    home = folder / "iteration_000003"
    home.mkdir(parents=True)
    windrow.export(run, to="tinker", out=home / "train_rollout_summaries.jsonl", iteration=3, **options)
    lines = [json.loads(line) for line in (home / "train_rollout_summaries.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (home / "train_datums.jsonl").read_text().splitlines()]
    data = [
        tinker.Datum(
            model_input=tinker.ModelInput.model_validate(row["model_input"]),
            loss_fn_inputs={
                name: tinker.TensorData(**tensor) for name, tensor in row["loss_fn_inputs"].items()
            },
        )
        for row in rows
    ]
    places = [{"group_idx": row["group_idx"], "traj_idx": row["traj_idx"]} for row in rows]
    return Written(run, folder, lines, data, places)


def theirs(rollouts: list[Rollout], *, masked: bool = False) -> list[TrajectoryGroup]:
    """The same episodes as trajectories of theirs, made from the record alone."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return [
        TrajectoryGroup(
            trajectories_G=[trajectory(rollout, masked=masked) for rollout in group],
            final_rewards_G=[
                float(sum(score.weight * score.value for score in rollout.scores.values()))
                for rollout in group
            ],
            metrics_G=[
                rollout.metrics | {f"score/{name}": score.value for name, score in rollout.scores.items()}
                for rollout in group
            ],
        )
        for group in groups.values()
    ]


def trajectory(rollout: Rollout, *, masked: bool) -> Trajectory:
    transitions = []
    for number, turn in enumerate(rollout.turns):
        assert turn.tokens is not None
        assert turn.tokens.logprobs is not None
        last = number == len(rollout.turns) - 1
        metrics = dict(turn.metrics or {})
        if turn.parse_error is not None:
            metrics |= {"parse_error": 1.0} | ({"parse_error_masked": 1.0} if masked else {})
        if last:
            metrics[f"{STOP_METRIC_PREFIX}{StopReason.COMPLETED}"] = 1.0
        transitions.append(
            Transition(
                ob=tinker.ModelInput.from_ints(numbers(prompt_ids(rollout.turns, number))),
                ac=TokensWithLogprobs(
                    tokens=numbers(turn.tokens.output),
                    maybe_logprobs=floats_of(turn.tokens.logprobs).tolist(),
                ),
                reward=turn.reward or 0.0,
                episode_done=last,
                metrics=metrics,
                logs={} if turn.parse_error is None else {"parse_error": turn.parse_error},
            )
        )
    return Trajectory(transitions=transitions, final_ob=tinker.ModelInput.empty())


@pytest.fixture
async def written(tmp_path: Path) -> Written:
    rows = [{"prompt": f"maze {n}", "tags": ["maze"]} for n in range(3)]
    options: dict[str, Any] = {"samples": 4, "capture": "tokens", "out": str(tmp_path / "run")}
    async for _ in windrow.collect(rows, env=Maze, policy=ExactPolicy(talking()), **options):
        pass
    return write(tmp_path / "run", tmp_path)


def same(ours: tinker.Datum, other: tinker.Datum) -> None:
    assert ours.model_input == other.model_input
    assert ours.loss_fn_inputs.keys() == other.loss_fn_inputs.keys()
    for name, tensor in other.loss_fn_inputs.items():
        found = ours.loss_fn_inputs[name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), name
        exactly = name != "advantages"  # which they centre in 32 bits
        assert found.data == (tensor.data if exactly else pytest.approx(tensor.data, abs=1e-6)), name


@pytest.mark.parametrize("masked", [False, True], ids=["as they are", "parse errors masked"])
def test_datums_are_those_that_its_own_conversion_makes(written: Written, masked: bool) -> None:
    if masked:
        written = write(written.run, written.folder / "masked", mask_parse_errors=True)
    groups = theirs(written.rollouts, masked=masked)
    wanted, places = assemble_training_data(groups, compute_advantages(groups))
    assert len(wanted) == len(written.data) == 12
    assert written.places == places
    for ours, other in zip(written.data, wanted, strict=True):
        same(ours, other)
    assert len({max(datum.loss_fn_inputs["advantages"].data, key=abs) for datum in wanted}) > 2, (
        "rewards differ"
    )


def test_summaries_are_those_that_its_own_serialiser_writes_and_its_store_reads(written: Written) -> None:
    groups = theirs(written.rollouts)
    tags = [written.lines[0]["tags"]] * len(groups)
    wanted = serialize_rollout_summaries(
        split="train", iteration=3, trajectory_groups_P=groups, taglist_P=tags
    )
    ours = [{key: value for key, value in line.items() if key not in OURS} for line in written.lines]
    for line in ours:
        line["steps"] = [
            {key: value for key, value in step.items() if key not in OF_STEPS} for step in line["steps"]
        ]
    assert ours == wanted
    assert {type(line["total_reward"]) for line in ours} == {float}
    store = TrainingRunStore(LocalStorage(written.folder))
    assert store.read_rollouts(3) == written.lines
    assert store.read_single_rollout(3, 1, 2) == written.lines[6]
    [found] = store.list_iterations()
    assert (found.iteration, found.has_train_rollouts) == (3, True)


def test_conversations_of_the_trace_are_as_its_own_formatter_writes_them(written: Written) -> None:
    talks = [
        step["trace"][part]
        for line in written.lines
        for step in line["steps"]
        for part in ("prompt", "policy_response")
    ]
    assert len(talks) == 12 * 3 * 2
    assert any("tool_calls" in message for talk in talks for message in talk["messages"])
    for talk in talks:
        messages = [
            {**message, **({"tool_calls": calls} if (calls := calls_of(message)) else {})}
            for message in talk["messages"]
        ]
        formatter = ConversationFormatter(messages=messages)  # type: ignore[arg-type]
        assert formatter.to_data() == talk
        assert "lt-message-user" in formatter.to_html() or talk["messages"][0]["role"] == "assistant"
        assert [message_to_jsonable(message) for message in messages] == talk["messages"]  # type: ignore[arg-type]


def calls_of(message: dict[str, Any]) -> list[ToolCall]:
    return [ToolCall.model_validate(call) for call in message.get("tool_calls", ())]


def test_every_stop_reason_is_one_of_its_own() -> None:
    assert set(STOPS.values()) <= {reason.value for reason in StopReason}
    assert set(Stop.__args__) - set(STOPS) == {"error", "cancelled"}  # type: ignore[attr-defined]


Calls = list[tuple[list[int], list[int]]]


@st.composite
def trees(draw: st.DrawFn) -> Calls:
    """Turns that go on from one another, or begin anew."""
    ids = st.lists(st.integers(1, 3), min_size=1, max_size=4)
    calls: Calls = []
    for _ in range(draw(st.integers(1, 6))):
        before = draw(st.sampled_from([None, *calls]))
        start = [] if before is None else before[0] + before[1]
        calls.append((start + draw(ids), draw(ids)))
    return calls


@settings(deadline=None, max_examples=50)
@given(st.lists(trees(), min_size=1, max_size=3))
def test_however_an_agent_branches_the_same_ids_are_trained_after_the_same_context(
    episodes: list[Calls],
) -> None:
    """Their walk closes a datum at each break; ours also finds what an earlier turn goes on from. What is trained is the same."""
    lines = [sampled("t", calls, sample=n, reward=float(n)) for n, calls in enumerate(episodes)]
    with folder_in_memory() as folder:
        found = write(write_run(folder / "run", lines), folder)
    groups = theirs(lines)
    wanted, _ = assemble_training_data(groups, compute_advantages(groups))
    assert trained(found.data) == trained(wanted)
    assert len(found.data) <= len(wanted)


def trained(data: list[tinker.Datum]) -> Counter[tuple[Any, ...]]:
    """Each trained id with all that stood before it."""
    found: Counter[tuple[Any, ...]] = Counter()
    for datum in data:
        ids = datum.model_input.to_ints()
        columns = [
            datum.loss_fn_inputs[name].data for name in ("target_tokens", "logprobs", "advantages", "mask")
        ]
        for place, (target, logprob, advantage, mask) in enumerate(zip(*columns, strict=True)):
            if mask:
                found[tuple(ids[: place + 1]), target, logprob, round(advantage, 5)] += 1
    return found


FACTORIES = "tests.interop.tinker_factories"


async def bridged(
    factory: str, folder: Path, answer: Callable[[Request], Any], samples: int = 1
) -> list[Rollout]:
    """The rollouts of builders of theirs, played by a policy of ours, in the order of the run."""
    out = folder / "run"
    async for _ in windrow.collect(
        f"tinker:{FACTORIES}:{factory}", policy=answering(answer), samples=samples, out=str(out)
    ):
        pass
    return list(windrow.load(out))


async def test_its_problems_are_played_and_graded_by_its_own_code(tmp_path: Path) -> None:
    rollouts = await bridged(
        "sums", tmp_path, lambda request: "= 7" if "4 + 3" in request.messages[-1].text else "?", 2
    )
    assert [(r.task.key, r.reward, r.stop) for r in rollouts] == [
        (f"{FACTORIES}:sums:0", 1.0, "env_done"),
        (f"{FACTORIES}:sums:0", 1.0, "env_done"),
        (f"{FACTORIES}:sums:1", 0.0, "env_done"),
        (f"{FACTORIES}:sums:1", 0.0, "env_done"),
    ]
    assert rollouts[0].task.tags == ("arithmetic",)
    assert [m.role for m in rollouts[0].messages] == ["user", "assistant", "user", "assistant"]
    assert rollouts[0].turns[0].metrics == {"correct": 1.0, "format": 1.0}
    assert rollouts[0].turns[0].reads == ((0, 3),)


async def test_a_reply_that_was_cut_is_graded_by_its_own_rule(tmp_path: Path) -> None:
    cut = Completion(content="= 7, = 8", finish="length")
    first, second = await bridged("sums", tmp_path, lambda request: cut)
    assert (first.status, first.stop, first.grade) == ("truncated", "length", "graded")
    assert first.reward == pytest.approx(-0.1)  # no format
    assert second.reward == pytest.approx(0.9)


async def test_its_guessing_game_goes_on_over_turns_with_its_own_rewards(tmp_path: Path) -> None:
    def guess(request: Request) -> str:
        return ["500", "Guess: 500", "Guess: 512", *["Guess: 1"] * 7][request.turn]

    won, lost = await bridged("numbers", tmp_path, guess)
    assert [turn.reward for turn in won.turns] == [-1.0, 0.0, 1.0]
    assert (won.reward, won.stop) == (0.0, "env_done")
    assert won.turns[2].info == {"guess": "Guess: 512", "feedback": "Correct", "target": 512}
    assert [turn.reads for turn in won.turns] == [((0, 1),), ((0, 3),), ((0, 5),)]  # each message once
    assert len(lost.turns) == 10
    assert lost.reward == -1.0


async def test_its_twenty_questions_ask_the_model_that_the_factory_brought(tmp_path: Path) -> None:
    replies = ["Is it a fruit?", "Guess: apple"]
    [rollout] = await bridged("questions", tmp_path, lambda request: replies[request.turn])
    assert [message.text for message in rollout.messages[1:]] == ["Is it a fruit?", "Yes", "Guess: apple"]
    assert (rollout.reward, [turn.reward for turn in rollout.turns]) == (1.0, [0.0, 1.0])


async def test_a_bridge_to_something_else_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gave str; expected an EnvGroupBuilder"):
        await bridged("nothing", tmp_path, lambda request: "")
    with pytest.raises(UsageError, match="has no 'absent'"):
        await bridged("absent", tmp_path, lambda request: "")


async def test_a_row_names_a_factory_only_where_it_is_trusted(tmp_path: Path) -> None:
    row = {"env": "tinker", "factory": f"{FACTORIES}:sums", "index": 0}
    options: dict[str, Any] = {"policy": answering(lambda request: "= 7"), "out": str(tmp_path / "run")}
    with pytest.raises(UsageError, match="would import the module"):
        async for _ in windrow.collect([row], **options):
            pass
