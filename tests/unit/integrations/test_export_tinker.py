"""`--to tinker`: rollout summaries with whole traces on every path, and datums in which each sampled token is trained once.

tests/interop/test_tinker.py holds both against tinker-cookbook itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import windrow
from tests.support.collect_helpers import answering
from tests.support.exact_token_policy import ExactPolicy
from tests.support.export_helpers import exported, said, sampled
from tests.support.judged_runs import judged
from tests.support.model_server import ModelServer
from tests.support.run_builders import FAILED, collect, rows, write_run
from tests.support.scripted_envs import played, world
from tests.unit.engine.test_episode_ends import PATHS, Sent, World
from windrow import Completion, Observation, Request, Score, Step, Tool
from windrow.cli.main import main
from windrow.errors import UsageError
from windrow.integrations.tinker.summaries import STOPS
from windrow.records import Call, Message, Rollout

# As tinker-cookbook 0.5 writes a line, and a step of it; stop_reason and trace are of its pull request 748.
LINE = """schema_version split iteration group_idx traj_idx tags sampling_client_step total_reward final_reward
    trajectory_metrics steps final_ob_len"""
STEP = set("step_idx ob_len ac_len reward episode_done metrics logs stop_reason trace".split())


def summaries(run: Path, **settings: Any) -> list[dict[str, Any]]:
    return exported(run, "tinker", **settings)


def datums(run: Path, **settings: Any) -> list[dict[str, Any]]:
    """The rows of the file beside the summaries."""
    folder = run.parent / f"tinker-{sum(1 for _ in run.parent.iterdir())}"
    folder.mkdir()
    windrow.export(run, to="tinker", out=folder / "train_rollout_summaries.jsonl", **settings)
    return [json.loads(line) for line in (folder / "train_datums.jsonl").read_bytes().splitlines()]


def tensors(datum: dict[str, Any]) -> dict[str, list[float]]:
    for tensor in datum["loss_fn_inputs"].values():
        assert tensor["shape"] == [len(tensor["data"])] == [len(inputs(datum))]
    return {name: tensor["data"] for name, tensor in datum["loss_fn_inputs"].items()}


def inputs(datum: dict[str, Any]) -> list[int]:
    [chunk] = datum["model_input"]["chunks"]
    assert chunk["type"] == "encoded_text"
    found: list[int] = chunk["tokens"]
    return found


async def test_a_tool_episode_is_a_line_with_a_step_for_each_reply(tmp_path: Path) -> None:
    def answer(request: Request) -> Completion:
        if request.turn:
            return Completion(content="a wall", reasoning="so it is", finish="stop")
        return Completion(
            content="", tool_calls=(Call(id="c", name="look", arguments="{}"),), finish="tool_calls"
        )

    async def reset(env: Any) -> Observation:
        tool = Tool(name="look", description="", parameters={"type": "object"}, call=lambda: "a wall")
        return Observation([{"role": "user", "content": "go"}], (tool,))

    async def step(env: Any) -> Step:
        done = env.steps == 2
        return Step(
            reward=0.25, done=done, state={"at": env.steps}, metrics={"moves": 1.0}, info={"seen": ["wall"]}
        )

    async def score(env: Any) -> Score:
        return Score({"right": (1.0, 2.0)}, evidence="42", metrics={"walls": 1.0})

    policy = ExactPolicy(answer)
    env = world([], reset=reset, step=step, score=score)
    task = {"prompt": "go", "tags": ["maze"]}
    rollout = await played(env, tmp_path / "run", policy=policy, capture="tokens", task=task, split="test")
    [line] = summaries(tmp_path / "run")
    first, last = line.pop("steps")
    assert line == {
        "schema_version": 1,
        "split": "eval/test",
        "iteration": 0,
        "group_idx": 0,
        "traj_idx": 0,
        "tags": [rollout.task.source, "maze"],
        "sampling_client_step": None,
        "total_reward": 2.5,
        "final_reward": 2.0,
        "trajectory_metrics": {**rollout.metrics, "score/right": 1.0},
        "final_ob_len": 0,
        "windrow": {
            "rollout_id": rollout.id,
            "attempt": 1,
            "group": rollout.group,
            "sample": 0,
            "seat": None,
            "task": rollout.task.key,
            "model": rollout.policy.model,
            "status": "completed",
            "stop": "env_done",
            "grade": "graded",
            "error": None,
        },
    }
    asked = {"role": "user", "content": "go"}
    call = {"type": "function", "id": "c", "function": {"name": "look", "arguments": "{}"}}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "content": "a wall", "tool_call_id": "c"}
    ran = first["trace"]["extra"].pop("tool_calls")
    assert [(tool["id"], tool["name"], tool["failed"]) for tool in ran] == [("c", "look", False)]
    assert first == {
        "step_idx": 0,
        "ob_len": len(policy.prompts[0]),
        "ac_len": len(policy.outputs[0]),
        "reward": 0.25,
        "episode_done": False,
        "metrics": {"moves": 1.0},
        "logs": {},
        "stop_reason": "stop",
        "trace": {
            "prompt": {"type": "conversation", "messages": [asked]},
            "policy_response": {"type": "conversation", "messages": [called]},
            "reward_data": {"step_reward": 0.25},
            "env_state": {"at": 1},
            "extra": {"next_messages": [result], "info": {"seen": ["wall"]}},
        },
    }
    thought = [{"type": "thinking", "thinking": "so it is"}, {"type": "text", "text": "a wall"}]
    assert last["trace"] == {
        "prompt": {"type": "conversation", "messages": [asked, called, result]},
        "policy_response": {
            "type": "conversation",
            "messages": [{"role": "assistant", "content": thought}],
        },
        "reward_data": {
            "step_reward": 0.25,
            "total_reward": 2.5,
            "scores": {"right": 1.0},
            "weights": {"right": 2.0},
        },
        "env_state": {"at": 2},
        "extra": {"info": {"seen": ["wall"]}, "evidence": {"right": "42"}},
    }
    assert (last["episode_done"], last["metrics"]) == (True, {"moves": 1.0, "stop/completed": 1.0})
    assert (last["ob_len"], last["ac_len"]) == (len(policy.prompts[1]), len(policy.outputs[1]))


WAITING = ("takes too long", "the episode's time")


@pytest.mark.slow
@pytest.mark.parametrize("path", [name for name in PATHS if not any(word in name for word in WAITING)])
async def test_the_trace_is_whole_on_every_path_and_its_numbers_are_numbers(
    path: str, tmp_path: Path
) -> None:
    way = PATHS[path]
    sent = Sent(way.policy)
    rollout = await played(World, tmp_path / "run", policy=sent, **way.options)
    if way.grade == "failed":
        with pytest.raises(windrow.errors.ExportError, match="1 not graded"):
            summaries(tmp_path / "run", failed=True)
        return
    [line] = summaries(tmp_path / "run", failed=True)
    assert set(line) == {*LINE.split(), "windrow"}
    assert line["total_reward"] == rollout.reward, "null, and not 0, where nobody graded"
    steps = line["steps"]
    assert [set(step) for step in steps] == [STEP] * way.turns
    prompts = [[message["content"] for message in json.loads(prompt)] for prompt in sent.prompts]
    assert [
        [message["content"] for message in step["trace"]["prompt"]["messages"]] for step in steps
    ] == prompts
    assert ["policy_response" in step["trace"] for step in steps] == [
        turn.writes is not None for turn in rollout.turns
    ]
    assert [step["episode_done"] for step in steps] == [
        way.status != "failed" and step is steps[-1] for step in steps
    ]
    stops = {name: value for step in steps for name, value in step["metrics"].items() if "stop/" in name}
    assert stops == ({f"stop/{STOPS[rollout.stop]}": 1.0} if rollout.stop in STOPS and steps else {})
    if line["total_reward"] is not None:
        total = sum(step["reward"] for step in steps) + line["final_reward"]
        assert total == pytest.approx(line["total_reward"])
    for step in steps:
        assert all(
            type(number) in (int, float) for number in numbers_of(step["trace"].get("reward_data", {}))
        )
        assert all(type(number) in (int, float) for number in step["metrics"].values())
        assert [type(step[name]) for name in ("reward", "episode_done")] == [float, bool]


def numbers_of(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [number for inner in value.values() for number in numbers_of(inner)]
    return [value]


def test_a_reply_that_could_not_be_read_says_so_and_is_masked_when_asked(tmp_path: Path) -> None:
    rollout = sampled("t", [([1], [2, 3]), ([1, 2, 3, 4], [5, 6])], reward=1.0)
    wrong = msgspec.structs.replace(rollout.turns[0], parse_error="no call", finish="length")
    run = write_run(
        tmp_path / "run",
        [
            msgspec.structs.replace(rollout, turns=(wrong, rollout.turns[1])),
            sampled("t", sample=1, reward=0.0),
        ],
    )
    step = summaries(run)[0]["steps"][0]
    assert (step["metrics"], step["logs"]) == ({"parse_error": 1.0}, {"parse_error": "no call"})
    assert (step["stop_reason"], step["trace"]["extra"]["parse_error"]) == ("length", "no call")
    assert tensors(datums(run)[0])["mask"] == [1.0, 1.0, 0.0, 1.0, 1.0]
    masked = tensors(datums(run, mask_parse_errors=True)[0])
    assert masked["mask"] == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert masked["advantages"] == [0.0, 0.0, 0.0, 0.5, 0.5]
    assert masked["logprobs"] == [-1.0, -1.125, 0.0, -2.0, -2.125], "as sampled, also of what is masked"
    step = summaries(run, mask_parse_errors=True)[0]["steps"][0]
    assert step["metrics"] == {"parse_error": 1.0, "parse_error_masked": 1.0}


def test_a_datum_predicts_each_id_from_those_before_it(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        [
            sampled("t", [([1, 2], [3]), ([1, 2, 3, 4], [5])], reward=1.0, index=7),
            sampled("t", sample=1, reward=0.0, index=7),
        ],
    )
    first, second = datums(run)
    assert inputs(first) == [1, 2, 3, 4]
    assert tensors(first) == {
        "target_tokens": [2, 3, 4, 5],
        "logprobs": [0.0, -1.0, 0.0, -2.0],
        "advantages": [0.0, 0.5, 0.0, 0.5],
        "mask": [0.0, 1.0, 0.0, 1.0],
    }
    assert {name: tensor["dtype"] for name, tensor in first["loss_fn_inputs"].items()} == {
        "target_tokens": "int64",
        "logprobs": "float32",
        "advantages": "float32",
        "mask": "float32",
    }
    assert [(row["group_idx"], row["traj_idx"]) for row in (first, second)] == [(7, 0), (7, 1)]
    assert tensors(second)["advantages"] == [0.0, -0.5, -0.5]


def test_a_rollout_whose_prompts_did_not_grow_is_several_datums(tmp_path: Path) -> None:
    forked = sampled("t", [([1], [2, 3]), ([1, 2, 3, 4], [5]), ([1, 9], [6])], reward=1.0)
    found = datums(write_run(tmp_path / "run", [forked]))
    assert [(inputs(row), tensors(row)["mask"]) for row in found] == [
        ([1, 2, 3, 4], [1.0, 1.0, 0.0, 1.0]),
        ([1, 9], [0.0, 1.0]),
    ]
    assert [(row["segment"], row["segments"], row["rollout_id"]) for row in found] == [
        (0, 2, forked.id),
        (1, 2, forked.id),
    ]


def test_places_and_baselines_do_not_depend_on_what_else_is_exported(tmp_path: Path) -> None:
    lines = [sampled("a", sample=n, reward=r, index=3) for n, r in enumerate((0.0, 0.0, 1.0))]
    run = write_run(tmp_path / "run", lines)
    [row] = datums(run, min_reward=1.0)
    assert (row["group_idx"], row["traj_idx"]) == (3, 2)
    assert max(tensors(row)["advantages"]) == pytest.approx(2 / 3)
    [line] = summaries(run, min_reward=1.0)
    assert (line["group_idx"], line["traj_idx"]) == (3, 2)
    seats = [sampled("b", seat=n, seats=2, episode="e", sample=1, reward=1.0, id=f"s{n}") for n in (0, 1)]
    found = summaries(write_run(tmp_path / "match", seats))
    assert [line["traj_idx"] for line in found] == [2, 3]


def test_what_nobody_was_to_grade_has_no_reward_and_what_nobody_could_grade_is_left_out(
    tmp_path: Path,
) -> None:
    run = write_run(
        tmp_path / "run",
        [sampled("a"), sampled("b", grade="pending", index=1), sampled("c", grade="failed", index=2)],
    )
    report = windrow.export(run, to="tinker", out=tmp_path / "out.jsonl")
    assert report.left_out == {"not graded": 2}
    [note] = report.notes
    assert note.startswith("rollouts that nobody was to grade")
    [line] = summaries(run)
    assert (line["total_reward"], line["final_reward"]) == (None, None)
    [row] = datums(run)
    assert (tensors(row)["mask"], set(tensors(row)["advantages"])) == ([0.0, 1.0, 1.0], {0.0})


def test_what_has_no_datums_is_counted_by_why(tmp_path: Path) -> None:
    image = Message(role="user", content=[{"blob": "ab", "media_type": "image/png"}], origin="task")
    seen = sampled("c", reward=1.0, index=2)
    seen = msgspec.structs.replace(seen, messages=(image, *seen.messages[1:]))
    inline = Message(
        role="user", content=[{"type": "image_url", "image_url": {"url": "data:,"}}], origin="task"
    )
    within = sampled("e", reward=1.0, index=4)
    within = msgspec.structs.replace(within, messages=(inline, *within.messages[1:]))
    failed = sampled("d", status="failed", stop="error", error=FAILED, index=3)
    run = write_run(
        tmp_path / "run", [sampled("a", reward=1.0), said("b", reward=0.0, index=1), seen, failed, within]
    )
    report = windrow.export(run, to="tinker", out=tmp_path / "out.jsonl", failed=True)
    assert (report.rows, report.exported) == (5, 5)
    assert [line["windrow"]["error"] for line in summaries(run, failed=True)][3] == {
        "owner": "infra",
        "kind": "http_503",
        "message": "busy",
    }
    why = [note for note in report.notes if "without datums" in note]
    assert why == [
        "rollouts without datums: they were captured as text (collect with --capture tokens)",
        "rollouts without datums: they have images, which are no token ids",
        "rollouts without datums: they did not end well",
    ]
    assert [row["rollout_id"] for row in datums(run, failed=True)] == [sampled("a").id]
    part = summaries(run)[2]["steps"][0]["trace"]["prompt"]["messages"][0]["content"]
    assert part == [{"type": "image", "blob": "ab", "media_type": "image/png"}]


def test_iteration_split_and_trace_are_said_or_asked_for(tmp_path: Path) -> None:
    policy = msgspec.structs.replace(sampled("t").policy, version="12")
    run = write_run(tmp_path / "run", [sampled("t", reward=1.0, policy=policy)])
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**manifest, "config": {"pass": 4}}))
    [line] = summaries(run)
    assert (line["iteration"], line["split"], line["sampling_client_step"]) == (4, "train", 12)
    [line] = summaries(run, iteration=9, split="eval/held-out", trace="none")
    assert (line["iteration"], line["split"]) == (9, "eval/held-out")
    assert [set(step) for step in line["steps"]] == [STEP - {"trace"}]


async def test_each_line_says_of_which_pass_it_is(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for number in (2, 3):
        await collect(run, tasks=rows(2), samples=1, pass_=number)
    lines = [(line["iteration"], line["group_idx"], line["traj_idx"]) for line in summaries(run)]
    assert sorted(lines) == [(2, 0, 0), (2, 1, 0), (3, 0, 0), (3, 1, 0)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"advantages": "none"}, "advantages 'none': expected one of grpo, centered"),
        ({"trace": "some"}, "trace 'some': expected full or none"),
        ({"iteration": -1}, "iteration -1: expected a number from 0 on"),
        ({"iteration": True}, "iteration True: expected a number from 0 on"),
        ({"split": 3}, "split is a text, such as eval/gsm8k"),
        ({"mask_parse_errors": "yes"}, "mask_parse_errors true or false"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(tmp_path: Path, settings: Any, said: str) -> None:
    run = write_run(tmp_path / "run", [sampled("t", reward=1.0)])
    with pytest.raises(UsageError, match=said):
        windrow.export(run, to="tinker", out=tmp_path / "out.jsonl", **settings)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_record_that_contradicts_itself_is_in_neither_file_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def turn_of(rollout: Rollout, **changes: Any) -> Rollout:
        turn = msgspec.structs.replace(rollout.turns[0], **changes)
        return msgspec.structs.replace(rollout, turns=(turn,))

    good = sampled("good", reward=1.0)
    bad = [
        turn_of(sampled("reads", reward=1.0, index=1), reads=((0, 99),)),
        turn_of(sampled("writes", reward=1.0, index=2), writes=9),
        turn_of(
            sampled("tokens", reward=1.0, index=3),
            tokens=msgspec.structs.replace(good.turns[0].tokens, continues=5, prefix=3),
        ),
    ]
    run = write_run(tmp_path / "run", [good, *bad])
    assert main(["export", str(run), "--to", "tinker", "-o", str(tmp_path / "out.jsonl")]) == 1
    assert "invalid, left out: " in capsys.readouterr().out
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1
    [row] = (tmp_path / "out_datums.jsonl").read_text().splitlines()
    assert json.loads(row)["rollout_id"] == good.id


def test_both_files_appear_or_none(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [sampled("t", reward=1.0)])
    (tmp_path / "x_datums.jsonl").write_text("mine")
    with pytest.raises(UsageError, match=r"x_datums\.jsonl exists; --overwrite replaces it"):
        windrow.export(run, to="tinker", out=tmp_path / "x_rollout_summaries.jsonl")
    assert [path.name for path in tmp_path.glob("*x_*")] == ["x_datums.jsonl"]
    windrow.export(run, to="tinker", out=tmp_path / "x_rollout_summaries.jsonl", overwrite=True)
    assert json.loads((tmp_path / "x_datums.jsonl").read_text())["segments"] == 1


@pytest.mark.slow
def test_summaries_of_text_need_no_numpy(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [said("t", reward=1.0)])
    code = "import sys; sys.modules['numpy'] = None; from windrow.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [
        sys.executable,
        "-c",
        code,
        "export",
        str(run),
        "--to",
        "tinker",
        "-o",
        str(tmp_path / "o.jsonl"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "1 rows of 1 rollouts (tinker)" in done.stdout) == (0, True), done.stderr


async def test_a_call_without_a_reply_claims_no_reason_and_no_lengths(tmp_path: Path) -> None:
    def overflowing(request: Request) -> Completion:
        raise windrow.errors.ContextOverflow("too long")

    await played(world([]), tmp_path / "run", policy=answering(overflowing))
    [line] = summaries(tmp_path / "run")
    [step] = line["steps"]
    assert (step["stop_reason"], step["ob_len"], step["ac_len"]) == (None, 0, 0)
    assert step["metrics"] == {"stop/context_overflow": 1.0, "context_overflow": 1.0}


def test_a_cut_reply_and_the_reference_answer_are_said(tmp_path: Path) -> None:
    rollout = said("a", reward=0.0, status="truncated", stop="length")
    turn = msgspec.structs.replace(rollout.turns[0], finish="length")
    task = msgspec.structs.replace(rollout.task, data={"prompt": "a", "answer": 42})
    run = write_run(tmp_path / "run", [msgspec.structs.replace(rollout, turns=(turn,), task=task)])
    [step] = summaries(run)[0]["steps"]
    assert step["metrics"] == {"stop/max_tokens": 1.0, "max_tokens_reached": 1.0}
    assert step["stop_reason"] == "length"
    assert step["trace"]["extra"]["reference_answer"] == 42


def test_a_seat_says_whether_its_game_is_over_and_a_preference_whether_its_format_was_valid(
    tmp_path: Path,
) -> None:
    lines = [
        said("a", reward=0.0, seat=0, seats=2, episode="e"),
        said("a", reward=0.0, seat=1, seats=2, episode="e", id="other-seat"),
        said("b", reward=0.0, index=1, env="preference"),
        said("c", reward=0.0, index=2, env="preference", status="truncated", stop="length"),
    ]
    found = [line["steps"][0]["trace"]["env_state"] for line in summaries(write_run(tmp_path / "run", lines))]
    assert found == [
        {"game_done": True},
        {"game_done": True},
        {"valid_format": True},
        {"valid_format": False},
    ]


async def test_the_words_of_judges_stand_with_the_replies_that_they_are_about(
    tmp_path: Path,
) -> None:
    server = ModelServer(lambda body, n: "A is clearer. <verdict>A</verdict>")
    with server:
        await judged(tmp_path / "run", [{"prompt": "hi"}], server, env="preference", samples=3)
    for number, line in enumerate(summaries(tmp_path / "run")):
        judgements = line["steps"][-1]["trace"]["extra"]["judgements"]
        assert judgements
        assert all(f"sample {number}" in each["about"] for each in judgements)
        assert {each["reply"] for each in judgements} == {"A is clearer. <verdict>A</verdict>"}
