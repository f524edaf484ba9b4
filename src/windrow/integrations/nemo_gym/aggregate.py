"""`/aggregate_metrics` on demand: scores of a run that only the benchmark's own servers can compute.

Our own metrics need no server (`windrow stats`). Each agent is sent its graded rollouts, at most one per task and
sample.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from windrow.errors import InfraError, UsageError
from windrow.integrations.nemo_gym.agent import check_address
from windrow.integrations.nemo_gym.client import Caller, Servers
from windrow.integrations.nemo_gym.env import NAME
from windrow.integrations.nemo_gym.files import agent_ref
from windrow.integrations.nemo_gym.results import result_row
from windrow.integrations.nemo_gym.rows import AGENT, PARAMS, ROLLOUT_INDEX, TASK_INDEX
from windrow.records import Json, Rollout
from windrow.store.reader import load

TIMEOUT_S = 600.0
_LEFT_OUT = ("response", PARAMS)


async def aggregate(run: str | Path, head: str, *, timeout_s: float = TIMEOUT_S) -> list[dict[str, Json]]:
    """The aggregates of a run's agents, one entry per agent, as NeMo Gym writes them to `_aggregate_metrics.json`.

    `head` is the address in `--aggregate nemo-gym:http://HOST:PORT`.
    """
    try:
        check_address(head, f"--aggregate {NAME}:http://HOST:PORT")
    except ValueError as problem:
        raise UsageError(f"--aggregate {NAME}:{head}: {problem}") from None
    by_agent: dict[str, list[dict[str, Json]]] = {}
    for rollout in load(run):
        if rollout.reward is not None and not rollout.opponent:
            by_agent.setdefault(rollout.agent, []).append(_row(rollout))
    if not by_agent:
        raise UsageError(f"{run}: no rollout has a reward, so there is nothing to aggregate")
    servers, caller = Servers(head), Caller()
    await servers.learn()
    await caller.open()
    try:
        entries: list[dict[str, Json]] = []
        for agent, rows in sorted(by_agent.items()):
            url = f"{servers.agent(agent).url}/aggregate_metrics"
            entries.append({"agent_ref": {"name": agent}, **await _asked(caller, url, rows, timeout_s)})
        return entries
    finally:
        await caller.close()


async def _asked(caller: Caller, url: str, rows: list[dict[str, Json]], timeout_s: float) -> dict[str, Json]:
    try:
        async with asyncio.timeout(timeout_s):
            return await caller.post(url, {"verify_responses": rows})
    except TimeoutError:
        raise InfraError(f"{url} did not answer within {timeout_s:g} s", kind="timeout") from None


def _row(rollout: Rollout) -> dict[str, Json]:
    """Return a rollout without its messages."""
    answer = result_row(rollout)
    response = answer["response"]
    usage = response.get("usage") if isinstance(response, dict) else None
    return {
        **{key: value for key, value in answer.items() if key not in _LEFT_OUT},
        "response": {"usage": usage},
        AGENT: agent_ref(rollout),
        TASK_INDEX: rollout.task.index,
        ROLLOUT_INDEX: rollout.sample,
    }
