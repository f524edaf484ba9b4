"""Runs whose replies are judged by a scripted server, and what is found in their records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import windrow
from tests.collecting import answering, collected
from tests.serving import ModelServer
from windrow import Rollout
from windrow.records import Grading, decode_grading

JUDGE_NO_WAIT = ["judge.backoff_s=0", "judge.call_retries=1", "judge.max_outage_s=0"]


async def judged(
    run: Path,
    rows: Sequence[Mapping[str, Any]],
    server: ModelServer,
    *,
    env: str = "rubric",
    settings: Mapping[str, Any] | None = None,
    reply: str | Callable[..., Any] = "Hello!",
    **options: Any,
) -> list[Rollout]:
    """The rollouts of a run in `env`, as they are read back, judged by what the server says."""
    config = run.parent / f"{run.name}.yaml"
    tree: dict[str, Any] = {"env": {"name": env, "settings": dict(settings or {})}}
    if "judges" not in tree["env"]["settings"]:
        tree["judge"] = {"model": "stub", "base_url": server.url}
        options["sets"] = [*JUDGE_NO_WAIT, *options.get("sets", ())]
    config.write_text(json.dumps(tree))
    options = {"policy": answering(reply), "out": str(run), **options}
    await collected(rows, config=config, **options)
    return list(windrow.load(run))


def gradings(run: Path) -> list[Grading]:
    return [decode_grading(line) for line in (run / "scores.jsonl").read_bytes().splitlines()]


def asked(body: Mapping[str, Any]) -> str:
    """The question of a request to the judge: what it was first told."""
    return str(body["messages"][0]["content"])


def values(rollout: Rollout) -> dict[str, float]:
    return {name: score.value for name, score in rollout.scores.items()}
