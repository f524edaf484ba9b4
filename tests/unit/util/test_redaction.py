"""A key goes from the environment into a request header, and nowhere else, whatever the server does with it."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.support.model_server import ModelServer, chat_reply, write_jsonl
from windrow.cli.main import main
from windrow.config import expand
from windrow.util.redaction import MASK, MIN_SECRET_CHARS, Redactor, is_secret

KEY = "sk-Ab/9+cd_EFGH.1234567890"


def command(cwd: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """The real command in a directory of its own, with these variables and no key from outside."""
    inherited = {name: value for name, value in os.environ.items() if "API_KEY" not in name}
    return subprocess.run(
        [sys.executable, "-m", "windrow", *arguments],
        cwd=cwd,
        env={**inherited, **variables},
        capture_output=True,
        timeout=120,
    )


def assert_nowhere(key: str, cwd: Path, *done: subprocess.CompletedProcess[bytes]) -> None:
    said = {f"stream {n}": text for n, run in enumerate(done) for text in (run.stdout, run.stderr)}
    files = {str(path): path.read_bytes() for path in cwd.rglob("*") if path.is_file()}
    forms = [key, json.dumps(key)[1:-1], key.replace("/", "\\/")]
    assert [name for name, text in {**said, **files}.items() for f in forms if f.encode() in text] == []


def echo(server_of: Callable[[], ModelServer]) -> Callable[[dict[str, Any], int], Any]:
    """Gives the Authorization header back wherever an answer can hold it; the prompt says in which kind."""

    def reply(body: dict[str, Any], n: int) -> Any:
        sent = server_of().headers[n]["Authorization"]
        kind = body["messages"][-1]["content"]
        if kind == "bad request":
            return 400, {}, {"error": {"message": "x" * 280 + sent, "code": sent}}
        if kind == "unauthorised":
            return 401, {}, {"error": f"wrong key: {sent}"}
        if kind == "overloaded":
            return 503, {"Retry-After": "0"}, f"<h1>busy</h1> {sent}"
        if kind == "not a completion":
            return 200, {}, json.dumps({"headers": {"Authorization": sent}}).replace("/", "\\/")
        whole = chat_reply(body, f"you sent {sent}", n)
        message = whole["choices"][0]["message"]
        message["reasoning_content"] = f"hm, {sent}"
        call = {"name": sent, "arguments": json.dumps({"key": sent})}
        message["tool_calls"] = [{"id": sent, "type": "function", "function": call}]
        whole["model"] = whole["choices"][0]["finish_reason"] = sent
        return whole

    return reply


@pytest.fixture
def echoing(stub) -> ModelServer:
    server: ModelServer = stub(lambda body, n: echo(lambda: server)(body, n))
    return server


KINDS = ["answer", "bad request", "unauthorised", "overloaded", "not a completion"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "flags"),
    [
        ("OPENAI_API_KEY", ["--json", "--debug"]),
        ("MY_API_KEY", ["--api-key-env", "MY_API_KEY"]),
    ],
    ids=["usual variable", "named variable"],
)
def test_a_key_that_the_server_echoes_reaches_no_file_and_no_output(
    tmp_path: Path, echoing: ModelServer, variable: str, flags: list[str]
) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": kind, "answer": "1"} for kind in KINDS])
    flags = [*flags, "--out", "run", "--retries", "0", "--call-retries", "1", "--scorer", "contains"]
    endpoint = ["--model", "stub", "--base-url", echoing.url]
    done = command(tmp_path, "collect", "tasks.jsonl", *endpoint, *flags, **{variable: KEY})
    assert done.returncode == 1, done.stderr
    assert {headers["Authorization"] for headers in echoing.headers} == {f"Bearer {KEY}"}
    assert_nowhere(KEY, tmp_path, done)
    rollouts = {rollout.task["prompt"]: rollout for rollout in windrow.load(tmp_path / "run")}
    assert rollouts["answer"].reply == f"you sent Bearer {MASK}"
    (said,) = [message for message in rollouts["answer"].messages if message.origin == "policy"]
    assert [call.arguments for call in said.tool_calls] == [json.dumps({"key": f"Bearer {MASK}"})]
    for kind in KINDS[1:]:
        assert MASK in rollouts[kind].error.message
    if "--json" in flags:
        assert done.stdout.count(b"\n") == len(KINDS)


@pytest.mark.slow
def test_a_key_that_stands_in_one_of_several_base_urls_reaches_no_file_and_no_output(
    tmp_path: Path, stub
) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": "hello"}])
    urls = ("--base-url", stub().url, "--base-url", f"http://127.0.0.1:9/{KEY}/v1")
    for flags in ((), ("-k", "4", "--workers", "2")):
        done = command(
            tmp_path,
            *("collect", "tasks.jsonl", "--model", "stub", *urls, "--out", "run", *flags),
            OPENAI_API_KEY=KEY,
        )
        assert done.returncode == 0, done.stderr
        assert f"http://127.0.0.1:9/{MASK}/v1".encode() in done.stderr
        assert_nowhere(KEY, tmp_path, done)


@pytest.mark.parametrize(
    ("status", "said", "flags"),
    [(401, "check the key", ["--debug"]), (404, "It serves:", [])],
    ids=["refused", "unknown model"],
)
def test_a_key_that_the_probe_is_told_back_is_not_shown(
    tmp_path: Path, stub, status: int, said: str, flags: list[str]
) -> None:
    server = stub(
        lambda body, n: (status, {}, {"error": {"message": f"what is {KEY}?"}}), models=[f"m-{KEY}"]
    )
    write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": "a"}])
    arguments = ["collect", "tasks.jsonl", "--model", "x", "--base-url", server.url, "--out", "run", *flags]
    done = command(tmp_path, *arguments, OPENAI_API_KEY=KEY)
    assert done.returncode == 1
    assert said in done.stderr.decode()
    assert f"what is {MASK}?" in done.stderr.decode()
    assert (b"Traceback" in done.stderr) == ("--debug" in flags)
    assert_nowhere(KEY, tmp_path, done)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter22@127.0.0.1:1/v1",
        "https://hunter22@example.test/v1",
        "user:hunter22@example.test/v1",
        "ftp://user:hunter22@example.test/v1",
        "http://user:hunter22@[::1/v1",
        "http://user:hunter/22@example.test/v1",
        "http://127.0.0.1:1/v1?key=hunter22",
        "http://127.0.0.1:1/v1#hunter22",
    ],
)
def test_a_base_url_with_credentials_is_refused_and_not_quoted(tmp_path: Path, capsys, url: str) -> None:
    tasks = write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": "a"}])
    out = tmp_path / "run"
    assert main(["collect", str(tasks), "--model", "m", "--base-url", url, "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert "--base-url must not hold a user name, a password or a query" in said.err
    assert "hunter" not in said.err + said.out
    assert not out.exists()


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000/v1", "localhost", "http://", "http://[::1/v1", "http://h:x/v1"]
)
def test_a_base_url_that_is_none_is_quoted(tmp_path: Path, capsys, url: str) -> None:
    tasks = write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": "a"}])
    assert main(["collect", str(tasks), "--model", "m", "--base-url", url]) == 2
    assert f"--base-url {url!r}: expected http://host[:port]/v1" in capsys.readouterr().err


def collected(tmp_path: Path, server: ModelServer, *flags: str) -> list[windrow.Rollout]:
    tasks = write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": "a"}])
    endpoint = ["--model", "stub", "--base-url", server.url, "--out", str(tmp_path / "run"), "--quiet"]
    assert main(["collect", str(tasks), *endpoint, *flags]) == 0
    return list(windrow.load(tmp_path / "run"))


@pytest.mark.parametrize("placeholder", ["EMPTY", "none", "x" * (MIN_SECRET_CHARS - 1)])
def test_a_short_placeholder_is_sent_and_not_masked(
    tmp_path: Path, stub, monkeypatch, placeholder: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", placeholder)
    server = stub(f"the box is {placeholder}", api_key=placeholder)
    (rollout,) = collected(tmp_path, server)
    assert rollout.reply == f"the box is {placeholder}"


def test_a_key_of_digits_never_spoils_a_number(tmp_path: Path, stub, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "12345678")

    def reply(body: dict[str, Any], n: int) -> dict[str, Any]:
        whole = chat_reply(body, "your key is 12345678", n)
        return {**whole, "usage": {"prompt_tokens": 1234567890, "completion_tokens": 3}}

    (rollout,) = collected(tmp_path, stub(reply))
    assert rollout.usage.prompt_tokens == 1234567890
    assert rollout.reply == f"your key is {MASK}"


def test_no_key_is_sent_where_none_is_set(tmp_path: Path, stub, monkeypatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = stub("hello")
    collected(tmp_path, server)
    assert "Authorization" not in server.headers[0]


def test_a_key_is_sent_without_the_newline_that_a_file_left_on_it(tmp_path: Path, stub, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    collected(tmp_path, stub("hello", api_key=KEY))


def test_a_named_variable_that_is_not_set_is_named(tmp_path: Path, stub, monkeypatch, capsys) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("MY_API_KEY", raising=False)
    server = stub("hello")
    tasks = write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": "a"}])
    endpoint = ["--model", "stub", "--base-url", server.url, "--out", str(tmp_path / "run")]
    assert main(["collect", str(tasks), *endpoint, "--api-key-env", "MY_API_KEY"]) == 2
    assert (
        "--api-key-env MY_API_KEY: the environment variable MY_API_KEY is not set" in capsys.readouterr().err
    )
    assert server.requests.total() == 0
    assert not (tmp_path / "run").exists()


def test_a_key_is_asked_for_when_the_endpoint_wants_one(tmp_path: Path, stub, monkeypatch, capsys) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    tasks = write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": "a"}])
    endpoint = [
        "--model",
        "stub",
        "--base-url",
        stub("hello", api_key=KEY).url,
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(["collect", str(tasks), *endpoint]) == 1
    assert (
        "no key was sent: set OPENAI_API_KEY, or name another variable with --api-key-env"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("key", ["sk-schlüssel-123", "sk-two\nlines-123", "sk-nul\x7f-12345"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_quoted(
    tmp_path, monkeypatch, capsys, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    tasks = write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": "a"}])
    assert main(["collect", str(tasks), "--model", "m", "--base-url", "http://127.0.0.1:1/v1"]) == 2
    said = capsys.readouterr().err
    assert "the key in OPENAI_API_KEY holds characters that cannot be sent in a header" in said
    assert key not in said


KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=MIN_SECRET_CHARS, max_size=20)


@given(KEYS, st.text(max_size=5), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
def test_any_key_is_taken_out_of_any_line_and_the_rest_stays(key: str, text: str, n: int, x: float) -> None:
    redactor = Redactor()
    redactor.add(key)

    def line(secret: str) -> bytes:
        held = {"a": f"{text} {secret}{text}", "n": [n, x, None, True], f"k {secret}": {"in": [secret]}}
        return json.dumps(held, ensure_ascii=False).encode() + b"\n"

    assert json.loads(redactor.line(line(key))) == json.loads(line(MASK))


def test_a_secret_is_known_without_the_newline_at_its_end_and_whole_where_another_begins_it() -> None:
    for secrets in (["sk-01234567\n", "sk-01234567-and-more"], ["sk-01234567-and-more", " sk-01234567"]):
        redactor = Redactor()
        for secret in secrets:
            redactor.add(secret)
        assert redactor.text("sk-01234567, sk-01234567-and-more") == f"{MASK}, {MASK}"


@given(KEYS, st.binary(max_size=7), st.binary(max_size=7))
def test_any_key_is_found_in_base64_whatever_stands_around_it(key: str, before: bytes, after: bytes) -> None:
    redactor = Redactor()
    redactor.add(key)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(before + key.encode() + after).decode()
        masked = redactor.text(f"Basic {text}")
        assert MASK in masked
        # Beside the mask, characters that stand for a part of the key and a part of something else.
        assert len(masked) <= len(f"Basic {MASK}") + len(encode(before)) + len(encode(after)) + 4
        assert MASK.encode() in redactor.line(json.dumps([text]).encode())


@given(
    st.text(min_size=MIN_SECRET_CHARS, max_size=20).filter(lambda text: len(text.strip()) >= MIN_SECRET_CHARS)
)
def test_any_text_is_found_in_a_url_and_in_json(secret: str) -> None:
    redactor = Redactor()
    redactor.add(secret)
    stripped = secret.strip()
    forms = [stripped, quote(stripped), quote(stripped, safe=""), quote_plus(stripped)]
    forms += [json.dumps(stripped)[1:-1], json.dumps(stripped, ensure_ascii=False)[1:-1]]
    for form in forms:
        assert redactor.text(f"<{form}>") == f"<{MASK}>"
        assert json.loads(redactor.line(msgspec.json.encode([f"<{form}>"]))) == [f"<{MASK}>"]


def test_each_of_many_secrets_is_found_and_ordinary_lines_are_left_alone() -> None:
    redactor = Redactor()
    secrets = [f"sk-{number:04}-{'x' * (number % 90)}/{number}" for number in range(40)]
    line = json.dumps({"text": "nothing of the kind, sk-0001 and sk-0002"}).encode() + b"\n"
    for count, secret in enumerate(secrets, 1):
        redactor.add(secret)
        assert redactor.line(line) is line
        for known in secrets[:count]:
            assert json.loads(redactor.line(json.dumps([known]).encode())) == [MASK]


def test_every_redactor_knows_an_expanded_variable_and_those_that_are_named_like_a_secret(
    monkeypatch,
) -> None:
    monkeypatch.setenv("SERVICE_LOGIN", "jk-11-zz-login")
    monkeypatch.setenv("SOME_PASSWORD", "lettersonly")
    before = Redactor()
    assert before.text("jk-11-zz-login lettersonly") == f"jk-11-zz-login {MASK}"
    assert expand({"a": ["x${SERVICE_LOGIN}"]}, where="env.settings") == {"a": ["xjk-11-zz-login"]}
    for redactor in (before, Redactor()):
        assert redactor.text("jk-11-zz-login lettersonly") == f"{MASK} {MASK}"
        assert redactor.line(b'["jk-11-zz-login"]') == f'["{MASK}"]'.encode()
        assert "jk-11-zz-login" in redactor.forms


@pytest.mark.parametrize(
    ("value", "where", "masked"),
    [
        ("ab12-cd34-ef56", "env.settings.login", ["ab12-cd34-ef56"]),
        ("correct horse 9 battery", "env.settings.login", ["correct horse 9 battery"]),
        ("https://u:pw-of-u-1@host/v1", "policy.base_url", ["pw-of-u-1"]),
        ("https://host.example/hooks/T0B1C2D3E4/v1?sig=9f8e7d6c5b", "x.url", ["T0B1C2D3E4", "9f8e7d6c5b"]),
        ("ab12-cd34-ef56", "policy.model", []),
        ("runs/eval-2026-11-02", "out", []),
        ("production", "env.settings.stage", []),
        ("us-east-1", "env.settings.region", []),
        ("127.0.0.1:8080", "env.settings.host", []),
        ("http://127.0.0.1:8000/v1/completions", "env.settings.url", []),
        ("1234567890", "env.settings.seed", []),
        ("short-1", "env.settings.login", []),
        (str(Path(__file__)), "env.settings.file", []),
    ],
)
def test_what_of_a_variable_is_masked(monkeypatch, value: str, where: str, masked: list[str]) -> None:
    monkeypatch.setenv("WINDROW_TEST_VALUE", value)
    expand("${WINDROW_TEST_VALUE}", where=where)
    expected = value
    for part in masked:
        expected = expected.replace(part, MASK)
    assert Redactor().text(value) == expected


def test_a_default_is_no_secret(monkeypatch) -> None:
    monkeypatch.delenv("WINDROW_TEST_VALUE", raising=False)
    assert expand("${WINDROW_TEST_VALUE:ab12-cd34-ef56}", where="env.settings.a") == "ab12-cd34-ef56"
    assert Redactor().text("ab12-cd34-ef56") == "ab12-cd34-ef56"


def test_names_of_secrets() -> None:
    secret = [
        "OPENAI_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "DB_PASS",
        "WANDB_API_KEY",
    ]
    other = [
        "TOKENIZER",
        "TOKENIZERS_PARALLELISM",
        "HF_TOKEN_PATH",
        "SSH_KEY_FILE",
        "KEYBOARD",
        "COMPASS",
        "PWD",
    ]
    assert [name for name in secret if not is_secret(name)] == []
    assert [name for name in other if is_secret(name)] == []


def test_a_variable_that_is_not_utf8_is_no_obstacle(monkeypatch) -> None:
    monkeypatch.setenv("ODD_TOKEN", os.fsdecode(b"token-\xff\xfe-1234"))
    assert Redactor().text("token-\ufffd\ufffd-1234") == MASK
