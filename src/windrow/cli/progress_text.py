"""The progress of a call in words: the same figures for the live region of a terminal and for plain lines."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import msgspec

from windrow.engine.progress import Progress

WINDOW_SAMPLES = 120
SAMPLE_S = 0.5
MOST_AGENTS = 5
MOST_KINDS = 4


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to show at one moment. While `status` is not None, it is all there is to show."""

    status: str | None = None
    settled: int = 0
    planned: int = 0
    figures: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        return tuple(row for row in (self.figures, self.failures, self.left) if row)

    @property
    def counts(self) -> str:
        return f"{percent(self.settled, self.planned):3}%  {self.settled:,}/{self.planned:,}"


class Speed:
    """Rollouts and tokens a second: over the last minute, and once none runs any more over all the time that they ran.

    What comes before and after them (services, the policy, grading, metrics) does not count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=WINDOW_SAMPLES)

    def rates(self, progress: Progress) -> tuple[float, float]:
        if progress.running_since is None:
            return 0.0, 0.0
        if progress.running_until is not None:
            seconds = max(progress.running_until - progress.running_since, 1e-3)
            return progress.settled / seconds, progress.tokens / seconds
        if not self._samples:
            self._samples.append((progress.running_since, 0, 0))
        now = self._clock()
        then, settled, tokens = self._samples[0]
        seconds = max(now - then, 1e-3)
        if now - self._samples[-1][0] >= SAMPLE_S:
            self._samples.append((now, progress.settled, progress.tokens))
        return (progress.settled - settled) / seconds, (progress.tokens - tokens) / seconds


def frame(progress: Progress, speed: Speed) -> Frame:
    """What is being done now."""
    if progress.phase == "grading":
        return Frame(status=f"grading {progress.graded:,} of {progress.to_grade:,} from earlier calls")
    if progress.phase == "serving" and progress.waiting_for:
        return Frame(status=f"waiting for service {', '.join(progress.waiting_for)}")
    if progress.phase in ("serving", "opening"):
        return Frame(status="waiting for the policy")
    if progress.phase == "aggregating":
        return Frame(status="computing the metrics")
    if progress.phase == "tracking":
        return Frame(status="sending to the trackers")
    return work_frame(progress, speed)


def work_frame(progress: Progress, speed: Speed) -> Frame:
    """How far the rollouts of this call are."""
    return Frame(
        settled=progress.settled,
        planned=progress.planned,
        figures=_figures(progress, speed),
        failures=_failures(dict(progress.failures)),
        left=_left(dict(progress.left)),
    )


def percent(part: int, whole: int) -> int:
    """Rounded down: 100 means all."""
    return 100 * part // whole if whole else 100


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _figures(progress: Progress, speed: Speed) -> tuple[str, ...]:
    rate, token_rate = speed.rates(progress)
    parts = [f"{rate:,.1f}/s", f"{token_rate:,.0f} tok/s"]
    if progress.rewards:
        parts.append(f"reward {progress.reward_sum / progress.rewards:.3f} (n {progress.rewards:,})")
    parts.append(f"{progress.in_flight:,} running")
    left = progress.planned - progress.settled
    if left and rate > 0:
        parts.append(f"{duration(left / rate)} to go")
    return tuple(parts)


def _failures(failures: dict[str, int]) -> tuple[str, ...]:
    if not failures:
        return ()
    total = sum(failures.values())
    return (f"{total:,} failed:", *_largest(failures, MOST_KINDS, "kinds"))


def _left(left: dict[str, int]) -> tuple[str, ...]:
    waiting = {agent: count for agent, count in left.items() if count}
    return ("left:", *_largest(waiting, MOST_AGENTS, "agents")) if waiting else ()


def _largest(counts: dict[str, int], most: int, what: str) -> list[str]:
    """The largest counts by name, and how many names more there are."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name} {count:,}" for name, count in ranked[:most]]
    if len(ranked) > most:
        shown.append(f"+ {len(ranked) - most:,} {what}")
    return shown
