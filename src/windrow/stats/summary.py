"""The totals of a run: coverage, reward, pass@k, tokens and time, each with its denominator.

`count_totals` is the one pass over the final attempts. It feeds `windrow stats` and, with an observer that adds the
details, metrics.json. Lines are decoded in part; memory grows with tasks, not with rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from windrow.records import Usage
from windrow.stats.cache import read_cache
from windrow.stats.estimate import clustered_mean, pass_table
from windrow.stats.final_attempts import LocatedAttempt, final_attempts
from windrow.stats.schema import Totals
from windrow.stats.tally import PASS_REWARD, AgentPart, Tallies
from windrow.store.gradings import Gradings
from windrow.store.rank_progress import unfinished
from windrow.store.reader import RunReader

__all__ = ["PASS_REWARD", "BatchObserver", "Stats", "count_totals", "stats_of", "summarise"]


class Stats(Totals, kw_only=True):
    """The totals of a run and its progress. `planned` counts episodes; an episode of a match has several rollouts."""

    run: str
    planned: int | None
    unfinished_ranks: list[str]  # where ranks share the tasks: those that are missing or not done


class BatchObserver(Protocol):
    """Sees the final attempts as they are counted, for numbers that the totals do not hold."""

    def add(self, attempts: Sequence[LocatedAttempt], parts: Sequence[AgentPart]) -> None: ...


class _JudgeUsage(msgspec.Struct, gc=False):
    usage: Usage | None = None


_decode_judge_usage = msgspec.json.Decoder(_JudgeUsage).decode


def summarise(run: str | Path, *, pass_reward: float = PASS_REWARD) -> Stats:
    """The statistics of a run. They come from metrics.cache if the run has not changed since, else from its logs."""
    with RunReader(run) as reader:
        cached = read_cache(reader, pass_reward)
        totals = cached.summary if cached else count_totals(reader, reader.gradings(), pass_reward)
        return stats_of(reader, totals)


def count_totals(
    reader: RunReader, gradings: Gradings, pass_reward: float, observer: BatchObserver | None = None
) -> Totals:
    """Count the final attempts of a run in one pass. With an observer, they are also tallied by agent for it."""
    tallies = Tallies(pass_reward, by_agent=observer is not None)
    for attempts in final_attempts(reader, gradings):
        parts = tallies.add(attempts)
        if observer is not None:
            observer.add(attempts, parts)
    return _totals(reader, tallies)


def stats_of(reader: RunReader, totals: Totals) -> Stats:
    """The totals together with the progress in run.json."""
    return Stats(
        **msgspec.structs.asdict(totals),
        run=str(reader.path),
        planned=reader.manifest.counts.get("planned"),
        unfinished_ranks=unfinished(reader.manifest.ranks),
    )


def _totals(reader: RunReader, tallies: Tallies) -> Totals:
    """The totals, once all lines are read."""
    tally, opponents = tallies.all_agents, tallies.opponents
    pass_at, pass_tasks = pass_table(tally.rewards)
    return Totals(
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
        episodes=tallies.episodes,
        majority=tally.majority(),
        opponents=opponents.rollouts,
        opponent_usage=opponents.usage(),
        judge_usage=_judge_usage(reader),
        bad_lines=len(reader.bad_lines),
    )


def _judge_usage(reader: RunReader) -> Usage | None:
    lines = reader.lines(_decode_judge_usage, name="scores")
    usages = [line.usage for _, line in lines if line.usage is not None]
    return sum(usages, Usage()) if usages else None
