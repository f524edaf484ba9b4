"""The real TRL 1.16: a row of `--to trl` is the sample that its asynchronous worker makes of the same group, and a class that its
`environment_factory` takes offers the same tools here."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pytest
from accelerate import PartialState
from transformers.utils import get_json_schema
from trl.experimental.async_grpo.async_rollout_worker import (
    RolloutGroup,
    RolloutSample,
    TrainingSequence,
    _AsyncRolloutLoop,
)

import windrow
from tests.support.collect_helpers import answering
from tests.support.exact_token_policy import ExactPolicy
from tests.support.export_helpers import exported
from tests.support.trl_env import Counter
from windrow import Completion, Request
from windrow.records import Call

MODULE = "tests.support.trl_env"
ROW: dict[str, Any] = {"prompt": "Go.", "goal": 4}


def counting(request: Request) -> Completion:
    """Adds a number of the sample's own, so that rewards differ, then answers."""
    if request.turn:
        return Completion(content="done")
    step = crc32(request.id.encode()) % 4
    call = Call(id="c", name="add", arguments=json.dumps({"step": step}))
    return Completion(content="", tool_calls=(call,))


class Versioned(ExactPolicy):
    async def complete(self, request: Request) -> Completion:
        return msgspec.structs.replace(await super().complete(request), version=str(10 - request.turn))


async def theirs(rows: list[dict[str, Any]]) -> list[RolloutSample]:
    """What its own worker makes of the group; reward functions say what the rows say."""
    worker: Any = SimpleNamespace(
        reward_funcs=[lambda completions, **_: [row["rewards"]["Counter"] for row in rows]],
        reward_func_names=["Counter"],
        _env_reward_types=[],
        _provides_rollout_reward=False,
    )
    group = RolloutGroup(
        prompts=[row["prompt"] for row in rows],
        reward_kwargs={},
        completions=[row["completion"] for row in rows],
        completions_ids=[row["completion_ids"] for row in rows],
        completions_sequences=[
            [
                TrainingSequence(
                    input_ids=row["prompt_ids"] + row["completion_ids"],
                    completion_mask=[0] * len(row["prompt_ids"]) + row["completion_mask"],
                    old_log_probs=[0.0] * len(row["prompt_ids"]) + row["logprobs"],
                    rollout_id=row["rollout_id"],
                )
            ]
            for row in rows
        ],
        tool_call_counts=[1] * len(rows),
        tool_failure_counts=[0] * len(rows),
        model_version=rows[0]["model_version"],
        group_id=0,
        env_rewards=[None] * len(rows),
        rollout_rewards=[None] * len(rows),
    )
    PartialState()  # their logger asks for it
    samples: list[RolloutSample] = await _AsyncRolloutLoop._score_group(worker, group)
    return samples


async def test_rows_are_the_samples_of_its_worker(tmp_path: Path) -> None:
    run = tmp_path / "run"
    async for _ in windrow.collect(
        [ROW],
        env=f"trl-env:{MODULE}:Counter",
        policy=Versioned(counting),
        samples=6,
        capture="tokens",
        out=str(run),
    ):
        pass
    rows = exported(run, "trl", advantages="population")
    samples = await theirs(rows)
    assert len(rows) == len(samples) == 6
    assert len({row["reward"] for row in rows}) > 1
    for row, sample in zip(rows, samples, strict=True):
        assert row["advantage"] == pytest.approx(sample.advantage, abs=1e-9)
        assert row["reward"] == pytest.approx(sample.metrics["reward"])
        assert row["rewards"]["Counter"] == sample.metrics["rewards/Counter"]
        assert (type(row["model_version"]), row["model_version"]) == (int, 9)  # the older of 10 and 9
        assert np.asarray(row["completion_mask"]).sum() == sample.completion_mask.sum() > 0
        roles = [message["role"] for message in row["completion"]]
        assert roles == ["assistant", "tool", "assistant"]
        assert isinstance(row["completion"][0]["tool_calls"][0]["function"]["arguments"], dict)


async def test_the_tools_of_an_environment_class_are_those_that_it_describes(tmp_path: Path) -> None:
    async for rollout in windrow.collect(
        [ROW], env=f"trl-env:{MODULE}:Counter", policy=answering("done"), out=str(tmp_path / "run")
    ):
        [ours] = rollout.tools
    wanted = get_json_schema(Counter().add)["function"]
    assert (ours["name"], ours["description"]) == (wanted["name"], wanted["description"])
    [[name, parameter]] = wanted["parameters"]["properties"].items()
    found = ours["parameters"]["properties"][name]
    assert {key: found[key] for key in parameter} == parameter
    assert ours["parameters"]["required"] == wanted["parameters"]["required"]
