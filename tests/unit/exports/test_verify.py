"""`windrow verify`: what is fatal for training, what is worth a look, and that a good run passes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.exact_token_policy import ExactPolicy, make_turn, tokens
from tests.support.run_builders import make_rollout, write_lines, write_run
from tests.support.scripted_envs import played, world
from windrow.cli.main import main
from windrow.exports.tokens.verify import CHECKS, problems, verify_run
from windrow.records import Rollout, Tokens, Turn, Usage

GOOD = tokens([1, 2], [3])


def exact(*turns: Turn, **changes: Any) -> Rollout:
    return make_rollout(turns=turns, capture="tokens", **changes)


def changed(**changes: Any) -> Tokens:
    return msgspec.structs.replace(GOOD, **changes)


async def test_a_collected_run_passes_and_says_how_much_there_is_to_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = ExactPolicy(lambda request: "yes")
    await played(world([], turns=3), tmp_path / "run", policy=policy, capture="tokens")
    assert main(["verify", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert f"1 attempts, 1 exact, {sum(map(len, policy.outputs))} tokens to train" in out
    assert out.endswith("0 fatal, 0 warnings\n")


BROKEN = {
    "a prefix of nothing": ("prefix", [make_turn(changed(prefix=1))]),
    "a prefix that is too long": ("prefix", [make_turn(GOOD), make_turn(changed(prefix=4, continues=0))]),
    "continues itself": ("prefix", [make_turn(changed(prefix=1, continues=0))]),
    "a logprob too few": ("length", [make_turn(tokens([1], [2, 3], logprobs=[-1.0]))]),
    "half an id": ("length", [make_turn(changed(output=b"123456"))]),
    "no logprobs": ("length", [make_turn(changed(logprobs=None))]),
    "a logprob above 0": ("logprob", [make_turn(tokens([1], [2], logprobs=[0.25]))]),
    "a logprob of minus infinity": ("logprob", [make_turn(tokens([1], [2], logprobs=[-math.inf]))]),
    "a logprob that is no number": ("logprob", [make_turn(tokens([1], [2], logprobs=[math.nan]))]),
    "an id below 0": ("ids", [make_turn(tokens([1], [-2]))]),
    "a reply without tokens": ("capture", [make_turn(None, writes=0)]),
    "a reply without ids": ("capture", [make_turn(tokens([1], [], logprobs=[]), writes=0)]),
    "a logprob that stands for none": ("placeholder", [make_turn(tokens([1], [2], logprobs=[-9999.0]))]),
    "versions out of order": ("versions", [make_turn(GOOD, versions=((0, "a"), (0, "b")))]),
    "other counts": ("usage", [make_turn(GOOD, usage=Usage(prompt_tokens=2, completion_tokens=2))]),
}


@pytest.mark.parametrize(("check", "turns"), BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_with_a_rollouts_tokens_is_found(tmp_path: Path, check: str, turns: list[Turn]) -> None:
    run = write_run(tmp_path / "run", [exact(*turns), make_rollout("good")])
    verdict = verify_run(run)
    assert [(finding.check, finding.count) for finding in verdict.findings] == [(check, 1)]
    level = CHECKS[check][0]
    assert (verdict.fatal, verdict.warnings) == ((1, 0) if level == "fatal" else (0, 1))
    assert verdict.findings[0].examples[0].startswith(exact().id)
    assert main(["verify", str(run)]) == (1 if level == "fatal" else 0)


def test_usage_that_agrees_and_a_logprob_of_0_are_no_problem() -> None:
    sure = tokens([1, 2], [3], logprobs=[0.0])
    assert problems(exact(make_turn(sure, usage=Usage(prompt_tokens=2, completion_tokens=1)))) == []


def test_a_lower_level_need_not_hold_ids() -> None:
    logprobs = make_turn(tokens([], [], logprobs=[-1.0]), writes=0)
    assert problems(make_rollout(turns=(logprobs,), capture="logprobs")) == []
    assert [
        p.check for p in problems(make_rollout(turns=(make_turn(None, writes=0),), capture="logprobs"))
    ] == ["capture"]
    assert problems(make_rollout(turns=(make_turn(None, writes=0),), capture="text")) == []


def test_lines_are_counted_that_are_damaged_or_there_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", [make_rollout("a"), make_rollout("b"), make_rollout("a")])
    write_lines(run / "rollouts.other.jsonl", [make_rollout("a", attempt=2), make_rollout("b")])
    with (run / "rollouts.jsonl").open("ab") as log:
        log.write(b"{\n")
    assert main(["verify", str(run), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["attempts"] == 5
    counts = {finding["check"]: finding["count"] for finding in found["findings"]}
    assert counts == {"bad_line": 1, "duplicate": 2}


def test_a_task_that_is_nowhere_is_fatal(tmp_path: Path) -> None:
    nowhere = make_rollout("a")
    nowhere = msgspec.structs.replace(nowhere, task=msgspec.structs.replace(nowhere.task, data=None))
    run = write_run(tmp_path / "run", [nowhere, make_rollout("b")])
    assert [(f.check, f.count) for f in verify_run(run).findings] == [("task_missing", 1)]
    (run / "tasks.jsonl").write_bytes(b"")
    assert [(f.check, f.count) for f in verify_run(run).findings] == [("task_missing", 2)]
