"""WebGym's numbers, by its formulas, and honest ones beside them.

WebGym leaves crashed and blocked trajectories out of the denominator of success, so that failures raise it. Our
numbers count all attempts, and each states its denominator.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from windrow.integrations.webgym.rows import EASY, MEDIUM

ANSWER, GO_BACK, INVALID_URL = "answer", "goback", "invalid_url"
NO_ACTION = "none"  # what stands for an action that there is not
ENOUGH_STEPS = 10  # from here on, a trajectory without an answer has not crashed, in whatever split
SUCCESS = 1.0

Band = str
BANDS: Mapping[Band, tuple[int, int]] = {
    "easy": (-sys.maxsize, EASY),
    "medium": (EASY + 1, MEDIUM),
    "hard": (MEDIUM + 1, sys.maxsize),
}


class Step(msgspec.Struct, frozen=True):
    """One action: its key, the length of its reply, and the reward after it."""

    key: str = NO_ACTION
    chars: int = 0
    reward: float | None = None
    blocked: bool = False


class Trajectory(msgspec.Struct, frozen=True):
    """The steps of an episode; and, for the honest numbers, its ending and the difficulty of its task."""

    steps: tuple[Step, ...]
    outcome: str = ""
    difficulty: int | None = None

    @property
    def blocked(self) -> bool:
        return bool(self.steps) and self.steps[-1].blocked

    @property
    def succeeded(self) -> bool:
        return bool(self.steps) and self.steps[-1].reward == SUCCESS

    @property
    def graded(self) -> bool:
        return bool(self.steps) and self.steps[-1].reward is not None


class WebGymMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """WebGym's rollout metrics, under its names. An empty set gives zeros."""

    success_rate: float = 0.0
    avg_chars_per_response: float = 0.0
    avg_steps: float = 0.0
    goback_rate: float = 0.0
    crashed_rate: float = 0.0
    blocked_rate: float = 0.0
    total_trajectories: int = 0


class Share(msgspec.Struct, frozen=True):
    """`count` of `of`; `rate` is None where there is nothing to divide by."""

    count: int
    of: int

    @property
    def rate(self) -> float | None:
        return self.count / self.of if self.of else None


class HonestMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The same trajectories with nothing left out. `outcomes` add up to all of them."""

    success: Share  # of all that were attempted
    success_of_graded: Share
    blocked: Share  # of all that were attempted
    outcomes: dict[str, int]
    success_by_difficulty: dict[Band, Share]  # of all of that difficulty


class Measurement(msgspec.Struct, frozen=True):
    webgym: WebGymMetrics
    honest: HonestMetrics


def crashed(trajectory: Trajectory) -> bool:
    """Return whether WebGym counts a trajectory as crashed: it has no step, begins at an invalid address, lacks an
    action, or is short and ends with neither an answer nor a block.
    """
    steps = trajectory.steps
    if not steps or steps[0].key == INVALID_URL or any(step.key == NO_ACTION for step in steps):
        return True
    return len(steps) < ENOUGH_STEPS and steps[-1].key != ANSWER and not steps[-1].blocked


def measure(
    trajectories: Iterable[Trajectory | None],
    *,
    chunk_size: int | None = None,
    bands: Mapping[Band, tuple[int, int]] = BANDS,
) -> Measurement:
    """Compute both kinds of numbers in one pass: WebGym's over the last `chunk_size` trajectories, ours over all.

    `bands` are ranges of difficulty, both ends included. A trajectory is held as a few numbers, and only for a
    window.
    """
    honest = _Honest(bands)
    window: deque[_Counts] = deque(maxlen=chunk_size or 0)
    sums = _Counts()
    for trajectory in trajectories:
        if trajectory is None:
            continue
        honest.add(trajectory)
        counts = _counts(trajectory)
        if chunk_size is not None and len(window) == chunk_size:
            sums = sums.plus(window[0], -1)
        window.append(counts)
        sums = sums.plus(counts)
    return Measurement(_theirs(sums, honest.attempted), honest.result())


class _Counts(NamedTuple):
    """The contribution of one or several trajectories to WebGym's sums; steps, characters and so on are of those that
    count.
    """

    trajectories: int = 0
    crashed: int = 0
    blocked: int = 0
    successes: int = 0
    steps: int = 0
    chars: int = 0
    gobacks: int = 0

    def plus(self, other: _Counts, sign: int = 1) -> _Counts:
        return _Counts(*(mine + sign * others for mine, others in zip(self, other, strict=True)))


def _counts(trajectory: Trajectory) -> _Counts:
    if crashed(trajectory):
        return _Counts(trajectories=1, crashed=1)
    if trajectory.blocked:
        return _Counts(trajectories=1, blocked=1)
    steps = trajectory.steps
    return _Counts(
        trajectories=1,
        successes=trajectory.succeeded,
        steps=len(steps),
        chars=sum(step.chars for step in steps),
        gobacks=sum(step.key == GO_BACK for step in steps),
    )


def _theirs(sums: _Counts, total: int) -> WebGymMetrics:
    valid = sums.trajectories - sums.crashed
    counted = valid - sums.blocked
    return WebGymMetrics(
        success_rate=_over(sums.successes, counted),
        avg_chars_per_response=_over(sums.chars, sums.steps),
        avg_steps=_over(sums.steps, counted),
        goback_rate=_over(sums.gobacks, sums.steps),
        crashed_rate=_over(sums.crashed, sums.trajectories),
        blocked_rate=_over(sums.blocked, valid),
        total_trajectories=total,
    )


class _Honest:
    """The honest numbers, updated by each trajectory."""

    def __init__(self, bands: Mapping[Band, tuple[int, int]]) -> None:
        self._bands = bands
        self._outcomes: Counter[str] = Counter()
        self._of: Counter[Band] = Counter()
        self._successes: Counter[Band] = Counter()
        self.attempted = self._succeeded = self._graded = self._blocked = 0

    def add(self, trajectory: Trajectory) -> None:
        self.attempted += 1
        self._succeeded += trajectory.succeeded
        self._graded += trajectory.graded
        self._blocked += trajectory.blocked
        self._outcomes[trajectory.outcome] += 1
        for band, (low, high) in self._bands.items():
            if trajectory.difficulty is not None and low <= trajectory.difficulty <= high:
                self._of[band] += 1
                self._successes[band] += trajectory.succeeded

    def result(self) -> HonestMetrics:
        return HonestMetrics(
            success=Share(self._succeeded, self.attempted),
            success_of_graded=Share(self._succeeded, self._graded),
            blocked=Share(self._blocked, self.attempted),
            outcomes=dict(sorted(self._outcomes.items())),
            success_by_difficulty={
                band: Share(self._successes[band], self._of[band]) for band in self._bands if self._of[band]
            },
        )


def _over(part: float, whole: int) -> float:
    return part / whole if whole else 0.0
