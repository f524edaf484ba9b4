"""`windrow stats`: coverage, reward, pass@k, tokens and time of a run, each with its denominator.

One pass over the final attempts with a partial decode; memory grows with tasks, not with rollouts.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from windrow.records import Rollout, Usage, is_done
from windrow.stats.estimate import Cluster, Mean, clustered_mean, mean_pass_at
from windrow.store.read import RunReader

PASS_REWARD = 1.0


class _Error(msgspec.Struct):
    owner: str
    kind: str


class _Timing(msgspec.Struct):
    started_at: float
    policy: float
    total: float


class _Value(msgspec.Struct):
    value: float


class _Light(msgspec.Struct):
    """What statistics need of a line."""

    id: str
    attempt: int
    group: str
    status: str
    stop: str
    reason: str | None
    error: _Error | None
    grade: str
    grading: str | None
    reward: float | None
    usage: Usage
    timing: _Timing
    scores: dict[str, _Value]


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


_decode_light = msgspec.json.Decoder(_Light).decode


def summarise(run: str | Path, *, pass_reward: float = PASS_REWARD) -> Stats:
    with RunReader(run) as reader:
        return _summarise(reader, pass_reward)


def _summarise(reader: RunReader, pass_reward: float) -> Stats:
    manifest = reader.manifest
    active = manifest.grading.hash if manifest.grading else None
    gradings = reader.gradings()
    tally = _Tally(pass_reward)
    for place, line in reader.finals(_decode_light):
        graded: _Light | Rollout = line
        if line.grading != active or (line.id, line.attempt) in gradings:
            graded = reader.folded(reader.read(place), gradings)
        tally.add(line, graded)
    whole = _whole(tally.rewards)
    most = max((cluster.n for cluster in whole), default=0)
    return Stats(
        run=str(reader.path),
        planned=manifest.counts.get("planned"),
        rollouts=sum(tally.status.values()),
        attempts=reader.attempts,
        tasks=len(tally.tasks),
        status=dict(tally.status),
        stop=dict(tally.stop),
        errors=dict(tally.errors),
        grade=dict(tally.grade),
        reward=clustered_mean(tally.rewards.values()),
        scores={
            name: mean for name, of in sorted(tally.scores.items()) if (mean := clustered_mean(of.values()))
        },
        pass_reward=pass_reward,
        pass_at={str(k): mean_pass_at(whole, k) for k in _ks(most)},
        pass_tasks=len(whole),
        usage=tally.usage(),
        seconds_per_rollout=tally.seconds / tally.done if tally.done else None,
        policy_seconds_per_rollout=tally.policy_seconds / tally.done if tally.done else None,
        wall_seconds=max(0.0, tally.last - tally.first),
        bad_lines=len(reader.bad_lines),
    )


class _Tally:
    """Sums over the final attempts."""

    def __init__(self, pass_reward: float) -> None:
        self._pass_reward = pass_reward
        self.status: Counter[str] = Counter()
        self.stop: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.grade: Counter[str] = Counter()
        self.tasks: set[str] = set()
        self.rewards: dict[str, Cluster] = {}
        self.scores: dict[str, dict[str, Cluster]] = {}
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0
        self.cost: float | None = None
        self.done = 0
        self.seconds = self.policy_seconds = 0.0
        self.first, self.last = float("inf"), 0.0

    def add(self, line: _Light, graded: _Light | Rollout) -> None:
        """`line` is the log's; `graded` has the scores that count."""
        self.status[line.status] += 1
        self.stop[line.stop] += 1
        self.grade[graded.grade] += 1
        self.tasks.add(line.group)
        if graded.error is not None:
            self.errors[f"{graded.error.owner}/{graded.error.kind}"] += 1
        if graded.reward is not None:
            passed = graded.reward >= self._pass_reward
            self.rewards.setdefault(line.group, Cluster()).add(graded.reward, passed=passed)
        for name, score in graded.scores.items():
            clusters = self.scores.setdefault(name, {})
            clusters.setdefault(line.group, Cluster()).add(score.value, passed=False)
        self.prompt_tokens += line.usage.prompt_tokens
        self.completion_tokens += line.usage.completion_tokens
        self.cached_tokens += line.usage.cached_tokens
        if line.usage.cost is not None:
            self.cost = (self.cost or 0.0) + line.usage.cost
        self.first = min(self.first, line.timing.started_at)
        self.last = max(self.last, line.timing.started_at + line.timing.total)
        if is_done(line.status, line.reason):
            self.done += 1
            self.seconds += line.timing.total
            self.policy_seconds += line.timing.policy

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
            cost=self.cost,
        )


def _whole(rewards: dict[str, Cluster]) -> list[Cluster]:
    """The tasks that pass@k is over: those with as many graded samples as the best-covered task."""
    most = max((cluster.n for cluster in rewards.values()), default=0)
    return [cluster for cluster in rewards.values() if cluster.n == most]


def _ks(most: int) -> list[int]:
    """1, 2, 4, … and the largest."""
    return sorted({*(2**i for i in range(most.bit_length()) if 2**i <= most), most} - {0})
