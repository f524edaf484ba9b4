"""What stands in metrics.json."""

from __future__ import annotations

import msgspec

from windrow.records import Usage
from windrow.stats.clusters import GroupVariety
from windrow.stats.estimate import Mean
from windrow.stats.majority import Majority
from windrow.stats.spread import Spread
from windrow.stats.task_table import GroupMetrics

METRICS = "metrics.json"
SCHEMA = 1
FORMULAS = 1  # raised whenever the same logs give other numbers


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What the numbers were made of. `logs` are the sizes in bytes of the logs of rollouts and gradings, `settings` is a
    hash of all that run.json contributes, `envs` are the environments that came up."""

    formulas: int = FORMULAS
    pass_reward: float
    logs: dict[str, int]
    settings: str
    envs: list[str]


class RunName(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    source: str
    split: str | None
    behaviour: str
    grading: str | None


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """`rollouts` of `planned` were tried, `done` settled, `graded` have a reward. `planned` is the last call's."""

    planned: int | None
    rollouts: int
    done: int
    graded: int
    tasks: int
    attempts: int
    bad_lines: int


class Totals(msgspec.Struct, kw_only=True):
    """Sums over all agents. Every mean says over how many; `pass_at` is over `pass_tasks`, the same tasks for every k.

    `episodes` is null where no episode has several rollouts. What opponents played is only in `opponents` and
    `opponent_usage`.
    """

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
    groups: GroupVariety
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


class Rates(msgspec.Struct, frozen=True):
    """How many of `n` rollouts, and which share, by name."""

    n: int
    count: dict[str, int]
    rate: dict[str, float]


class AgentMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """`spread` holds reward, score/NAME, metric/NAME, usage/NAME and seconds, each over the rollouts that have it.

    `errors` are by owner, `error_kinds` by owner/kind. `aggregate` is what each environment's own hook gave.
    """

    rollouts: int
    tasks: int
    reward: Mean | None
    spread: dict[str, Spread]
    status: Rates
    stop: Rates
    grade: Rates
    errors: Rates
    error_kinds: dict[str, int]
    pass_reward: float
    pass_at: dict[str, float]
    pass_tasks: int
    majority: Majority | None
    groups: GroupVariety
    aggregate: dict[str, dict[str, float]]


class AgentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`key_metrics` is flat, for a table or a tracker."""

    agent: str
    key_metrics: dict[str, float | None]
    agent_metrics: AgentMetrics
    group_level_metrics: list[GroupMetrics]


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    stamp: Stamp
    run: RunName
    coverage: Coverage
    summary: Totals
    agents: list[AgentEntry]
