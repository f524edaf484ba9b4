"""What a replay may act on. A foreign run is played only if nothing that it names would have to be imported, started, read
or asked; else the refusal says what that would be.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from windrow.config import PolicyConfig, RunConfig
from windrow.errors import UsageError
from windrow.grading.scorers import only_compares
from windrow.records import Json, Task
from windrow.store.trust import RunTrust

PLAIN = (
    "problem",
    "prompt",
    "chat",
    "tool",
    "rubric",
    "preference",
)  # environments and agents that only talk
SHOWN = 5
SHOWN_CHARS = 200


def trusted_config(path: Path, run: RunConfig, task: Task, trust: RunTrust) -> RunConfig:
    """The configuration of a replay, as far as `trust` goes. UsageError for a run that would act beyond it.

    A row is trusted if this user's command has put it into the run: it was allowed then to name what it names.
    """
    row = task.data or {}
    parts = {str(name) for name in (run.env.name, run.agent.name, row.get("env"), row.get("agent")) if name}
    acts = [f"import {name!a}" for name in sorted(parts) if not trust.may_import(name)]
    if not trust.holds_row(task):
        acts += [f"play a row that you did not write in {name!a}" for name in sorted(parts - {*PLAIN})]
    if not trust.acts:
        acts += islice(_acts(run), SHOWN)
    if acts:
        listed = "".join(f"\n  {act[:SHOWN_CHARS]}" for act in acts[:SHOWN])
        more = "\n  and more" if len(acts) > SHOWN else ""
        raise UsageError(
            f"{path} is not a run of your own, or its lines are not as your commands wrote them, and to replay it would:{listed}{more}\n"
            f"If you trust whoever made it, add --trust-run"
        )
    if trust.acts:
        return run
    return RunConfig(
        env=run.env,
        agent=run.agent,
        scorers=run.scorers,
        limits=run.limits,
        seeds=run.seeds,
        samples=run.samples,
        policy=PolicyConfig(sampling=run.policy.sampling),
        prices=run.prices,
    )


def _acts(run: RunConfig) -> Iterator[str]:
    """What a run does beside talking, by its configuration."""
    for tool in run.tools:
        server = (tool.mcp.command or tool.mcp.url) if tool.mcp is not None else None
        yield f"use the tool {tool.function or server!a}"
    for name, service in run.services.items():
        yield f"use the service {name!a}: {service.command or service.url!a}"
    if run.prompt is not None:
        yield f"read the file {run.prompt!a}"
    for scorer in run.scorers or ():
        if not only_compares(scorer.name, scorer.settings):
            yield f"run the scorer {scorer.name!a}"
    for section, settings in (("env", run.env.settings), ("agent", run.agent.settings)):
        for text in _texts(settings):
            if "${" in text or ":" in text:
                yield f"act on {text!a} of {section}.settings"


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
