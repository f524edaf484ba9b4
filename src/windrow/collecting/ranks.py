"""The rank of a call, read from its configuration or its launcher; and the rank's part of the shared limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from windrow.config import LoadedConfig, PolicyConfig, RunConfig
from windrow.errors import UsageError
from windrow.tasks.sharding import Rank

LAUNCHERS = (  # what each calls the rank, and how many there are
    ("RANK", ("WORLD_SIZE",)),
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)
MOST_RANKS = 2**16
NO_RANKS = "--rank 0 --world-size 1 collects everything"


def launched(loaded: LoadedConfig, environment: Mapping[str, str]) -> LoadedConfig:
    """Return the configuration with the rank that a launcher gave this process, unless it sets one itself."""
    if loaded.run.rank is not None or loaded.run.world_size is not None:
        return loaded
    for rank, sizes in LAUNCHERS:
        size = next((name for name in sizes if environment.get(name)), None)
        if not environment.get(rank) or size is None or _is_batch_script(rank, environment):
            continue
        number, world_size = _number(rank, environment), _number(size, environment)
        if world_size <= 1:
            return loaded
        run = msgspec.structs.replace(loaded.run, rank=number, world_size=world_size)
        origins = {**loaded.origins, "rank": rank, "world_size": size}
        return msgspec.structs.replace(loaded, run=run, origins=origins)
    return loaded


def rank_of(loaded: LoadedConfig) -> Rank | None:
    """Return the rank of this call; None if it shares with no other."""
    run, weights = loaded.run, loaded.run.rank_weights
    world_size = run.world_size or (len(weights) if weights is not None else None)
    if world_size is None and run.rank is None:
        return None
    if world_size is None:
        raise UsageError(f"--rank {run.rank} needs --world-size: how many ranks share the tasks")
    if world_size > MOST_RANKS:
        where = loaded.origins.get("world_size", "world_size")
        raise UsageError(f"{world_size} ranks ({where}): there can be {MOST_RANKS:,} at the most")
    if weights is not None and len(weights) != world_size:
        raise UsageError(
            f"--rank-weights has {len(weights)} weights, and there are {world_size} ranks "
            f"({loaded.origins.get('world_size', 'world_size')}); give one for each"
        )
    if run.rank is None and world_size > 1:
        raise UsageError(f"--world-size {world_size} needs --rank: which of them this call is, from 0 on")
    if (run.rank or 0) >= world_size:
        where = " and ".join(loaded.origins.get(key, key) for key in ("rank", "world_size"))
        raise UsageError(f"rank {run.rank} of {world_size} ({where}): ranks go from 0 to {world_size - 1}")
    return Rank(run.rank or 0, tuple(weights or (1,) * world_size)) if world_size > 1 else None


def divided(run: RunConfig, rank: Rank | None) -> RunConfig:
    """Return the configuration with this rank's part of the shared limits, endpoints, rates per minute and budgets."""
    if rank is None:
        return run
    budget = run.budget
    return msgspec.structs.replace(
        run,
        env_concurrency={name: rank.places(most) for name, most in run.env_concurrency.items()},
        agent_concurrency={name: rank.places(most) for name, most in run.agent_concurrency.items()},
        judge_concurrency=run.judge_concurrency and rank.places(run.judge_concurrency),
        policy=_own_part(run.policy, rank),
        judge=_own_part(run.judge, rank),
        budget=msgspec.structs.replace(
            budget,
            tokens=budget.tokens and rank.places(budget.tokens),
            cost=budget.cost and budget.cost * rank.portion,
        ),
    )


def without_rank(run: RunConfig) -> RunConfig:
    """Return the configuration that all ranks have in common."""
    return msgspec.structs.replace(run, rank=None, world_size=None, rank_weights=None)


def note(rank: Rank, loaded: LoadedConfig, own: int, tasks: int) -> str:
    """Return the note about a rank; it names the source of the rank if the user did not set it."""
    launcher = next((names for names in LAUNCHERS if names[0] == loaded.origins.get("rank")), None)
    label = f"rank {rank.number} of {rank.world_size}"
    share = f"{own:,} of {tasks:,} tasks"
    endpoints = loaded.run.policy.base_url
    if isinstance(endpoints, list) and len(endpoints) > 1:
        share += f", {len(endpoints[rank.endpoints(len(endpoints))]):,} of {len(endpoints):,} endpoints"
    if launcher is None:
        return f"{label}: {share}"
    variables = f"{launcher[0]}, {loaded.origins['world_size']}"
    return f"{label} (from {variables}): {share}; {NO_RANKS}"


def is_unasked(note: str) -> bool:
    """Return whether a note announces a rank that a launcher set. Such a note is shown even to users who want no
    notes, because they did not ask for a part of the tasks.
    """
    return NO_RANKS in note


def _own_part(policy: PolicyConfig, rank: Rank) -> PolicyConfig:
    overrides: dict[str, Any] = {
        name: rate * rank.portion
        for name in ("requests_per_minute", "tokens_per_minute")
        if (rate := getattr(policy, name)) is not None
    }
    if isinstance(policy.base_url, list):
        overrides["base_url"] = policy.base_url[rank.endpoints(len(policy.base_url))]
    return msgspec.structs.replace(policy, **overrides)


def _is_batch_script(rank: str, environment: Mapping[str, str]) -> bool:
    """Return whether Slurm runs this process once for the whole job: then there is no other task to share with."""
    in_a_step = any(name in environment for name in ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"))
    return rank == "SLURM_PROCID" and "SLURM_JOB_ID" in environment and not in_a_step


def _number(name: str, environment: Mapping[str, str]) -> int:
    text = environment[name].strip()
    if not text.isdecimal():
        raise UsageError(f"the variable {name} is {text!r}, which is no rank or number of ranks; {NO_RANKS}")
    return int(text)
