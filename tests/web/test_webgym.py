"""WebGym's rows in a real browser: what `web` records is its steps, its metrics and its files, and what it blocks is left out next time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.task_loading import resolved
from tests.support.webgym_data import row
from tests.web.playing import visited
from tests.web.sites import Sites
from windrow.integrations.webgym.report import report
from windrow.integrations.webgym.steps import steps_of

pytestmark = pytest.mark.slow


async def test_a_run_in_a_browser_gives_their_numbers_and_files(tmp_path: Path) -> None:
    scripts: dict[str, list[str]] = {
        "right": ["Action: click(1)", "Action: back()", "Action: answer('two kinds')"],
        "wrong": ["I do not know what to do.", "Action: answer('three kinds')"],
        "shut out": ["Action: wait(0.01)"] * 9,
        "nowhere": ["never asked"],
    }
    blocklist = tmp_path / "blocklist.jsonl"
    with Sites() as sites:
        places = {"shut out": sites.url("/wall"), "nowhere": "http://256.256.256.256/"}
        rows: dict[str, Any] = {}
        for number, name in enumerate(scripts):
            website = places.get(name, sites.url())
            expect = {"answer": "Two kinds"}
            rows[name] = {
                **row(number, task_name=name, website=website, difficulty=1, expect=expect),
                "start_url": website,
            }
        settings = {"observe": "text+screenshot", "blocklist": str(blocklist)}
        run = tmp_path / "run"
        played = await visited(sites, run, scripts, rows=rows, settings=settings, split="train")
    keys = {name: [step.key for step in steps_of(rollout)] for name, rollout in played.items()}
    assert keys == {
        "right": ["click", "goback", "answer"],
        "wrong": ["wait", "answer"],
        "shut out": ["wait", "wait"],
        "nowhere": ["invalid_url"],
    }
    found = report(run).measured
    assert (found.webgym.success_rate, found.webgym.avg_steps, found.webgym.goback_rate) == (0.5, 2.5, 0.2)
    assert (found.webgym.crashed_rate, found.webgym.blocked_rate) == (0.25, 1 / 3)
    assert found.honest.outcomes == {"answered": 2, "blocked": 1, "failed (env)": 1}

    windrow.export(run, to="webgym", out=tmp_path / "t.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_bytes().splitlines()]
    right = next(line for line in lines if line[0]["observation"]["task"]["task_name"] == "right")
    pages = [step["observation"] for step in right]
    assert [page["page_metadata"]["title"] for page in pages] == [None, "Apples", "Fruit shop"]
    assert all((run / page["image_path"]).read_bytes().startswith(b"\x89PNG") for page in pages)
    assert pages[0]["image_path"] != pages[1]["image_path"]
    assert right[-1]["action"]["action"] == {"key": "answer", "arguments": {"content": "two kinds"}}

    [listed] = map(json.loads, blocklist.read_text().splitlines())
    assert listed["task_id"] == 2, "the id of the row, as WebGym has it"
    assert Path(listed["screenshot_path"]).read_bytes().startswith(b"\x89PNG")
    there = [row(1), row(2, website="http://127.0.0.1:1/")]
    left = resolved(there, env="prompt", split="train", blocklist=str(blocklist))
    assert [left.tasks.task(n)["task_id"] for n in range(len(left.tasks))] == [1]
