"""`--to trl`: every sampled token in one row, under a mask, with its logprob; nothing that is not exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.support.exact_token_policy import ExactPolicy, ids_of
from tests.support.export_helpers import exported, said, sampled
from tests.support.run_builders import folder_in_memory, write_run
from tests.support.scripted_envs import played, world
from windrow import Completion, Observation, Request, Tool
from windrow.cli.main import main
from windrow.errors import ExportError, UsageError
from windrow.records import Call

Calls = list[tuple[list[int], list[int]]]


def calling(request: Request) -> Completion:
    if request.turn:
        return Completion(content="done")
    return Completion(content="look", tool_calls=(Call(id="c", name="look", arguments="{}"),))


async def test_the_rows_of_a_tool_episode_are_the_ids_that_the_policy_saw_and_said(tmp_path: Path) -> None:
    async def reset(env: Any) -> Observation:
        tool = Tool(name="look", description="", parameters={"type": "object"}, call=lambda: "a wall")
        return Observation([{"role": "user", "content": "go"}], (tool,))

    policy = ExactPolicy(calling)
    env = world([], turns=2, reset=reset)
    rollout = await played(env, tmp_path / "run", policy=policy, capture="tokens")
    [row] = exported(tmp_path / "run", "trl")
    assert row["prompt_ids"] == policy.prompts[0]
    assert row["prompt_ids"] + row["completion_ids"] == policy.prompts[1] + policy.outputs[1]
    trained = [id for id, kept in zip(row["completion_ids"], row["completion_mask"], strict=True) if kept]
    assert trained == policy.outputs[0] + policy.outputs[1]
    context = [id for id, kept in zip(row["completion_ids"], row["completion_mask"], strict=True) if not kept]
    assert bytes(context).find(bytes(ids_of("a wall"))) > 0, "what the tool said is there, and masked"
    assert row["logprobs"] == [-0.5 * kept for kept in row["completion_mask"]]
    assert (row["rollout_id"], row["segment"], row["segments"]) == (rollout.id, 0, 1)


def test_a_row_says_where_it_is_from_and_how_its_rollout_ended(tmp_path: Path) -> None:
    rollout = sampled("a", reward=0.5, status="truncated", stop="max_turns")
    asked = (Call(id="c", name="look", arguments="{}"),)
    messages = (rollout.messages[0], msgspec.structs.replace(rollout.messages[1], tool_calls=asked))
    versions = msgspec.structs.replace(rollout.turns[0], versions=((0, "v1"), (1, "v2")))
    run = write_run(
        tmp_path / "run", [msgspec.structs.replace(rollout, messages=messages, turns=(versions,))]
    )
    [row] = exported(run, "trl")
    assert row == {
        "prompt_ids": [1, 2],
        "completion_ids": [3, 4],
        "completion_mask": [1, 1],
        "logprobs": [-1.0, -1.125],
        "prompt": [{"role": "user", "content": "a"}],
        "completion": [
            {
                "role": "assistant",
                "content": "a!",
                "tool_calls": [
                    {"type": "function", "id": "c", "function": {"name": "look", "arguments": {}}}
                ],
            }
        ],
        "reward": 0.5,
        "rewards": {"judge": 0.5},
        "reward_weights": {"judge": 1.0},
        "metrics": None,
        "model_version": None,
        "rollout_id": rollout.id,
        "segment": 0,
        "segments": 1,
        "group": rollout.group,
        "sample": 0,
        "task": "a",
        "model": "m",
        "status": "truncated",
        "stop": "max_turns",
        "truncated": True,
        "unanswered_tool_calls": 1,
        "logprob_kind": None,
        "versions": [
            {"start": 0, "stop": 1, "version": "v1"},
            {"start": 1, "stop": 2, "version": "v2"},
        ],
    }


def test_a_rollout_that_forked_has_a_row_for_each_branch_with_one_advantage(tmp_path: Path) -> None:
    forked = sampled("t", [([1], [2, 3]), ([1, 2, 3, 4], [5]), ([1, 9], [6])], reward=1.0)
    run = write_run(tmp_path / "run", [forked, sampled("t", sample=1, reward=0.0)])
    rows = exported(run, "trl", advantages="centered")
    assert [(row["prompt_ids"], row["completion_ids"], row["completion_mask"]) for row in rows] == [
        ([1], [2, 3, 4, 5], [1, 1, 0, 1]),
        ([1, 9], [6], [1]),
        ([1, 2], [3, 4], [1, 1]),
    ]
    assert [(row["segment"], row["advantage"]) for row in rows] == [(0, 0.5), (1, 0.5), (0, -0.5)]


def test_sequences_are_merged_over_other_end_of_turn_ids_when_those_are_given(tmp_path: Path) -> None:
    drifted = sampled("t", [([1], [5, 2]), ([1, 5, 7, 8], [6])])
    run = write_run(tmp_path / "run", [drifted])
    assert len(exported(run, "trl")) == 2
    [row] = exported(run, "trl", end_of_turn=[2, 7])
    assert (row["completion_ids"], row["completion_mask"]) == ([5, 2, 8, 6], [1, 1, 0, 1])
    with pytest.raises(UsageError, match=r"end_of_turn 2: expected a list of ids, such as \[2, 198\]"):
        windrow.export(run, to="trl", out=tmp_path / "out.jsonl", end_of_turn=2)


@st.composite
def trees(draw: st.DrawFn) -> Calls:
    """Turns that go on from one another, or begin anew."""
    ids = st.lists(st.integers(1, 3), min_size=1, max_size=4)
    calls: Calls = []
    for _ in range(draw(st.integers(1, 8))):
        before = draw(st.sampled_from([None, *calls]))
        start = [] if before is None else before[0] + before[1]
        calls.append((start + draw(ids), draw(ids)))
    return calls


@pytest.mark.slow
@given(st.lists(trees(), min_size=1, max_size=4))
def test_lengths_agree_and_masks_sum_to_the_sampled_tokens(rollouts: list[Calls]) -> None:
    with folder_in_memory() as folder:
        lines = [sampled(str(n), calls, index=n) for n, calls in enumerate(rollouts)]
        rows = exported(write_run(folder / "run", lines), "trl")
    for rollout, calls in zip(lines, rollouts, strict=True):
        own = [row for row in rows if row["rollout_id"] == rollout.id]
        assert [row["segment"] for row in own] == list(range(own[0]["segments"]))
        assert sum(sum(row["completion_mask"]) for row in own) == sum(len(output) for _, output in calls)
        for row in own:
            lengths = {len(row[name]) for name in ("completion_ids", "completion_mask", "logprobs")}
            assert len(lengths) == 1
            assert row["prompt_ids"], "a model was given something"
            assert row["completion_mask"][0] == 1, "the prompt ends where training begins"
            for mask, logprob in zip(row["completion_mask"], row["logprobs"], strict=True):
                assert (logprob < 0) == bool(mask)


# -- what is refused


def test_what_is_not_exact_is_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [sampled("a"), said("b", index=1), said("c", index=2), sampled("d", index=3, capture="logprobs")]
    run = write_run(tmp_path / "run", lines)
    assert main(["export", str(run), "--to", "trl", "-o", str(tmp_path / "out.jsonl")]) == 0
    said_of_it = capsys.readouterr().out
    assert "1 rows of 1 rollouts (trl)" in said_of_it
    hint = "(collect with --capture tokens)"
    assert f"left out: 2 captured as text {hint}, 1 captured as logprobs {hint}" in said_of_it


def test_a_run_without_tokens_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = write_run(tmp_path / "run", [said("a")]), tmp_path / "out.jsonl"
    assert main(["export", str(run), "--to", "trl", "-o", str(out)]) == 1
    assert f"nothing of {run} is left to export (1 captured as text (collect with" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"logprobs": b"\0" * 4}, "other numbers of ids and logprobs"),
        ({"logprobs": np.array([0.5, -1], "<f4").tobytes()}, "not finite or above 0"),
        ({"logprobs": np.array([np.nan, -1], "<f4").tobytes()}, "not finite or above 0"),
        ({"continues": 3, "prefix": 2}, "prompts cannot be rebuilt"),
        ({"output": np.array([-1, 3], "<i4").tobytes()}, "an id below 0"),
        ({"logprobs": None}, "say more than they hold"),
    ],
    ids=["length", "positive", "nan", "prefix", "negative", "none"],
)
def test_tokens_that_do_not_hold_are_never_written_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], why: str
) -> None:
    good, bad = sampled("a"), sampled("b", index=1)
    wrong = msgspec.structs.replace(bad.turns[0].tokens, **change)
    bad = msgspec.structs.replace(bad, turns=(msgspec.structs.replace(bad.turns[0], tokens=wrong),))
    run, out = write_run(tmp_path / "run", [good, bad]), tmp_path / "out.jsonl"
    assert main(["export", str(run), "--to", "trl", "-o", str(out)]) == 1
    shown = capsys.readouterr().out
    assert "invalid, left out: 1 rollouts" in shown
    assert why in shown
    assert [msgspec.json.decode(line)["task"] for line in out.read_bytes().splitlines()] == ["a"]


def test_a_logprob_that_stands_for_none_is_said(tmp_path: Path) -> None:
    rollout = sampled("a")
    wrong = msgspec.structs.replace(
        rollout.turns[0].tokens, logprobs=np.array([-9999.0, -1], "<f4").tobytes()
    )
    turn = msgspec.structs.replace(rollout.turns[0], tokens=wrong)
    run = write_run(tmp_path / "run", [msgspec.structs.replace(rollout, turns=(turn,))])
    report = windrow.export(run, to="trl", out=tmp_path / "out.jsonl")
    assert report.notes == {"rollouts with a logprob that stands for none": 1}


def test_a_rollout_in_which_nothing_was_sampled_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [sampled("a"), sampled("b", (), index=1)])
    report = windrow.export(run, to="trl", out=tmp_path / "out.jsonl")
    assert report.left_out == {"with no sampled token": 1}


# -- advantages


def advantages(run: Path, kind: str) -> list[float]:
    return [row["advantage"] for row in exported(run, "trl", advantages=kind)]


@settings(max_examples=30)  # each is two exports
@given(
    st.lists(st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 3)), min_size=2, max_size=6)
)
def test_advantages_are_what_trl_computes_of_the_same_rewards(rewards: list[float]) -> None:
    with folder_in_memory() as folder:
        lines = [sampled("t", sample=n, reward=reward) for n, reward in enumerate(rewards)]
        run = write_run(folder / "run", lines)
        found = np.array([advantages(run, "grpo"), advantages(run, "centered")])
    of = np.array(rewards)
    if (of == of[0]).all():
        assert not found.any(), "exactly 0"
    else:
        assert np.allclose(found[0], (of - of.mean()) / (of.std(ddof=1) + 1e-4), rtol=1e-9, atol=1e-9)
        assert np.allclose(found[1], of - of.mean(), rtol=1e-9, atol=1e-9)


def test_a_group_of_equal_rewards_or_of_one_has_advantage_0_and_that_is_said(tmp_path: Path) -> None:
    same = [sampled("t", sample=n, reward=0.1) for n in range(3)]
    run = write_run(tmp_path / "run", [*same, sampled("u", index=1, reward=1.0)])
    for kind in ("grpo", "centered"):
        assert advantages(run, kind) == [0.0, 0.0, 0.0, 0.0]
    report = windrow.export(run, to="trl", out=tmp_path / "out.jsonl", advantages="grpo")
    assert list(report.notes.values()) == [4]


def test_without_a_reward_there_is_no_advantage(tmp_path: Path) -> None:
    lines = [sampled("t", reward=1.0), sampled("t", sample=1, reward=0.0), sampled("t", sample=2)]
    run = write_run(tmp_path / "run", lines)
    assert advantages(run, "centered") == [0.5, -0.5]
    rows = exported(run, "trl")
    assert [row["reward"] for row in rows] == [1.0, 0.0, None]
    assert not any("advantage" in row for row in rows)
    with pytest.raises(ExportError, match="1 not graded"):
        windrow.export(
            write_run(tmp_path / "none", lines[2:]), to="trl", out=tmp_path / "o", advantages="grpo"
        )


def test_the_baseline_is_the_whole_groups_also_of_what_is_not_written(tmp_path: Path) -> None:
    lines = [sampled("t", reward=1.0), said("t", sample=1, reward=0.0), sampled("t", sample=2, reward=0.5)]
    run = write_run(tmp_path / "run", lines)
    rows = exported(run, "trl", advantages="centered", min_reward=0.75)
    assert [row["advantage"] for row in rows] == [0.5]


def test_advantages_of_another_name_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [sampled("t")])
    with pytest.raises(UsageError, match="advantages 'rloo': expected one of none, grpo, centered"):
        windrow.export(run, to="trl", out=tmp_path / "out.jsonl", advantages="rloo")


def test_a_version_that_is_a_number_is_one_and_the_oldest_counts(tmp_path: Path) -> None:
    rollout = sampled("a", [([1], [2, 3])])
    turn = msgspec.structs.replace(rollout.turns[0], versions=((0, "10"), (1, "9")))
    run = write_run(tmp_path / "run", [msgspec.structs.replace(rollout, turns=(turn,))])
    assert [row["model_version"] for row in exported(run, "trl")] == [9]


def test_the_advantage_of_its_asynchronous_worker_has_a_name(tmp_path: Path) -> None:
    rewards = [1.0, 0.0, 0.0, 0.5]
    run = write_run(tmp_path / "run", [sampled("t", sample=n, reward=r) for n, r in enumerate(rewards)])
    mean, std = np.mean(rewards), np.std(rewards)
    wanted = [(reward - mean) / (std + 1e-8) for reward in rewards]
    assert [row["advantage"] for row in exported(run, "trl", advantages="population")] == pytest.approx(
        wanted
    )
