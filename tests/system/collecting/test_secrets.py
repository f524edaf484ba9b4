"""What `${VAR}` stands for reaches no file and no output, wherever it is quoted and in whichever form."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.command_process import Outcome, Project
from windrow.util.redaction import MASK

pytestmark = pytest.mark.slow

# Named like no secret, so that only its expansion says what it is.
LOGIN, TENANT, SITE, GREETING = 'hall9/"way"+7Q', "tenant-77ab12cd", "site 4711 of Å&B", "grüße-9911-x"
# Named like one, and in no configuration.
UNUSED = "plainpassword"
VARIABLES = {"LOGIN": LOGIN, "TENANT": TENANT, "SITE": SITE, "GREETING": GREETING, "DB_PASSWORD": UNUSED}
PARTS = '''
import base64, json, os, urllib.parse
from windrow import Env, Observation, Step
from windrow.errors import EnvError, ScorerError
from windrow.grading.base import BaseScorer


def quoted(secret):
    """As libraries quote a secret in their errors."""
    basic = base64.b64encode(f"user:{secret}".encode()).decode()
    return " | ".join([
        secret, urllib.parse.quote(secret, safe=""), urllib.parse.quote_plus(secret), json.dumps({"k": secret}),
        "Basic " + basic, base64.urlsafe_b64encode(b"xx" + secret.encode() + b"yy").decode(),
    ])


class Leaky(Env):
    version = 1

    async def reset(self, task):
        if task["prompt"] == "fail":
            raise EnvError(quoted(self.settings["login"]), kind="down")
        return Observation([{"role": "user", "content": "password " + os.environ["DB_PASSWORD"]}])

    async def step(self, reply, results):
        return Step(done=True, reward=1.0)


class Strict(BaseScorer):
    async def judge(self, episode, ctx):
        raise ScorerError(quoted(self.settings["site"]), kind="down")
'''
CONFIG = """
env: {name: "parts:Leaky", settings: {login: "${LOGIN}"}}
scorers: [{name: "parts:Strict", settings: {site: "${SITE}", model: "${MODEL}"}}]
tools: [{mcp: {command: ["/no/such/server", "--greet", "${GREETING}"]}, start_timeout_s: 5}]
"""
WITHOUT_TOOLS = CONFIG[: CONFIG.index("tools:")]


def forms(secret: str) -> list[bytes]:
    """What must stand nowhere; of base64, the longest part that does not depend on the text around it."""
    encoded = [base64.b64encode(b"\0" * n + secret.encode())[n and n + 1 : -4] for n in range(3)]
    written = (secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1])
    escaped = json.dumps(json.dumps(secret, ensure_ascii=False)[1:-1], ensure_ascii=False)[1:-1]
    return [*{text.encode() for text in (*written, escaped)}, *encoded]


def leaks(home: Project, done: Outcome) -> list[tuple[str, bytes]]:
    said = {"stdout": done.out.encode(), "stderr": done.err.encode()}
    files = {str(path): path.read_bytes() for path in home.run.rglob("*") if path.is_file()}
    return [
        (where, form)
        for where, text in (said | files).items()
        for secret in VARIABLES.values()
        for form in forms(secret)
        if form in text
    ]


@pytest.fixture
def home(project: Callable[..., Project]) -> Project:
    made = project(lambda body, n: (404, {}, {"error": {"message": f"no route {TENANT}"}}))
    made.module("parts", PARTS)
    made.tasks([{"prompt": "fail"}, {"prompt": "play"}])
    return made


def collect(home: Project, config: str, *flags: str) -> Outcome:
    (home.path / "config.yaml").write_text(config)
    assert home.server is not None
    flags = ("--config", "config.yaml", "--retries", "0", "--json", *flags)
    return home.collect(*flags, variables={**VARIABLES, "MODEL": "vendor/some-7b-chat"})


@pytest.mark.parametrize("flags", [(), ("--workers", "2", "-k", "2")], ids=["one process", "workers"])
def test_an_expanded_variable_that_errors_quote_reaches_nothing_that_is_written(
    project: Callable[..., Project], flags: tuple[str, ...]
) -> None:
    home = project("42")
    home.module("parts", PARTS)
    home.tasks([{"prompt": "fail"}, {"prompt": "play"}])
    done = collect(home, WITHOUT_TOOLS, *flags)
    assert leaks(home, done) == []
    failed = next(rollout for rollout in home.rollouts() if not rollout.messages)
    assert failed.error.message.startswith(f"{MASK} | {MASK} | {MASK} | ")
    assert failed.error.message.count(MASK) == 6
    played = next(rollout for rollout in home.rollouts() if rollout.messages)
    assert played.messages[0].text == f"password {MASK}"
    assert played.error.owner == "scorer"
    assert played.error.message.count(MASK) == 6


def test_a_secret_in_the_path_of_a_url_and_of_a_tool_server_is_not_shown(home: Project) -> None:
    assert home.server is not None
    url = home.server.url.replace("/v1", "/${TENANT}/v1")
    done = collect(home, WITHOUT_TOOLS, "--base-url", url)
    assert leaks(home, done) == []
    assert MASK in done.err
    done = collect(home, CONFIG, "--overwrite")
    assert done.code == 1
    assert "/no/such/server" in done.err
    assert leaks(home, done) == []


def test_a_refused_configuration_does_not_quote_what_a_variable_holds(home: Project) -> None:
    done = home.collect("--base-url", "${TENANT}", variables=VARIABLES)
    assert done.code == 2
    assert f"--base-url '{MASK}': expected http://host" in done.err
    done = home.collect("--set", "services.a.url=ftp://${LOGIN}", variables=VARIABLES)
    assert done.code == 2
    assert leaks(home, done) == []


def test_a_name_a_number_and_a_word_stay_readable(project: Callable[..., Project], tmp_path: Path) -> None:
    home = project("gpt-4.1-mini says production on 8080 in us-east-1 of default-value-1")
    home.module("parts", PARTS)
    home.tasks([{"prompt": "play"}])
    settings = 'region: "${REGION}", stage: "${STAGE}", port: "${PORT}", unset: "${UNSET:default-value-1}"'
    config = f'env: {{name: "parts:Leaky", settings: {{{settings}}}}}\npolicy: {{model: "${{MODEL}}"}}\n'
    (home.path / "config.yaml").write_text(config)
    ordinary = {"REGION": "us-east-1", "STAGE": "production", "PORT": "80808080", "MODEL": "gpt-4.1-mini"}
    assert home.server is not None
    done = home.windrow(
        *("collect", "tasks.jsonl", "--base-url", home.server.url, "--out", "run", "--config", "config.yaml"),
        variables={**ordinary, "DB_PASSWORD": UNUSED, "TOKENIZER": "gpt-4.1-mini", "KEY_FILE": "us-east-1"},
    )
    assert done.code == 0, done.err
    (rollout,) = home.rollouts()
    assert rollout.reply == "gpt-4.1-mini says production on 8080 in us-east-1 of default-value-1"
    assert rollout.policy.model == "gpt-4.1-mini"
