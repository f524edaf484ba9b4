"""Rows are data: a row imports, starts, reaches and reads nothing that the user has not allowed, whichever way it comes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.canaries import SECRET, VARIABLE, Canaries
from tests.support.collect_helpers import answering, collected
from tests.support.command_process import Project
from windrow.collecting.ranks import launched
from windrow.collecting.resolve import resolve
from windrow.config import load_config
from windrow.engine.attempt import attempt
from windrow.engine.components import Overrides
from windrow.errors import UsageError
from windrow.records import Task
from windrow.tasks.plan import Slot
from windrow.tasks.trust import command_line
from windrow.util.redaction import Redactor
from windrow.workers.spec import context_of

GOOD = {"prompt": "6 × 7?", "answer": "42"}


@pytest.fixture
def canaries(tmp_path: Path) -> Iterator[Canaries]:
    with Canaries(tmp_path) as made:
        yield made


def hud(server: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": "Go on.", "env": "hud", "mcp_config": {"world": server}}


def hostile(kind: str, canaries: Canaries) -> dict[str, Any]:
    shell, *arguments = canaries.command
    sent = {"url": f"http://{canaries.host}/${{{VARIABLE}}}", "headers": {"X-Note": f"${{{VARIABLE}}}"}}
    rows: dict[str, dict[str, Any]] = {
        "command": hud({"command": shell, "args": arguments}),
        "host": hud({"url": canaries.url}),
        "variable": hud(sent),
        "text": {**hud({}), "mcp_config": json.dumps({"world": sent})},
        "env": {**GOOD, "env": canaries.name},
        "agent": {**GOOD, "agent": canaries.name},
        "page_reward": {"env": "web", "start_url": "https://example.com", "page_reward": canaries.name},
        "game": {"env": "gymnasium", "game": f"{canaries.name}-v0"},
    }
    return rows[kind]


def lists(kind: str, canaries: Canaries) -> list[str]:
    """What allows the row and nothing else."""
    server = hostile("command", canaries)["mcp_config"]["world"]
    hosts, variables = f"trust.hosts=[{json.dumps(canaries.host)}]", f"trust.variables=[{VARIABLE}]"
    allowing = {
        "command": [f"trust.commands=[{json.dumps(command_line(server))}]"],
        "host": [hosts],
        "variable": [hosts, variables],
        "text": [hosts, variables],
    }
    return allowing.get(kind, [f"trust.modules=[{canaries.name.partition(':')[0]}]"])


KINDS = ["command", "host", "variable", "text", "env", "agent", "page_reward", "game"]
FIRES = {
    "command": ["started"],
    "host": ["reached"],
    "variable": ["reached", "sent"],
    "text": ["reached", "sent"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_command_acts_on_what_a_row_names_and_the_refusal_says_where_and_what_to_add(
    kind: str, canaries: Canaries, in_process_project: Callable[..., Project]
) -> None:
    project = in_process_project()
    project.tasks([GOOD, hostile(kind, canaries)])
    for done in (
        project.windrow("tasks", "check", "tasks.jsonl"),
        project.collect("--dry-run"),
        project.collect(),
        project.collect("--workers", "2"),
    ):
        assert done.code == 2, done.out
        assert "tasks.jsonl:2: " in done.err
        assert (
            "rows are data: add --trust-rows if you trust this source, or add to the configuration trust: {"
            in done.err
        )
        assert SECRET not in done.err
    assert not project.run.exists()
    skipped = project.collect("--skip-invalid")
    assert (skipped.code, "left out 1 invalid row" in skipped.err) == (0, True), skipped.err
    assert [rollout.task["prompt"] for rollout in project.rollouts()] == [GOOD["prompt"]]
    assert canaries.fired() == []
    assert project.server is not None
    assert len(project.server.bodies) == 1  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["flag", "lists"])
def test_what_the_user_allows_is_done_by_the_flag_or_by_the_lists(
    kind: str, how: str, canaries: Canaries, in_process_project: Callable[..., Project]
) -> None:
    """So the canaries of the other tests can fire. None of these rows gets far, but each does what it names."""
    project = in_process_project()
    project.tasks([hostile(kind, canaries)])
    allowing = [part for text in lists(kind, canaries) for part in ("--set", text)]
    done = project.collect("--retries", "0", *(allowing if how == "lists" else ["--trust-rows"]))
    assert "rows are data" not in done.err
    assert canaries.fired() == FIRES.get(kind, ["imported"])


@pytest.mark.parametrize("kind", ["command", "env"])
async def test_rows_that_a_program_holds_are_data_too(kind: str, canaries: Canaries, tmp_path: Path) -> None:
    rows, policy = [hostile(kind, canaries)], answering("42")
    with pytest.raises(UsageError, match=r"rows\[0\]: .* rows are data"):
        await collected(rows, policy=policy, out=str(tmp_path / "run"))
    with pytest.raises(UsageError, match="rows are data"):
        [pair async for pair in windrow.run_examples(rows, env="problem", policy=policy)]
    assert canaries.fired() == []


@pytest.mark.parametrize("kind", KINDS)
async def test_an_episode_begins_with_the_same_check_whatever_led_to_it(
    kind: str, canaries: Canaries, tmp_path: Path
) -> None:
    """A survey that was kept in a run directory may say that the rows are fine; so may a record that is replayed."""
    (tmp_path / "good.jsonl").write_text(json.dumps(GOOD) + "\n")
    options = {"tasks": str(tmp_path / "good.jsonl"), "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    benign = resolve(load_config((), options))
    row = hostile(kind, canaries)
    task = Task(key="t", digest="d", source="s", split=None, index=0, tags=(), data=row)
    slot = Slot(number=0, id="i", attempt=1, group="g", sample=0, seed=0, task=task, recorded_task=task)
    for context in (benign.context, context_of(benign.worker_spec, Redactor())):
        with pytest.raises(UsageError, match=r"task t: .* rows are data"):
            await attempt(slot, context)
    assert canaries.fired() == []


def test_workers_are_told_what_rows_may_name(canaries: Canaries, project: Callable[..., Project]) -> None:
    own = project()
    own.module("worlds", "from windrow.envs.problem import Problem\nclass World(Problem):\n    version = 1\n")
    own.tasks([{**GOOD, "env": "worlds:World"}])
    done = own.collect("--workers", "2", "--set", "trust.modules=[worlds]")
    assert done.code == 0, done.err
    assert [rollout.env for rollout in own.rollouts()] == ["worlds:World"]


def test_trust_is_no_part_of_the_run(in_process_project: Callable[..., Project]) -> None:
    """The same command continues with it or without it, and nothing of it is kept."""
    project = in_process_project()
    project.tasks([GOOD])
    assert project.collect("--trust-rows", "--set", "trust.hosts=[h]").code == 0
    before = json.loads((project.run / "run.json").read_text())
    assert "trust" not in before["config"]
    done = project.collect()
    assert (done.code, "nothing to run" in done.err) == (0, True), done.err
    assert json.loads((project.run / "run.json").read_text())["behaviour"] == before["behaviour"]


def test_a_dry_run_shows_what_rows_name_and_what_allows_it(
    canaries: Canaries, in_process_project: Callable[..., Project]
) -> None:
    project = in_process_project()
    project.tasks([hostile("variable", canaries)])
    said = project.collect("--dry-run", "--trust-rows").out
    assert (
        f'rows name, beside data:\n  variable "{VARIABLE}" (--trust-rows)\n  host "{canaries.host}" (--trust-rows)\n'
        in said
    )
    assert SECRET not in said
    assert canaries.fired() == []
    project.tasks([GOOD])
    assert "rows: nothing but data\n" in project.collect("--dry-run").out


def test_the_agent_of_a_data_set_and_the_rank_of_a_launcher_change_nothing_about_trust(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(GOOD) + "\n")
    agent = "tests.support.named_parts:Twice"
    config = {"path": str(tmp_path / "a.jsonl"), "split": "train", "agent": agent}
    (tmp_path / "c.yaml").write_text(json.dumps({"datasets": [config]}))
    loaded = load_config([tmp_path / "c.yaml"], {"trust_rows": True})
    assert launched(loaded, {"RANK": "1", "WORLD_SIZE": "2"}).trust.rows
    run = resolve(load_config([tmp_path / "c.yaml"]), Overrides(policy=answering("42")))
    assert [(demand.name, by) for demand, by in run.allowed_demands.items()] == [
        (agent, "it is named outside the rows")
    ]
