"""Rows of any shape, with commands, modules, addresses and variables wherever they fit: no canary fires unless rows are trusted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutations import fuzz, reshaped
from tests.support.canaries import SECRET, VARIABLE, Canaries
from tests.support.collect_helpers import answering, collected
from tests.support.hud_rows import V5, V6
from tests.support.task_loading import resolved
from windrow.errors import WindrowError
from windrow.registry import integrations

PLAIN = {"prompt": "6 × 7?", "answer": "42"}
FIELDS = [
    *("env", "agent", "game", "page_reward", "user", "script", "tools", "scorer", "scorers", "judge", "policy", "model"),
    *("base_url", "url", "start_url", "website", "command", "mcp_config", "agent_ref", "agent_config", "kwargs", "settings"),
    *("prompt", "messages", "answer", "rubric", "responses_create_params", "sampling", "trust", "dataset", "config"),
    *("opponents", "seats", "runtime_config", "setup_tool", "evaluate_tool", "metadata", "expect", "tags", "id", "system_prompt"),
]  # fmt: skip


@pytest.fixture(scope="module")
def canaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canaries]:
    with Canaries(tmp_path_factory.mktemp("rows")) as made:
        yield made


def poisons(canaries: Canaries) -> list[Any]:
    """Whatever somebody might import, start, reach or expand."""
    shell, *arguments = canaries.command
    variable = f"${{{VARIABLE}}}"
    sent = {"url": f"http://{canaries.host}/{variable}", "headers": {"X-Note": variable}}
    return [
        canaries.name,
        f"{canaries.name}-v0",
        canaries.name.partition(":")[0],
        canaries.url,
        variable,
        f"http://{canaries.host}/{variable}",
        f"${{NO_SUCH:{canaries.url}}}",
        shell,
        " ".join(canaries.command),
        {"command": shell, "args": arguments},
        {"world": {"command": shell, "args": arguments, "env": {"A": variable}}},
        {"world": sent},
        json.dumps({"world": {"command": shell, "args": arguments}}),
        {"function": canaries.name},
        {"name": canaries.name, "settings": {"url": canaries.url}},
        {"model": "m", "base_url": canaries.url, "api_key_env": VARIABLE},
        {"rows": True, "commands": [" ".join(canaries.command)], "modules": ["*"]},
        [{"name": canaries.name}, {"mcp": {"command": canaries.command}}],
    ]


def whole_rows(canaries: Canaries) -> list[dict[str, Any]]:
    """A row of each format and environment, most of them hostile already."""
    poisoned = poisons(canaries)
    command, sent, text = poisoned[10], poisoned[11], poisoned[12]
    return [
        PLAIN,
        {**PLAIN, "env": canaries.name},
        {**PLAIN, "agent": canaries.name},
        *({"prompt": "Go on.", "mcp_config": config} for config in (command, sent, text)),
        {"prompt": "Go on.", "env": "hud", "mcp_config": {**command, "other": sent["world"]}},
        {"env": "gymnasium", "game": f"{canaries.name}-v0", "kwargs": {"env_id": canaries.name}, "seed": 1},
        {"env": "gymnasium", "game": "FrozenLake-v1", "kwargs": {"map_name": "4x4"}, "seed": 1},
        {"env": "web", "start_url": "https://example.com", "instruction": "Look.", "page_reward": canaries.name},
        {"env": "web", "page_reward": "miniwob", "game": "click-test", "seed": 1},
        {"responses_create_params": {"input": "hi", "metadata": {"extra_body": "{}"}}, "agent_ref": {"name": canaries.name}},
        {"task_name": "Look.", "website": canaries.url, "difficulty": 1, "evaluator_reference": ["x"]},
        {"env": "chat", "prompt": "hi", "script": ["and?"], "user": {"function": canaries.name}},
        {"env": "rubric", "prompt": "hi", "rubric": [{"criterion": "x", "weight": 1}]},
        {"env": "reasoning-gym", "prompt": "hi", "answer": "1", "dataset": canaries.name, "metadata": {}},
        V5,
        V6,
    ]  # fmt: skip


@st.composite
def hostile_rows(draw: st.DrawFn, canaries: Canaries) -> dict[str, Any]:
    row = draw(reshaped(whole_rows(canaries)))
    row = row if isinstance(row, dict) else {}
    poisoned = st.sampled_from(poisons(canaries))
    row |= draw(st.dictionaries(st.sampled_from(FIELDS), poisoned, max_size=2))
    names = [name for integration in integrations() for name in (*integration.envs, *integration.agents)]
    if draw(st.booleans()):
        row["env"] = draw(st.sampled_from(["problem", "chat", "prompt", "web", "rubric", *names]))
    return row


def refused_or_taken(work: Any) -> None:
    """An error of ours may stand for the row, and does not quote what a variable holds."""
    try:
        work()
    except WindrowError as problem:
        said = str(problem)
    else:
        return
    assert SECRET not in said


@fuzz(250)
@given(data=st.data())
def test_checking_rows_of_any_shape_imports_starts_and_reaches_nothing(
    data: st.DataObject, canaries: Canaries
) -> None:
    rows = data.draw(st.lists(hostile_rows(canaries), min_size=1, max_size=3))
    path = canaries.folder / "tasks.jsonl"
    try:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    except UnicodeEncodeError:
        return
    refused_or_taken(lambda: resolved(path))
    refused_or_taken(lambda: resolved(path, env="hud", skip_invalid=True))
    assert canaries.fired() == []


@fuzz(40)
@given(data=st.data())
def test_collecting_rows_of_any_shape_imports_starts_and_reaches_nothing(
    data: st.DataObject, canaries: Canaries, tmp_path_factory: pytest.TempPathFactory
) -> None:
    row = data.draw(hostile_rows(canaries))
    if row.get("env") in (
        "web",
        "reasoning-gym",
    ):  # a browser and a verifier are slow, and have canaries of their own
        row["env"] = "hud"
    rows = [row] if data.draw(st.booleans()) else [PLAIN, row]
    run = tmp_path_factory.mktemp("run") / "run"
    options = {
        "policy": answering("42"),
        "skip_invalid": True,
        "retries": 0,
        "env": "problem",
        "out": str(run),
    }
    refused_or_taken(lambda: asyncio.run(collected(rows, **options)))
    assert canaries.fired() == []
    assert not any(SECRET.encode() in file.read_bytes() for file in run.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("number", "fires"), [(1, "imported"), (2, "imported"), (3, "started"), (4, "sent"), (7, "imported")]
)
def test_trusted_rows_make_the_canaries_fire(number: int, fires: str, tmp_path: Path) -> None:
    with Canaries(tmp_path) as own:
        row = whole_rows(own)[number]
        options = {"policy": answering("42"), "retries": 0, "out": str(tmp_path / "run"), "trust_rows": True}
        refused_or_taken(lambda: asyncio.run(collected([row], **options)))
        assert fires in own.fired()
