"""`--top-logprobs K`: the likeliest tokens at each place of a reply, asked for, kept, checked, exported; never guessed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest

import windrow
from tests.support.collect_helpers import answering, lines, single
from tests.support.exact_token_policy import ExactPolicy, Likelies
from tests.support.export_helpers import sampled
from tests.support.model_server import ModelServer, chat_reply, write_jsonl
from tests.support.raw_server import WireRequest, http, wire
from tests.support.replay_server import laid_down, replaying, request_of, shown_top
from tests.support.run_builders import write_run
from windrow import Completion, Request
from windrow.cli.main import main
from windrow.errors import EndpointError, UsageError
from windrow.exports.tokens.top import top_of
from windrow.exports.tokens.verify import problems
from windrow.policies.top_logprobs import TopToken, with_top
from windrow.records import Rollout, Tokens

pytestmark = pytest.mark.slow

TASK = {"prompt": "What is 40 + 2?", "answer": 42}
LIKELY = [[("4", -0.5), ("The", -1.5)], [("2", -0.25), ("3", -2.5)]]


def telling(body: dict[str, Any], n: int) -> dict[str, Any]:
    """What a server answers that tells as much as it is asked for."""
    reply = chat_reply(body, "42", n)
    if body.get("logprobs"):
        k = body["top_logprobs"]
        reply["choices"][0]["logprobs"] = {
            "content": [
                {
                    "token": place[0][0],
                    "logprob": place[0][1],
                    "top_logprobs": [{"token": text, "logprob": logprob} for text, logprob in place[:k]],
                }
                for place in LIKELY
            ]
        }
    return reply


def collect(tmp_path: Path, *flags: str, reply: Any = telling, expect: int = 0) -> list[dict[str, Any]]:
    """What was sent, in the order of the calls."""
    tasks = write_jsonl(tmp_path / "tasks.jsonl", [TASK])
    with ModelServer(reply) as server:
        arguments = ["collect", str(tasks), "--model", "stub", "--base-url", server.url, "--quiet"]
        assert main([*arguments, "--out", str(tmp_path / "run"), *flags]) == expect
        return list(server.bodies)


def line(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "run" / "rollouts.jsonl").read_bytes())
    return found


def test_they_are_asked_for_and_kept_and_capture_logprobs_is_implied(tmp_path: Path) -> None:
    *_, sent = collect(tmp_path, "--top-logprobs", "2", "--dialect", "openai")
    assert (sent["logprobs"], sent["top_logprobs"]) == (True, 2)
    recorded = line(tmp_path)
    assert recorded["capture"] == "logprobs"
    assert shown_top(recorded["turns"][0]["tokens"]["top"]) == {
        "k": 2,
        "texts": [["4", "The"], ["2", "3"]],
        "logprobs": [[-0.5, -1.5], [-0.25, -2.5]],
        "sampled": ["4", "2"],
    }
    [rollout] = windrow.load(tmp_path / "run")
    assert rollout.turns[0].tokens is not None
    assert msgspec.to_builtins(rollout.turns[0].tokens) == recorded["turns"][0]["tokens"]


def test_without_the_flag_nothing_is_asked_for_or_kept(tmp_path: Path) -> None:
    *_, sent = collect(tmp_path, "--capture", "logprobs", "--dialect", "openai")
    assert sent["top_logprobs"] == 0
    assert "top" not in line(tmp_path)["turns"][0]["tokens"]


def test_they_are_no_part_of_the_identity(tmp_path: Path) -> None:
    collect(tmp_path, "--top-logprobs", "2", "--dialect", "openai")
    assert collect(tmp_path, "--dialect", "openai") == []  # it is done


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"policy": answering("42")}, "--top-logprobs 2: policy 'scripted' does not give them"),
        (
            {"model": "m", "base_url": "http://127.0.0.1:9/v1", "dialect": "anthropic"},
            "--top-logprobs 2: policy 'chat' does not give them",
        ),
        (
            {"model": "m", "base_url": "http://127.0.0.1:9/v1", "capture": "text"},
            "--top-logprobs 2: --capture text keeps none; leave it out",
        ),
    ],
    ids=["a callable", "anthropic", "capture text"],
)
async def test_what_cannot_be_had_is_refused_before_anything_is_sent(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        await single([TASK], top_logprobs=2, out=str(tmp_path / "run"), **options)
    assert not (tmp_path / "run").exists()


def untold(body: dict[str, Any]) -> bytes:
    reply = telling({**body, "top_logprobs": 0}, 0)
    return http(200, reply)


def refused(body: dict[str, Any]) -> bytes:
    if body.get("top_logprobs", 0) > 1:
        return http(
            400, {"error": {"message": "Requested sample logprobs of 2, greater than max allowed: 1"}}
        )
    return untold(body)


@pytest.mark.parametrize(
    ("answer", "why"),
    [(untold, "its replies do not tell them"), (refused, "greater than max allowed: 1")],
    ids=["not told", "refused"],
)
async def test_an_endpoint_that_does_not_tell_them_is_refused_at_the_start(
    answer: Callable[[dict[str, Any]], bytes], why: str, tmp_path: Path
) -> None:
    def handle(request: WireRequest) -> bytes:
        if request.path.endswith("/models"):
            return http(200, {"data": [{"id": "stub"}]})
        return answer(request.json) if request.method == "POST" else http(404)

    async with wire(handle) as server:
        with pytest.raises(EndpointError, match=f"--top-logprobs 2: .*{why}"):
            await single([TASK], model="stub", base_url=server.url, top_logprobs=2, out=str(tmp_path / "run"))
    assert lines(tmp_path / "run") == []


@pytest.mark.parametrize("name", ["vllm/top.json", "openai/top.json", "responses/top.json"])
async def test_a_reply_that_tells_of_some_places_only_keeps_none_and_is_otherwise_whole(name: str) -> None:
    def forget(reply: dict[str, Any]) -> None:
        if "output" in reply:
            reply["output"][0]["content"][0]["logprobs"][1]["top_logprobs"] = []
        else:
            reply["choices"][0]["logprobs"]["content"][1]["top_logprobs"] = None

    case = laid_down(name)
    async with replaying(case, forget) as (policy, _):
        completion = await policy.complete(request_of(case["ask"]))
    assert completion.capture == case["completion"]["capture"]
    assert completion.tokens is not None
    assert completion.tokens.top is None


def test_half_a_character_in_a_token_is_replaced(tmp_path: Path) -> None:
    def broken(body: dict[str, Any], n: int) -> dict[str, Any]:
        reply = telling(body, n)
        reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0]["token"] = "\ud83d"
        return reply

    collect(tmp_path, "--top-logprobs", "2", "--dialect", "openai", reply=broken)
    [rollout] = windrow.load(tmp_path / "run")
    assert rollout.turns[0].tokens is not None
    assert rollout.turns[0].tokens.top["texts"][0] == ["\ufffd", "The"]


async def kept(tmp_path: Path, **options: Any) -> Rollout:
    """One exact rollout with its likeliest tokens, as it is read back."""
    policy = Likelies(lambda request: "hi")
    await single(
        [TASK], env="prompt", policy=policy, capture="tokens", top_logprobs=2, out=str(tmp_path / "run")
    )
    [rollout] = windrow.load(tmp_path / "run")
    return rollout


async def test_an_exact_rollout_keeps_them_by_id_and_passes_the_checks(tmp_path: Path) -> None:
    rollout = await kept(tmp_path)
    tokens = rollout.turns[0].tokens
    assert tokens is not None
    top = top_of(tokens)
    assert top is not None
    assert top.ids is not None
    assert top.ids.tolist() == [[104, 105], [105, 106], [2, 3]]
    assert top.logprobs.tolist() == [[-0.5, -1.5]] * 3
    assert problems(rollout) == []
    assert main(["verify", str(tmp_path / "run")]) == 0


def changed(rollout: Rollout, **top: Any) -> Rollout:
    [turn] = rollout.turns
    assert turn.tokens is not None
    tokens = msgspec.structs.replace(turn.tokens, top={**turn.tokens.top, **top})
    return msgspec.structs.replace(rollout, turns=(msgspec.structs.replace(turn, tokens=tokens),))


@pytest.mark.parametrize(
    "top",
    [
        {"k": 3},
        {"k": 0},
        {"k": None},
        {"ids": "AAAA"},
        {"ids": "?"},
        {"logprobs": 5},
        {"logprobs": "AACAPw==" * 3},
    ],
    ids=str,
)
async def test_likeliest_tokens_that_do_not_fit_are_found(top: dict[str, Any], tmp_path: Path) -> None:
    found = problems(changed(await kept(tmp_path), **top))
    assert [problem.check for problem in found] == ["top"]


async def test_likeliest_tokens_out_of_order_are_found(tmp_path: Path) -> None:
    rollout = await kept(tmp_path)
    assert rollout.turns[0].tokens is not None
    above: Tokens | None = with_top(rollout.turns[0].tokens, 2, [[TopToken(1, 0.5), TopToken(2, -1.0)]] * 3)
    assert above is not None
    [problem] = problems(changed(rollout, **above.top))
    assert (problem.check, "above 0" in problem.detail) == ("top", True)


async def test_parquet_has_them_for_each_place_that_is_trained(tmp_path: Path) -> None:
    rollout = await kept(tmp_path)
    tokens = rollout.turns[0].tokens
    assert tokens is not None
    run = write_run(tmp_path / "both", [rollout, sampled("without", index=1)])
    windrow.export(run, to="parquet", out=tmp_path / "rows.parquet")
    with_them, without = pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    prompt = len(with_them["input_ids"][0]) - 3
    assert with_them["top_ids"] == [[[]] * prompt + [[104, 105], [105, 106], [2, 3]]]
    assert with_them["top_logprobs"] == [[[]] * prompt + [[-0.5, -1.5]] * 3]
    assert (without["top_ids"], without["top_logprobs"]) == (None, None)


def test_a_place_with_fewer_is_filled_with_no_token(tmp_path: Path) -> None:
    tokens = Tokens(prefix=0, prompt_new=b"", output=b"", logprobs=b"\0" * 8, logprob_kind=None)
    found = with_top(
        tokens, 2, [[TopToken(7, -1.0), TopToken(8, -9999.0)], [TopToken(9, -2.0), TopToken(6, -1.0)]]
    )
    assert found is not None
    assert shown_top(found.top) == {
        "k": 2,
        "ids": [[7, -1], [6, 9]],
        "logprobs": [[-1.0, None], [-1.0, -2.0]],
    }


async def test_what_is_no_json_is_the_policys_fault(tmp_path: Path) -> None:
    class Odd(ExactPolicy):
        async def complete(self, request: Request) -> Completion:
            completion = await super().complete(request)
            assert completion.tokens is not None
            tokens = msgspec.structs.replace(completion.tokens, top={"k": object()})
            return msgspec.structs.replace(completion, tokens=tokens)

    rollout = await single(
        [TASK], env="prompt", policy=Odd(lambda request: "hi"), capture="tokens", out=str(tmp_path / "run")
    )
    assert rollout.error is not None
    assert (rollout.status, rollout.error.owner, rollout.error.kind) == ("failed", "policy", "bad_completion")
