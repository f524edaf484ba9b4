"""The endpoint is asked once what it is and what it gives; what it cannot give is refused before anything is collected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import collected, lines, single
from tests.support.raw_server import WireRequest, http, wire, wired
from windrow.cli.main import main
from windrow.errors import EndpointError

TASK = [{"prompt": "2 + 2?", "answer": "4"}]
IDENTITIES: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm": ("/version", {"version": "0.20.1"}),
    "sglang": ("/get_server_info", {"model_path": "m", "version": "0.6.1", "internal_states": []}),
    "llamacpp": ("/props", {"default_generation_settings": {}, "build_info": "b9000-abc", "total_slots": 1}),
}
PROMPT, IDS = [1, 2, 3], [7, 8]


class Engine:
    """A server of one kind; `scaled` logprobs follow the temperature, `mute` fields are left out of its replies."""

    def __init__(
        self, kind: str, *, mute: tuple[str, ...] = (), scaled: bool = False, refuses: str = ""
    ) -> None:
        self.kind = kind
        self.bodies: list[dict[str, Any]] = []
        self._mute = mute
        self._scaled = scaled
        self._refuses = refuses

    def __call__(self, request: WireRequest) -> bytes:
        if request.path == "/v1/models":
            return http(200, {"data": [{"id": "stub"}]})
        if (self.kind, request.path) in {(kind, path) for kind, (path, _) in IDENTITIES.items()}:
            return http(200, IDENTITIES[self.kind][1])
        if request.path == "/apply-template":
            return http(200, {"prompt": "text"})
        if request.path == "/tokenize":
            return http(200, {"tokens": PROMPT})
        if request.path == "/v1/chat/completions":
            self.bodies.append(request.json)
            if self._refuses in request.json:
                return http(400, {"error": {"message": f"Unrecognized request argument: {self._refuses}"}})
            return http(200, self._reply(request.json))
        return http(404, {"error": {"message": "not found"}})

    def _reply(self, body: dict[str, Any]) -> dict[str, Any]:
        logprob = -0.5 * (body.get("temperature", 1.0) if self._scaled else 1.0)
        likely = [{"logprob": logprob}] if body.get("top_logprobs") else []
        entries = [{"token": "4", "logprob": logprob, "top_logprobs": likely} for _ in IDS]
        if self.kind == "llamacpp":
            entries = [{**entry, "id": number} for entry, number in zip(entries, IDS, strict=True)]
        choice: dict[str, Any] = {
            "message": {"role": "assistant", "content": "4"},
            "finish_reason": "stop",
            "logprobs": {"content": entries},
        }
        reply: dict[str, Any] = {"model": "stub", "choices": [choice]}
        reply["usage"] = {"prompt_tokens": len(PROMPT), "completion_tokens": len(IDS)}
        if self.kind in ("vllm", "unnamed"):
            reply["prompt_token_ids"] = PROMPT
            choice["token_ids"] = IDS
        if self.kind == "sglang":
            choice |= {"prompt_token_ids": PROMPT, "response_token_ids": IDS}
        for field in self._mute:
            choice.pop(field, None)
            reply.pop(field, None)
        return reply


SENT = {
    "vllm": {"return_token_ids": True, "top_logprobs": 0},
    "sglang": {"return_token_ids": True, "return_prompt_token_ids": True, "top_logprobs": 0},
    "llamacpp": {"top_logprobs": 1},
    "unnamed": {"return_token_ids": True, "top_logprobs": 0},
}


@pytest.mark.parametrize("kind", SENT)
async def test_a_server_is_asked_in_its_own_dialect(kind: str, tmp_path: Path) -> None:
    engine = Engine(kind)
    async with wire(engine) as server:
        rollout = await single(
            TASK, model="stub", base_url=server.url, capture="tokens", out=str(tmp_path / "run")
        )
    asked = engine.bodies[-1]
    options = ("return_token_ids", "return_prompt_token_ids", "top_logprobs")
    assert {name: asked[name] for name in options if name in asked} == SENT[kind]
    assert (rollout.capture, rollout.reward) == ("tokens", 1.0)


@pytest.mark.parametrize(("scaled", "kind"), [(False, "raw"), (True, "processed")])
async def test_whether_logprobs_are_the_models_own_is_found_out(
    scaled: bool, kind: str, tmp_path: Path
) -> None:
    async with wire(Engine("vllm", scaled=scaled)) as server:
        rollout = await single(
            TASK, model="stub", base_url=server.url, capture="tokens", out=str(tmp_path / "run")
        )
    tokens = rollout.turns[0].tokens
    assert tokens is not None
    assert tokens.logprob_kind == kind


@pytest.mark.parametrize(
    ("engine", "wanted", "said"),
    [
        (Engine("vllm", mute=("token_ids",)), "tokens", "gives logprobs as 'vllm'"),
        (Engine("vllm", mute=("logprobs",)), "tokens", "gives text as 'vllm'"),
        (Engine("unnamed", mute=("logprobs",)), "logprobs", "gives text as 'openai'"),
        (Engine("unnamed", refuses="return_token_ids"), "tokens", "gives logprobs as 'openai'"),
        (Engine("unnamed", refuses="return_token_ids"), "tokens", "Unrecognized request argument"),
    ],
    ids=["no ids", "no logprobs", "no logprobs wanted alone", "ids refused", "ids refused, in words"],
)
async def test_what_an_endpoint_cannot_give_is_refused_at_the_start(
    engine: Engine, wanted: str, said: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    async with wire(engine) as server:
        with pytest.raises(EndpointError) as refusal:
            await collected(TASK, model="stub", base_url=server.url, capture=wanted, out=str(run))
    assert f"--capture {wanted}: " in str(refusal.value)
    assert said in str(refusal.value)
    assert "Collect with --capture" in str(refusal.value)
    assert lines(run) == []


async def test_text_is_not_asked_about(tmp_path: Path) -> None:
    engine = Engine("vllm")
    async with wire(engine) as server:
        await single(TASK, model="stub", base_url=server.url, out=str(tmp_path / "run"))
        assert [request.path for request in server.requests] == ["/v1/models", "/v1/chat/completions"]


async def test_a_busy_endpoint_is_not_refused(tmp_path: Path) -> None:
    """What its replies reach is on each record anyway."""
    engine = Engine("vllm")

    def busy_at_first(request: WireRequest) -> bytes:
        if request.path.endswith("/completions") and not engine.bodies:
            engine.bodies.append({})
            return http(503, {"error": {"message": "busy"}})
        return engine(request)

    async with wire(busy_at_first) as server:
        rollout = await single(
            TASK, model="stub", base_url=server.url, capture="tokens", out=str(tmp_path / "run")
        )
    assert rollout.capture == "tokens"


async def test_neither_dialect_nor_level_is_part_of_the_identity(tmp_path: Path) -> None:
    ids = set()
    for dialect, capture in (
        ("auto", "text"),
        ("auto", "tokens"),
        ("openai", "logprobs"),
        ("vllm", "tokens"),
    ):
        async with wire(Engine("vllm")) as server:
            rollout = await single(
                TASK,
                model="stub",
                base_url=server.url,
                capture=capture,
                dialect=dialect,
                out=str(tmp_path / f"{dialect}-{capture}"),
            )
        ids.add((rollout.id, rollout.policy.fingerprint))
    assert len(ids) == 1


def test_a_level_that_a_dialect_never_reaches_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"prompt": "2 + 2?", "answer": "4"}\n', encoding="utf-8")
    command = ["collect", str(tasks), "--model", "m", "--base-url", "http://127.0.0.1:9/v1"]
    assert main([*command, "--dialect", "openai", "--capture", "tokens"]) == 2
    assert "can be captured as none, text, logprobs" in capsys.readouterr().err


def test_the_doctor_says_what_a_server_is_and_how_it_can_be_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with wired(Engine("sglang", scaled=True)) as server:
        main(["doctor", "--model", "stub", "--base-url", server.url])
    said = " ".join(capsys.readouterr().out.split())
    assert "server SGLang 0.6.1" in said
    assert "logprobs logprobs of sampled tokens, processed" in said
    assert "ok top logprobs likeliest tokens at each place" in said
    assert "ok scoring logprobs of ids that it is given" in said
    assert "capture --capture tokens, as dialect 'sglang'" in said


def test_the_doctor_says_what_a_server_does_not_give(capsys: pytest.CaptureFixture[str]) -> None:
    with wired(Engine("unnamed", mute=("logprobs",))) as server:
        main(["doctor", "--model", "stub", "--base-url", server.url])
    said = " ".join(capsys.readouterr().out.split())
    assert "top logprobs no likeliest tokens" in said
    assert "scoring no logprobs of ids" in said
