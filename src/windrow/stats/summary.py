"""`windrow stats`: coverage, reward, pass@k, tokens and time of a run, each with its denominator.

One pass over the final attempts with a partial decode; memory grows with tasks, not with rollouts.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from windrow.records import Usage
from windrow.stats.clusters import Groups
from windrow.stats.estimate import Mean, clustered_mean, pass_table
from windrow.stats.lines import final_lines
from windrow.stats.majority import Majority
from windrow.stats.tally import PASS_REWARD, Tally
from windrow.store.ranks import unfinished
from windrow.store.read import RunReader

__all__ = ["PASS_REWARD", "Stats", "summarise"]


class Stats(msgspec.Struct, kw_only=True):
    """Every mean says over how many; `pass_at` is over `pass_tasks`, the same tasks for every k.

    `planned` and `episodes` are episodes; those of a match have several rollouts. What opponents played is only in
    `opponents` and `opponent_usage`.
    """

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
    groups: Groups
    usage: Usage
    seconds_per_rollout: float | None
    policy_seconds_per_rollout: float | None
    wall_seconds: float
    bad_lines: int
    episodes: int | None = None
    majority: Majority | None = None  # null where no scorer read answers
    opponents: int = 0
    opponent_usage: Usage = Usage()
    judge_usage: Usage | None = None  # of all gradings; null when no judge was asked
    unfinished_ranks: list[
        str
    ] = []  # where ranks share the tasks: who is missing, and who has something left


class _Judged(msgspec.Struct, gc=False):
    usage: Usage | None = None


_decode_judged = msgspec.json.Decoder(_Judged).decode


def summarise(run: str | Path, *, pass_reward: float = PASS_REWARD) -> Stats:
    with RunReader(run) as reader:
        tally, opponents = Tally(pass_reward), Tally(pass_reward)
        episodes, seats = 0, False
        for found in final_lines(reader, reader.gradings()):
            lines = [line for _, line in found]
            seats = seats or any(line.seat is not None for line in lines)
            episodes += sum(line.done and not line.seat for line in lines)
            tally.add([line for line in lines if not line.opponent])
            opponents.add([line for line in lines if line.opponent])
        return _stats(reader, tally, opponents, episodes if seats else None)


def _stats(reader: RunReader, tally: Tally, opponents: Tally, episodes: int | None) -> Stats:
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
        groups=tally.groups(),
        usage=tally.usage(),
        seconds_per_rollout=tally.seconds / tally.done if tally.done else None,
        policy_seconds_per_rollout=tally.policy_seconds / tally.done if tally.done else None,
        wall_seconds=max(0.0, tally.last - tally.first),
        bad_lines=len(reader.bad_lines),
        episodes=episodes,
        majority=tally.majority(),
        opponents=opponents.rollouts,
        opponent_usage=opponents.usage(),
        judge_usage=_judge_usage(reader),
        unfinished_ranks=unfinished(reader.manifest.ranks),
    )


def _judge_usage(reader: RunReader) -> Usage | None:
    found = [line.usage for _, line in reader.lines(_decode_judged, name="scores") if line.usage is not None]
    return sum(found, Usage()) if found else None
