"""`windrow stats`: coverage, reward, pass@k, tokens and time of a run, each with its denominator.

An unchanged run is not read: its numbers are in metrics.cache. Else it is one pass over the final attempts with a partial
decode; memory grows with tasks, not with rollouts.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from windrow.records import Usage
from windrow.stats.cache import read_cache
from windrow.stats.estimate import clustered_mean, pass_table
from windrow.stats.lines import final_lines
from windrow.stats.schema import Totals
from windrow.stats.tally import PASS_REWARD, Tallies
from windrow.store.rank_progress import unfinished
from windrow.store.reader import RunReader

__all__ = ["PASS_REWARD", "Stats", "stats_of", "summarise", "totals_of"]


class Stats(Totals, kw_only=True):
    """The totals of a run, and how far it is. `planned` are episodes; those of a match have several rollouts."""

    run: str
    planned: int | None
    unfinished_ranks: list[str]  # where ranks share the tasks: who is missing, and who has something left


class _Judged(msgspec.Struct, gc=False):
    usage: Usage | None = None


_decode_judged = msgspec.json.Decoder(_Judged).decode


def summarise(run: str | Path, *, pass_reward: float = PASS_REWARD) -> Stats:
    with RunReader(run) as reader:
        cached = read_cache(reader, pass_reward)
        if cached is not None:
            return stats_of(reader, cached.summary)
        tallies = Tallies(pass_reward, apart=False)
        for found in final_lines(reader, reader.gradings()):
            tallies.add(found)
        return stats_of(reader, totals_of(reader, tallies))


def stats_of(reader: RunReader, totals: Totals) -> Stats:
    """With what run.json says now."""
    return Stats(
        **msgspec.structs.asdict(totals),
        run=str(reader.path),
        planned=reader.manifest.counts.get("planned"),
        unfinished_ranks=unfinished(reader.manifest.ranks),
    )


def totals_of(reader: RunReader, tallies: Tallies) -> Totals:
    """What was counted, once all lines are read."""
    tally, opponents = tallies.own, tallies.opponents
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
    found = [line.usage for _, line in reader.lines(_decode_judged, name="scores") if line.usage is not None]
    return sum(found, Usage()) if found else None
