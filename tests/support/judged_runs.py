"""Runs whose replies are judged by a scripted server, and readers of their records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.model_server import ModelServer
from tests.support.run_builders import make_rollout
from windrow import Rollout, RolloutGroup
from windrow.config import RunConfig, ScorerConfig
from windrow.engine.models import Model
from windrow.grading.grading_pass import GradingPass
from windrow.grading.run_scorers import RunScorers
from windrow.grading.scorers import make_scorer
from windrow.policies.base import Request
from windrow.policies.scripted import CallablePolicy
from windrow.records import Grading, Message, decode_grading
from windrow.store.manifest import Fingerprint

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


# -- groups, judged by themselves


def member(sample: int, reply: str, *turns: str, name: str = "task", **changes: Any) -> Rollout:
    """Sample number `sample` of a task, whose last reply is `reply`; `turns` are what was said before, one after the
    other: a reply, an observation, a reply, …"""
    said = [Message(role="user", content="What is a windrow?", origin="task")]
    for number, text in enumerate(turns):
        policy = number % 2 == 0
        said.append(
            Message(role="assistant", content=text, origin="policy")
            if policy
            else Message(role="user", content=text, origin="env")
        )
    said.append(Message(role="assistant", content=reply, origin="policy"))
    return make_rollout(name, sample=sample, messages=tuple(said), **changes)


def group_of(*members: Rollout) -> RolloutGroup:
    return RolloutGroup(id=members[0].group, task=members[0].task, rollouts=members)


class _Kept:
    """A log of gradings in memory."""

    def __init__(self) -> None:
        self.gradings: list[Grading] = []

    async def commit(self, gradings: Sequence[Grading]) -> None:
        self.gradings += gradings


async def grade_group(
    group: RolloutGroup,
    scorer: str | Any,
    settings: Mapping[str, Any] | None = None,
    judge: Callable[[Request], Any] | None = None,
) -> Grading:
    """The grading of a group by one scorer, by name or as it is, whose judge says what the function makes of the
    request."""
    made = (
        make_scorer(ScorerConfig(name=scorer, settings=dict(settings or {})))
        if isinstance(scorer, str)
        else scorer
    )
    models = (
        {}
        if judge is None
        else {made.name: {"judge": Model(CallablePolicy(judge, name="judge"), {}, 0, 0.0)}}
    )
    log = _Kept()
    scorers = RunScorers(scorers=(made,), models=models)
    await GradingPass(scorers, RunConfig(), Fingerprint("f", {}), log).grade_group(group, [made.name])
    [grading] = log.gradings
    return grading


def by_sample(group: RolloutGroup, grading: Grading, name: str) -> dict[int, float | None]:
    """What each sample was given under this name, by the attempt that the grading names."""
    assert grading.error is None, grading.error.message
    samples = {rollout.key: rollout.sample for rollout in group.rollouts}
    given = zip(grading.members, grading.scores, strict=True)
    return {samples[key]: scores[name].value if name in scores else None for key, scores in given}
