"""Who wins, seen from the server: flag over row over configuration for sampling, row over flag for env and agent.

And what nobody would honour is refused before the first request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.model_server import ModelServer, write_jsonl
from windrow.cli.main import main

LOUD = "tests.support.named_parts:Loud"
TWICE = "tests.support.named_parts:Twice"


@pytest.fixture
def sent(stub, tmp_path: Path):
    """Collect and return what the server received: the request bodies by the content of their last message."""

    async def collect(rows: list[dict[str, Any]], **options: Any) -> dict[str, list[dict[str, Any]]]:
        server: ModelServer = stub("hello")
        options = {"model": "stub", "base_url": server.url, "out": str(tmp_path / "run"), **options}
        rollouts = [rollout async for rollout in windrow.collect(rows, **options)]
        assert {rollout.status for rollout in rollouts} == {"completed"}
        received: dict[str, list[dict[str, Any]]] = {}
        for body in server.bodies:
            received.setdefault(body["messages"][-1]["content"], []).append(body)
        return received

    return collect


def sampling(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in ("model", "messages")}


CONFIG = "policy: {sampling: {temperature: 0.1, max_tokens: 7}}"
ROWS = [{"prompt": "plain"}, {"prompt": "own", "sampling": {"temperature": 0.9, "top_p": 0.8}}]


@pytest.mark.parametrize(
    ("options", "plain", "own"),
    [
        ({}, {"temperature": 0.1, "max_tokens": 7}, {"temperature": 0.9, "top_p": 0.8, "max_tokens": 7}),
        (
            {"temperature": 0.5},
            {"temperature": 0.5, "max_tokens": 7},
            {"temperature": 0.5, "top_p": 0.8, "max_tokens": 7},
        ),
        (
            {"sets": ["policy.sampling.top_p=0.3"]},
            {"temperature": 0.1, "top_p": 0.3, "max_tokens": 7},
            {"temperature": 0.9, "top_p": 0.3, "max_tokens": 7},
        ),
        (
            {"sets": ["policy.sampling={temperature: 0.6, max_tokens: 8}"]},
            {"temperature": 0.6, "max_tokens": 8},
            {"temperature": 0.6, "top_p": 0.8, "max_tokens": 8},
        ),
    ],
    ids=["config", "flag", "set", "set of a section"],
)
async def test_sampling_is_the_flags_then_the_rows_then_the_configurations(
    sent, tmp_path: Path, options: dict[str, Any], plain: dict[str, Any], own: dict[str, Any]
) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(CONFIG)
    received = await sent(ROWS, config=config, **options)
    assert [sampling(body) for body in received["plain"]] == [plain]
    assert [sampling(body) for body in received["own"]] == [own]
    recorded = {rollout.task["prompt"]: rollout.policy.sampling for rollout in windrow.load(tmp_path / "run")}
    assert recorded == {"plain": plain, "own": own}


async def test_nothing_is_sent_that_nobody_asked_for(sent) -> None:
    received = await sent([{"prompt": "a"}])
    assert received["a"] == [{"model": "stub", "messages": [{"role": "user", "content": "a"}]}]


async def test_the_env_is_the_rows_then_the_flags_then_problem(sent) -> None:
    rows = [{"prompt": "mine", "env": LOUD}, {"prompt": "asked", "env": "problem"}, {"prompt": "plain"}]
    assert set(await sent(rows, trust_rows=True)) == {"MINE", "asked", "plain"}


async def test_the_flags_env_and_its_settings_are_for_rows_without_their_own(sent, tmp_path: Path) -> None:
    rows = [{"prompt": "mine", "env": "problem"}, {"prompt": "same", "env": LOUD}, {"prompt": "plain"}]
    received = await sent(rows, env=LOUD, sets=["env.settings.suffix=-please"])
    assert set(received) == {"mine", "SAME-please", "PLAIN-please"}
    recorded = {rollout.task["prompt"]: rollout.env for rollout in windrow.load(tmp_path / "run")}
    assert recorded == {"mine": "problem", "same": LOUD, "plain": LOUD}


async def test_the_agent_is_the_rows_then_the_flags_then_chat(sent, tmp_path: Path) -> None:
    rows = [{"prompt": "own chat", "agent": "chat"}, {"prompt": "flag"}]
    received = await sent(rows, agent=TWICE)
    assert [len(bodies) for bodies in (received["own chat"], received["flag"], received["hello"])] == [
        1,
        1,
        1,
    ]
    recorded = {rollout.task["prompt"]: rollout.agent for rollout in windrow.load(tmp_path / "run")}
    assert recorded == {"own chat": "chat", "flag": TWICE}


async def test_the_default_agent_is_chat_unless_the_row_names_one(sent, tmp_path: Path) -> None:
    await sent([{"prompt": "twice", "agent": TWICE}, {"prompt": "plain"}], trust_rows=True)
    recorded = {r.task["prompt"]: (r.agent, len(r.turns)) for r in windrow.load(tmp_path / "run")}
    assert recorded == {"twice": (TWICE, 2), "plain": ("chat", 1)}


async def test_seeds_are_the_ids_or_the_samples_or_none(sent, tmp_path: Path) -> None:
    seeds: dict[str, list[Any]] = {}
    for kind in ("none", "id", "sample"):
        received = await sent([{"prompt": "a"}], samples=3, seeds=kind, out=str(tmp_path / kind))
        seeds[kind] = sorted(body["seed"] for body in received["a"] if "seed" in body)
    assert seeds["none"] == []
    assert seeds["sample"] == [0, 1, 2]
    assert seeds["id"] == sorted(rollout.seed for rollout in windrow.load(tmp_path / "id"))
    assert len(set(seeds["id"])) == 3


async def test_variables_are_expanded_where_they_are_used_and_kept_in_the_manifest(
    sent, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("MY_RUNS", str(tmp_path))
    monkeypatch.setenv("MY_SPLIT", "test")
    monkeypatch.setenv("MY_MARK", "?")
    variables = {"out": "${MY_RUNS}/mine", "source": "${MY_SOURCE:quiz}", "split": "${MY_SPLIT}"}
    received = await sent([{"prompt": "a"}], env=LOUD, sets=["env.settings.suffix=${MY_MARK}"], **variables)
    assert set(received) == {"A?"}
    (rollout,) = windrow.load(tmp_path / "mine")
    assert (rollout.task.source, rollout.task.split) == ("quiz", "test")
    manifest = (tmp_path / "mine" / "run.json").read_text()
    assert all(text in manifest for text in ["${MY_RUNS}/mine", "${MY_SOURCE:quiz}", "${MY_MARK}"])


@pytest.fixture
def command(tmp_path: Path, monkeypatch):
    """A `collect` command that is refused: returns what it said."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": "a"}])
    (tmp_path / "script.yaml").write_text("replies: [{reply: hello}]")

    def refused(capsys, *flags: str) -> str:
        assert main(["collect", "tasks.jsonl", "--out", "run", *flags]) == 2
        assert not (tmp_path / "run").exists()
        return str(capsys.readouterr().err)

    return refused


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--base-url", "http://127.0.0.1:1/v1"],
            "--base-url: a scripted policy would ignore policy.base_url",
        ),
        (["--api-key-env", "KEY"], "--api-key-env: a scripted policy would ignore policy.api_key_env"),
        (["--set", "policy.probe=false"], "--set policy.probe: a scripted policy would ignore policy.probe"),
        (["--temperature", "1"], "--temperature: policy 'scripted' would ignore 'temperature'"),
        (
            ["--set", "policy.sampling.stop=x"],
            "--set policy.sampling.stop: policy 'scripted' would ignore 'stop'",
        ),
        (["--seeds", "id"], "--seeds id: policy 'scripted' would ignore 'seed'"),
        (["--config", "run.yaml"], "run.yaml:3: policy 'scripted' would ignore 'top_p'"),
    ],
)
def test_an_option_that_a_script_would_ignore_is_refused(
    command, capsys, tmp_path: Path, flags: list[str], said: str
) -> None:
    (tmp_path / "run.yaml").write_text("policy:\n  sampling:\n    top_p: 0.5\n")
    assert said in command(capsys, "--model", "scripted:script.yaml", *flags)


def test_sampling_in_a_row_that_a_script_would_ignore_is_refused(command, capsys, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": "a", "sampling": {"top_k": 3}}])
    said = command(capsys, "--model", "scripted:script.yaml")
    assert "'sampling' in a row of tasks.jsonl: policy 'scripted' would ignore 'top_k'" in said


def test_a_run_without_a_model_an_endpoint_or_tasks_says_what_to_give(command, capsys) -> None:
    assert "no model: give --model" in command(capsys)
    assert "--model m: give --base-url URL" in command(capsys, "--model", "m")
    assert "cannot read the script none.yaml" in command(capsys, "--model", "scripted:none.yaml")
    assert main(["collect", "--model", "scripted:script.yaml"]) == 2
    assert "no tasks: give a .jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--env", "problm"], "unknown env 'problm'; did you mean 'problem'?"),
        (["--agent", "chta"], "unknown agent 'chta'; did you mean 'chat'?"),
        (["--scorer", "exct"], "unknown scorer 'exct'; did you mean 'exact'?"),
        (
            ["--env", "tests.support.named_parts:Lod"],
            "env 'tests.support.named_parts:Lod': 'tests.support.named_parts' has no 'Lod'; did you mean 'Loud'?",
        ),
        (
            ["--env", "tests.support.named_parts:half"],
            "env 'tests.support.named_parts:half' is not a class derived from windrow.Env",
        ),
        (["--set", "env.settings.level=1"], "env.settings: 'problem' has no setting 'level'"),
        (["--env", LOUD, "--set", "env.settings.level=1"], "env.settings: no setting 'level'"),
        (["--set", "agent.settings.x=1"], "agent.settings: 'chat' has no setting 'x'"),
        (["--env", LOUD, "--set", "env.settings.suffix=${MY_NONE}"], "variable MY_NONE is not set"),
        (["--scorer", "exact", "--scorer", "exact=2"], "scorer 'exact' is named twice"),
        (["--set", "scorers=[{name: number, settings: {tolerence: 1}}]"], "did you mean 'tolerance'?"),
    ],
)
def test_a_wrong_name_or_setting_is_refused_with_the_nearest(
    command, capsys, flags: list[str], said: str
) -> None:
    assert said in command(capsys, "--model", "scripted:script.yaml", *flags)
