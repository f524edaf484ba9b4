"""Reward profiles in NeMo Gym's layout: `mean/ max/ min/ median/ std/<field>` of a task's rollouts and of an agent's.

The fields are the reward, the verifier's numbers and the usage. Unlike NeMo Gym's, they exclude values that are no
measurements: numbers of the task's row and marks. The usage does not replace a verifier's field. `pass@k/reward` is
the expected best reward of k rollouts drawn from a task's, unbiased and independent of their order, over the same
tasks at every k: those whose rollouts are complete.
"""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from windrow.integrations.nemo_gym.results import is_number
from windrow.records import Json

REWARD = "reward"
PERCENT = 100.0


def numbers(answer: Mapping[str, Json], row: Mapping[str, Json]) -> dict[str, float]:
    """Return the measurements of a rollout by name."""
    response = answer.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    measured = dict(_numbers(usage)) if isinstance(usage, dict) else {}
    own = {REWARD, *(key for key in answer if key not in row and not key.startswith("_ng_"))}
    measured |= {key: value for key, value in _numbers(answer) if key in own}
    return measured


def _numbers(fields: Mapping[str, Json]) -> Iterator[tuple[str, float]]:
    for key, value in fields.items():
        if isinstance(value, bool) or is_number(value):
            yield key, float(value)


def described(columns: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the statistics of each field; `std` divides by n − 1, and is 0 for one value."""
    kinds: dict[str, Callable[[Sequence[float]], float]] = {
        "mean": statistics.fmean,
        "max": max,
        "min": min,
        "median": statistics.median,
        "std": lambda values: statistics.stdev(values) if len(values) > 1 else 0.0,
    }
    return {
        f"{kind}/{field}": float(measure(values))
        for kind, measure in kinds.items()
        for field, values in columns.items()
        if len(values)
    }


def best_of(rewards: Sequence[float], k: int) -> float:
    """Return the mean, over all subsets of k rewards, of the best reward in the subset."""
    ordered = sorted(rewards)
    n = len(ordered)
    total, weight = (
        0.0,
        k / n,
    )  # the weight of the i-th smallest: the share of choices in which it is the best
    for i in range(n, k - 1, -1):
        total += weight * ordered[i - 1]
        weight *= (i - k) / (i - 1) if i > 1 else 0.0
    return total


class Columns:
    """Values by field: eight bytes each."""

    def __init__(self) -> None:
        self.values: dict[str, array[float]] = {}
        self.count = 0

    def add(self, measured: Mapping[str, float]) -> None:
        self.count += 1
        for field, value in measured.items():
            self.values.setdefault(field, array("d")).append(value)


class TaskProfile(msgspec.Struct):
    """The profile of the current task."""

    number: int
    sample: dict[str, Json]  # its input
    expected: int
    infos: list[dict[str, Json]] = []

    def add(self, rollout: int, measured: Mapping[str, float]) -> None:
        self.infos.append({"rollout_id": f"{self.number}:{rollout}", **measured})

    def entry(self) -> dict[str, Json]:
        """Return the task's line without its number and its input."""
        columns = Columns()
        for info in self.infos:
            columns.add({key: value for key, value in info.items() if key != "rollout_id"})
        return {
            **described(columns.values),
            "num_rollouts": len(self.infos),
            "expected_num_rollouts": self.expected,
            "missing_num_rollouts": self.expected - len(self.infos),
            "reward_profile_completion_pct": PERCENT * len(self.infos) / self.expected,
            "rollout_infos": self.infos,
        }

    @property
    def rewards(self) -> list[float]:
        return [info[REWARD] for info in self.infos]


class AgentProfile:
    """The profile of all of an agent's rollouts."""

    def __init__(self) -> None:
        self._columns = Columns()
        self._best: dict[int, float] = {}
        self._whole_tasks = 0

    def add(self, task: TaskProfile) -> None:
        for info in task.infos:
            self._columns.add({key: value for key, value in info.items() if key != "rollout_id"})
        if len(task.infos) == task.expected:
            self._whole_tasks += 1
            for k in range(1, task.expected + 1):
                self._best[k] = self._best.get(k, 0.0) + best_of(task.rewards, k)

    def metrics(self) -> dict[str, Json]:
        passed = {
            f"pass@{k}/{REWARD}": PERCENT * total / self._whole_tasks for k, total in self._best.items()
        }
        counted = {"pass@k/num_tasks": self._whole_tasks} if passed else {}
        return {**described(self._columns.values), **passed, **counted}
