"""Small pieces of text that several commands print, or read."""

from __future__ import annotations

import argparse
import math

from windrow.records import RecordedScore
from windrow.stats.estimate import Mean


def shorten(text: str, width: int) -> str:
    """On one line, cut to `width`."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def score_text(score: RecordedScore) -> str:
    return f"{score.value:g} × {score.weight:g}"


def mean_text(mean: Mean) -> str:
    interval = f" [{mean.low:.3f}, {mean.high:.3f}]" if mean.low is not None and mean.high is not None else ""
    return f"{mean.value:.3f}{interval}  (n = {mean.n:,}, {mean.clusters:,} tasks)"


def counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def parse_reward(text: str) -> float:
    """What a flag says of a reward: NaN is compared with nothing."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"expected a reward such as 0.5, found {text!r}")
    return number
