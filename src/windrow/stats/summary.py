"""`windrow stats`: coverage, reward, pass@k, tokens and time of a run, each with its denominator.

One pass over the final attempts with a partial decode; memory grows with tasks, not with rollouts.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from windrow.records import Usage
from windrow.stats.estimate import Mean, clustered_mean, pass_table
from windrow.stats.lines import batches, final_lines
from windrow.stats.tally import PASS_REWARD, Tally
from windrow.store.read import RunReader

__all__ = ["PASS_REWARD", "Stats", "summarise"]


class Stats(msgspec.Struct, kw_only=True):
    """Every mean says over how many; `pass_at` is over `pass_tasks`, the same tasks for every k."""

    run: str
    planned: int | None
    rollouts: int
    attempts: int
    tasks: int
    status: dict[str, int]
    stop: dict[str, int]
    errors: dict[str, int]
    grade: dict[str, int]
    reward: Mean | None
    scores: dict[str, Mean]
    pass_reward: float
    pass_at: dict[str, float]
    pass_tasks: int
    usage: Usage
    seconds_per_rollout: float | None
    policy_seconds_per_rollout: float | None
    wall_seconds: float
    bad_lines: int


def summarise(run: str | Path, *, pass_reward: float = PASS_REWARD) -> Stats:
    with RunReader(run) as reader:
        tally = Tally(pass_reward, by_score=True)
        for found in batches(final_lines(reader, reader.gradings())):
            tally.add([line for _, line in found])
        return _stats(reader, tally)


def _stats(reader: RunReader, tally: Tally) -> Stats:
    pass_at, pass_tasks = pass_table(tally.rewards)
    return Stats(
        run=str(reader.path),
        planned=reader.manifest.counts.get("planned"),
        rollouts=tally.rollouts,
        attempts=reader.attempts,
        tasks=tally.tasks,
        status=dict(tally.status),
        stop=dict(tally.stop),
        errors=dict(tally.errors),
        grade=dict(tally.grade),
        reward=clustered_mean(tally.rewards),
        scores={name: mean for name, of in sorted(tally.scores.items()) if (mean := clustered_mean(of))},
        pass_reward=tally.pass_reward,
        pass_at=pass_at,
        pass_tasks=pass_tasks,
        usage=tally.usage(),
        seconds_per_rollout=tally.seconds / tally.done if tally.done else None,
        policy_seconds_per_rollout=tally.policy_seconds / tally.done if tally.done else None,
        wall_seconds=max(0.0, tally.last - tally.first),
        bad_lines=len(reader.bad_lines),
    )
