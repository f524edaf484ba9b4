"""The real llama.cpp: a multi-turn episode's ids are those that the server saw, and its logprobs those it would give again.

The server is the one that `--model local` brings; a door before it keeps what comes in.
"""

from __future__ import annotations

import json
import urllib.request
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.collect_helpers import single
from tests.support.raw_server import WireRequest, http, wired
from windrow import Env, Observation, Step, Tool
from windrow.config import LocalConfig
from windrow.policies.local import local_policy
from windrow.policies.models import DEFAULT_MODEL, find_model, pull
from windrow.util.redaction import Redactor
from windrow.util.token_contexts import context_ids, prompt_ids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NUMBER = {"type": "number"}
PARAMETERS = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}
ADD = Tool(name="add", description="Add two numbers.", parameters=PARAMETERS, call=lambda a, b: a + b)
NEXT = ("Call add with a = 3 and b = 4.", "Write a smiling emoji.")


class Sums(Env):
    """Three replies; tools in between."""

    version = 1

    async def reset(self, task: Any) -> Observation:
        self._asked = 0
        return Observation([{"role": "user", "content": task["prompt"]}], [ADD])

    async def step(self, reply: Any, results: Any) -> Step:
        if self._asked == len(NEXT):
            return Step(done=True)
        self._asked += 1
        return Step(messages=[{"role": "user", "content": NEXT[self._asked - 1]}])


class Server:
    """The server itself, asked directly."""

    def __init__(self, url: str) -> None:
        self.root = url.removesuffix("/v1")

    def send(self, path: str, body: bytes | None) -> bytes:
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(self.root + path, data=body or None, headers=headers), timeout=120
        ) as answer:
            told: bytes = answer.read()
            return told

    def ask(self, path: str, **body: Any) -> Any:
        return json.loads(self.send(path, json.dumps(body).encode()))

    def logprob(self, prefix: list[int], token: int, *, anew: bool) -> float:
        """Of a token after a prefix: looked for among the likeliest, then among all.

        In the order of the episode, from nothing: in batches of another size the kernels round otherwise.
        """
        for n_probs in (500, 100_000):
            forced: dict[str, Any] = {"n_predict": 1, "logit_bias": [["a", 1000.0]], "cache_prompt": not anew}
            reply = self.ask("/completion", prompt=prefix, n_probs=n_probs, **forced)
            for one in reply["completion_probabilities"][0]["top_logprobs"]:
                if one["id"] == token:
                    return float(one["logprob"])
        raise AssertionError(f"the server does not know of {token}")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    pull(find_model(DEFAULT_MODEL))
    policy = local_policy("", LocalConfig(parallel=1, context_tokens=2048), Redactor())
    await policy.open()
    try:
        yield Server(policy.where)
    finally:
        await policy.close()


async def test_an_episode_is_kept_as_the_server_saw_it_and_scores_the_same_again(
    server: Server, tmp_path: Path
) -> None:
    sent: list[list[int]] = []

    def door(request: WireRequest) -> bytes:
        if request.path == "/completion" and "logit_bias" not in request.json:
            sent.append(request.json["prompt"])
        return http(200, json.loads(server.send(request.path, request.body)))

    with wired(door) as front:
        rollout = await single(
            [{"prompt": "Add 9 and 33."}],
            model="smollm2",
            base_url=front.url,
            dialect="llamacpp-completion",
            capture="tokens",
            env=Sums,
            temperature=0.3,
            max_tokens=64,
            seeds="sample",
            sets=["policy.probe=false"],
            out=str(tmp_path / "run"),
        )
    assert rollout.error is None, rollout.error
    assert (rollout.capture, len(rollout.turns)) == ("tokens", 3)
    assert [call.name for turn in rollout.turns for call in turn.tool_calls]
    for number, turn in enumerate(rollout.turns):
        assert turn.tokens is not None
        prompt = array("i", prompt_ids(rollout.turns, number)).tolist()
        output = array("i", turn.tokens.output).tolist()
        assert prompt == sent[number]
        assert turn.usage is not None
        assert (len(prompt), len(output)) == (turn.usage.prompt_tokens, turn.usage.completion_tokens)
        if number:  # the prompt goes on from all that was seen and said before
            assert prompt[: turn.tokens.prefix] == array("i", context_ids(rollout.turns, number - 1)).tolist()
        text = server.ask("/detokenize", tokens=prompt)["content"]
        assert server.ask("/tokenize", content=text, add_special=True, parse_special=True)["tokens"] == prompt
        recorded = array("f", turn.tokens.logprobs or b"").tolist()
        for position, (token, logprob) in enumerate(zip(output, recorded, strict=True)):
            again = server.logprob([*prompt, *output[:position]], token, anew=number == position == 0)
            assert abs(again - logprob) <= 1e-3, (number, position)


async def test_a_reply_that_fills_the_context_is_kept_as_exactly(tmp_path: Path) -> None:
    pull(find_model(DEFAULT_MODEL))
    rollout = await single(
        [{"prompt": "Write a long story of a whale. " * 8, "answer": "-"}],
        model="local",
        sets=["policy.local.context_tokens=128", "policy.local.parallel=2"],
        max_tokens=400,
        out=str(tmp_path / "run"),
    )
    assert (rollout.status, rollout.stop, rollout.capture) == ("truncated", "length", "tokens")
    assert rollout.usage.completion_tokens < 400
