"""Rows of HUD: three generations, known by their shape, kept as they are, refused where they are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import answering, collected
from tests.support.hud_rows import V5, V6, v4
from tests.support.model_server import write_jsonl
from windrow import Env, Observation, Step
from windrow.cli.main import main
from windrow.errors import UsageError
from windrow.integrations.hud.rows import default_slug
from windrow.integrations.hud.tasks import read_task

pytestmark = pytest.mark.slow


class Played(Env):
    """A user's own environment for rows that only HUD could run."""

    version = 1

    async def reset(self, task: Any) -> Observation:
        return Observation([{"role": "user", "content": json.dumps(task["args"])}])

    async def step(self, reply: Any, results: Any) -> Step:
        return Step(done=True, reward=1.0)


def refused(row: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path, *flags: str) -> str:
    """What `windrow tasks check` says of a row that stands on the second line."""
    write_jsonl(tmp_path / "t.jsonl", [v4(), row])
    assert main(["tasks", "check", str(tmp_path / "t.jsonl"), "--trust-rows", *flags]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 't.jsonl'}:2: " in said
    return said


async def test_rows_of_all_generations_are_kept_as_they_are_and_called_as_hud_calls_them(tmp_path) -> None:
    rows = [V5, V6, {**V6, "args": {}}, {**V6, "slug": "mine"}]
    got = await collected(rows, env=Played, policy=answering("ok"), out=str(tmp_path / "run"))
    found = {r.task.index: r for r in got}
    assert [found[n].task.data for n in range(4)] == rows
    keys = [found[n].task.key for n in range(4)]
    assert keys == ["checkout-alice", "checkout-ccc13e14", "checkout", "mine"]
    assert all(r.reward == 1.0 for r in got)


def test_a_slug_that_is_not_written_depends_on_the_arguments_and_not_on_their_order() -> None:
    assert default_slug("t", {}) == "t"
    assert (
        default_slug("t", {"a": 1, "b": 2})
        == default_slug("t", {"b": 2, "a": 1})
        != default_slug("t", {"a": 1})
    )


@pytest.mark.parametrize("row", [V5, V6])
def test_a_row_that_only_hud_can_run_is_refused_with_what_can_be_done(row, capsys, tmp_path) -> None:
    said = refused(row, capsys, tmp_path)
    assert "'browser'" in said
    assert "only HUD can run that" in said
    assert "--env module:Class" in said


def test_a_row_with_an_environment_of_ours_is_not_taken_for_one_of_hud(capsys, tmp_path) -> None:
    write_jsonl(
        tmp_path / "t.jsonl",
        [{"env": "tests.unit.integrations.test_hud_rows:Played", "id": "a", "args": {"x": 1}}],
    )
    assert main(["tasks", "check", str(tmp_path / "t.jsonl"), "--trust-rows"]) == 0
    write_jsonl(tmp_path / "t.jsonl", [{"env": "chat", "id": "a", "args": {"x": 1}}])
    assert main(["tasks", "check", str(tmp_path / "t.jsonl")]) == 2
    assert "neither 'prompt' nor 'messages' is in the row" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**V5, "scenarios": "x"}, "a HUD v5 row has no field 'scenarios'; did you mean 'scenario'?"),
        ({**V5, "env": {"hub": "x"}}, "'env' has no field 'hub'"),
        ({**V5, "env": {"name": ""}}, "'env' must have a 'name'"),
        ({**V5, "args": None}, "the row is a template"),
        ({**V5, "args": [1]}, "'args' must be an object, found [1]"),
        ({**V6, "args": "x"}, "'args' must be an object, found 'x'"),
        ({**V6, "slug": 5}, "'slug' must be a text, found 5"),
        ({**V6, "validation": [{}]}, "'validation' must be a list of tool calls"),
        ({**V6, "runtime_config": {"image": "a", "compose": "b"}}, "both 'image' and 'compose'"),
        ({**V6, "runtime_config": {"images": "a"}}, "'runtime_config' has no field 'images'"),
        ({**V6, "verifier": V6}, "'verifier' has a verifier of its own"),
        (v4(prompt=""), "a HUD v4 row has a 'prompt'"),
        (v4(mcp_config={}), "'mcp_config' names no server"),
        (v4(mcp_config="{"), "'mcp_config' is a text that is not JSON"),
        (v4(server={"url": "http://h", "command": "x"}), "mcp_config.world must have one of 'url' and 'command'"),
        (v4(server={"url": "http://h", "auth": "x"}), "mcp_config.world has 'auth'"),
        (v4(server={"url": "http://h", "transport": "sse"}), "the transport 'sse' is not spoken here"),
        (v4(server={"url": "http://h", "args": ["x"]}), "mcp_config.world.args is of no use beside 'url'"),
        (v4(server={"url": "mcp.example.com"}), "mcp_config.world.url: expected the address of a streamable HTTP endpoint"),
        (v4(server={"command": "x", "args": "y"}), "mcp_config.world.args must be a list of texts"),
        (v4(agent_config={"alowed_tools": []}), "'agent_config' has no setting 'alowed_tools'; did you mean 'allowed_tools'?"),
        (v4(agent_config={"allowed_tools": "a"}), "agent_config.allowed_tools must be a list of texts"),
        (v4(setup_tool={"name": 5, "arguments": {}}), "'setup_tool' must be a tool call"),
        (v4(evaluate_tool=["x"]), "'evaluate_tool' must be a tool call"),
        (v4(env=5), "'env' must be a name"),
    ],
)  # fmt: skip
def test_a_row_that_looks_like_huds_and_is_wrong_is_named_by_file_and_line(
    row, said, capsys, tmp_path
) -> None:
    assert said in refused(row, capsys, tmp_path)


@pytest.mark.parametrize(
    "server",
    [
        {"url": "http://h/mcp", "headers": {"Authorization": "Bearer sk-1234567890"}},
        {"url": "http://h/mcp", "headers": {"X-Api-Key": "sk-1234567890"}},
        {"command": "x", "env": {"SERVICE_TOKEN": "sk-1234567890"}},
    ],
)
def test_a_secret_that_stands_in_a_row_is_refused_since_records_hold_the_row(
    server, capsys, tmp_path
) -> None:
    said = refused(v4(server=server), capsys, tmp_path)
    assert "holds a secret" in said
    assert "${VARIABLE}" in said
    assert "sk-1234567890" not in said


def test_a_variable_that_is_not_set_is_named_and_a_default_stands_for_it(
    monkeypatch, capsys, tmp_path
) -> None:
    monkeypatch.delenv("HUD_NO_SUCH", raising=False)
    server = {"url": "http://h/mcp", "headers": {"Authorization": "Bearer ${HUD_NO_SUCH}"}}
    said = refused(v4(server=server), capsys, tmp_path)
    assert "mcp_config.world.headers.Authorization: the environment variable HUD_NO_SUCH is not set" in said
    server["headers"]["Authorization"] = "Bearer ${HUD_NO_SUCH:nobody}"
    write_jsonl(tmp_path / "t.jsonl", [v4(server=server)])
    assert main(["tasks", "check", str(tmp_path / "t.jsonl"), "--trust-rows"]) == 0
    assert "${service.x" in refused(v4(server={"url": "${service.x.url}"}), capsys, tmp_path)


def test_a_file_that_is_one_task_over_several_lines_is_one_row(capsys, tmp_path) -> None:
    for name, text in (
        ("a", json.dumps(v4(), indent=2)),
        ("b", "\ufeff" + json.dumps(v4(), indent=1) + "\r\n"),
    ):
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8", newline="")
        assert main(["tasks", "check", str(tmp_path / f"{name}.json"), "--trust-rows"]) == 0
        assert "1 valid tasks" in capsys.readouterr().out
    (tmp_path / "c.json").write_text(json.dumps(v4(prompt=""), indent=2))
    assert main(["tasks", "check", str(tmp_path / "c.json")]) == 2
    assert f"{tmp_path / 'c.json'}[0]: a HUD v4 row has a 'prompt'" in capsys.readouterr().err


def test_fields_that_a_data_set_keeps_as_json_text_mean_what_objects_mean() -> None:
    row = v4(
        setup_tool={"name": "setup", "arguments": {"scene": "s"}}, agent_config={"allowed_tools": ["a*"]}
    )
    fields = ("mcp_config", "evaluate_tool", "setup_tool", "agent_config")
    texts = {**row, **{field: json.dumps(row[field]) for field in fields}, "metadata": '{"x": 1}'}
    assert read_task(texts) == read_task(row)


@pytest.mark.parametrize(
    ("written", "calls"),
    [
        ({"name": "a", "arguments": {"x": 1}}, [("a", {"x": 1})]),
        ({"name": "a"}, [("a", {})]),
        ({"a": {"x": 1}}, [("a", {"x": 1})]),
        ({"a": {"name": "b", "arguments": {"x": 1}}}, [("a", {"name": "b", "arguments": {"x": 1}})]),
        ({"a": {"b": {"c": {"x": 1}}}}, [("a", {"b": {"c": {"x": 1}}})]),
        ({"a": {"b": {"c": {"d": {}}}}}, [("a", {"name": "b", "arguments": {"c": {"d": {}}}})]),
        ([{"name": "a", "arguments": None}, {"b": {}}], [("a", {}), ("b", {})]),
        (None, []),
    ],
)
def test_a_tool_call_may_be_written_short(written, calls) -> None:
    task = read_task(v4(None, evaluate_tool=written))
    assert [(call.name, call.arguments) for call in task.evaluate] == calls


def test_the_settings_of_older_rows_are_heeded() -> None:
    task = read_task(v4(system_prompt="Old.", agent_tools=["a"], agent_config={"append_setup_tool": False}))
    assert (task.system_prompt, task.allowed, task.append_setup_output) == ("Old.", ("a",), False)
    newer = read_task(v4(system_prompt="Old.", agent_config={"system_prompt": "New.", "allowed_tools": []}))
    assert (newer.system_prompt, newer.allowed, newer.append_setup_output) == ("New.", (), False)


async def test_the_run_may_name_another_environment_for_rows_of_hud(tmp_path) -> None:
    row = v4("log", {"command": "no-such-command"}, answer="42")
    [rollout] = await collected([row], env="problem", policy=answering("42"), out=str(tmp_path / "a"))
    assert (rollout.env, rollout.reward) == ("problem", 1.0)
    [rollout] = await collected([{**row, "env": "problem"}], policy=answering("42"), out=str(tmp_path / "b"))
    assert (rollout.env, rollout.reward) == ("problem", 1.0)


async def test_settings_that_hud_does_not_have_are_refused(tmp_path) -> None:
    with pytest.raises(UsageError, match="'hud' has no setting 'start_timeout'"):
        await collected(
            [v4()],
            env="hud",
            sets=["env.settings.start_timeout=5"],
            policy=answering(""),
            out=str(tmp_path / "r"),
        )


def test_a_dry_run_starts_no_server(capsys, tmp_path) -> None:
    write_jsonl(tmp_path / "t.jsonl", [v4("log", {"command": "no-such-command"})])
    flags = ["--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--dry-run"]
    allowed = ["--set", "trust.commands=[no-such-command]"]
    assert main(["collect", str(tmp_path / "t.jsonl"), *flags, *allowed]) == 0
    said = capsys.readouterr().out
    assert "env hud," in said
    assert 'rows name, beside data:\n  command "no-such-command" (trust.commands)\n' in said
    assert "first prompt: made by hud when it runs" in said
