"""What a browser showed is judged later, from the record alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.judged_runs import values
from tests.support.model_server import ModelServer
from tests.web.playing import visited
from tests.web.sites import Sites
from windrow.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_screenshots_of_a_run_are_judged_without_a_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    images: list[int] = []

    def judge(body: dict[str, Any], n: int) -> str:
        parts = body["messages"][0]["content"]
        images.append(sum(part["type"] == "image_url" for part in parts))
        wall = "robots" in parts[0]["text"]
        return f"Seen. <score>{'no' if wall else 'yes'}</score>"

    scripts = {"read": ["Action: scroll('down')", "Action: answer('It is there.')"], "give up": ["?"] * 5}
    rows = {name: {"facts": ["Something is to be seen."]} for name in scripts}
    with Sites() as sites:
        settings = {"observe": "text+screenshot"}
        played = asyncio.run(visited(sites, Path("run"), scripts, rows=rows, settings=settings))
    assert {name: rollout.grade for name, rollout in played.items()} == dict.fromkeys(scripts, "none")
    monkeypatch.setenv("WINDROW_CHROMIUM", "/nowhere")
    with ModelServer(judge) as server:
        asked = ["--scorer", "webgym", "--judge", "stub", "--judge-base-url", server.url]
        assert main(["rescore", "run", *asked, "--quiet"]) == 0
    found = {rollout.task.key: values(rollout) for rollout in windrow.load("run")}
    assert found["read"] == {
        "webgym": 1.0,
        "webgym.blocked": 0.0,
        "webgym.grounded": 1.0,
        "webgym.facts": 1.0,
    }
    assert found["give up"] == {"webgym": 0.0, "webgym.blocked": 0.0}
    assert max(images) >= 1
