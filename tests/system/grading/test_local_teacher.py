"""Distillation with the model in the process: its likeliest tokens, and itself as its teacher, which must agree with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.collect_helpers import single
from tests.support.command_process import Project
from windrow.config import LocalConfig
from windrow.errors import PolicyError
from windrow.exports.tokens.arrays import floats_of, ids_of
from windrow.exports.tokens.top import top_of
from windrow.exports.tokens.verify import problems
from windrow.policies import Request
from windrow.policies.base import ForcedTokens
from windrow.policies.local import local_policy
from windrow.policies.models import DEFAULT_MODEL, find_model, pull
from windrow.util.redaction import Redactor

EXAMPLES = Path(__file__).parents[3] / "examples"
ROOM = ("--set", "policy.local.parallel=2", "--max-tokens", "12")
CLOSE = 1e-3  # batches of another size round otherwise

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def model() -> None:
    pull(find_model(DEFAULT_MODEL))


def test_the_distillation_example_keeps_what_student_and_teacher_say_and_they_agree(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    project = Project(tmp_path)
    done = project.windrow("collect", "--config", "examples/distill.yaml", "--out", "run", *ROOM)
    assert done.code == 0, done.err
    rollouts = project.rollouts()
    assert len(rollouts) == 3
    compared = 0
    for rollout in rollouts:
        assert (rollout.env, rollout.grade, rollout.reward) == ("prompt", "none", None)
        assert problems(rollout) == []
        tokens = rollout.turns[0].tokens
        assert tokens is not None
        assert tokens.teacher is not None
        student, teacher = floats_of(tokens.logprobs or b""), floats_of(tokens.teacher.logprobs)
        assert np.abs(student - teacher).max() < CLOSE
        assert abs(rollout.metrics["teacher_kl"]) < CLOSE
        assert rollout.metrics["teacher_logprob"] == pytest.approx(float(student.mean()), abs=CLOSE)
        top = top_of(tokens)
        assert top is not None
        assert top.ids is not None
        assert top.ids.shape == (len(student), 5)
        likely = top.ids == ids_of(tokens.output)[:, None]  # where the sampled one is among the likeliest
        apart = np.abs((top.logprobs - student[:, None])[likely])
        compared += apart.size
        assert (apart < CLOSE).all()
        assert np.exp(top.logprobs).sum(axis=1).max() < 1 + CLOSE
    assert compared


async def test_native_tool_calls_have_likeliest_tokens_too(tmp_path: Path) -> None:
    """Then the embedded server is asked as a chat."""
    from tests.system.policies.test_local_tokens import Sums

    rollout = await single(
        [{"prompt": "Add 9 and 33."}],
        model="local",
        env=Sums,
        top_logprobs=3,
        max_turns=1,
        max_tokens=16,
        tool_calls="native",
        sets=["policy.local.parallel=1"],
        out=str(tmp_path / "run"),
    )
    tokens = rollout.turns[0].tokens
    assert tokens is not None
    assert tokens.top["k"] == 3


def given(output: list[int], text: str | None) -> Request:
    return Request(
        messages=(),
        tools=(),
        sampling={},
        id="r",
        attempt=1,
        turn=0,
        capture="tokens",
        forced=ForcedTokens([1, 4093, 198, 19556, 2, 198, 1, 520, 9531, 198], output, text),
    )


async def test_any_ids_are_scored_as_if_they_had_been_sampled_also_parts_of_characters(
    tmp_path: Path,
) -> None:
    policy = local_policy("", LocalConfig(parallel=1, context_tokens=512), Redactor())
    await policy.open()
    try:
        [endpoint] = policy.endpoints
        asked = {"content": "Fine, 😀 naïve 日本", "add_special": False, "parse_special": True}
        ids = [*((await endpoint.ask_tokenizer("/tokenize", asked)).tokens or ()), 2]
        completion = await policy.complete(given(ids, "Fine, 😀 naïve 日本"))
        assert completion.tokens is not None
        found = floats_of(completion.tokens.logprobs or b"")
        assert len(found) == len(ids)
        again = [await policy.complete(given(ids[: n + 1], None)) for n in (0, len(ids) // 2)]
        for n, shorter in zip((0, len(ids) // 2), again, strict=True):
            assert shorter.tokens is not None
            assert np.abs(floats_of(shorter.tokens.logprobs or b"") - found[: n + 1]).max() < CLOSE
        for wrong, said in ((10**6, "does not know the id"), (ids[0], "another vocabulary")):
            with pytest.raises(PolicyError, match=said):
                await policy.complete(given([wrong], "Nothing of the kind"))
    finally:
        await policy.close()
