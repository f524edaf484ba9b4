"""Trackers by name: `wandb[:PROJECT]`, `mlflow[:EXPERIMENT]`, `tensorboard[:DIR]`; and which of them a call has."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from windrow.config import nearest
from windrow.errors import UsageError
from windrow.registry import extra_needed
from windrow.trackers import mlflow, wandb
from windrow.trackers.base import Tracker

HOMES = {
    "wandb": "windrow.trackers.wandb:WandbTracker",
    "mlflow": "windrow.trackers.mlflow:MlflowTracker",
    "tensorboard": "windrow.trackers.tensorboard:TensorboardTracker",
}
_ACTIVE = {"wandb": wandb.active, "mlflow": mlflow.active}


class Named(NamedTuple):
    """A tracker, and its project, experiment or directory."""

    name: str
    target: str | None

    def make(self) -> Tracker:
        module, _, kind = HOMES[self.name].partition(":")
        tracker: Tracker = getattr(import_module(module), kind)(self.target)
        return tracker


def parse_track(text: str) -> Named:
    name, colon, target = text.partition(":")
    if name not in HOMES or (colon and not target):
        raise UsageError(
            f"--track {text!r}: expected wandb[:PROJECT], mlflow[:EXPERIMENT] or tensorboard[:DIR]"
            f"{nearest(name, HOMES) if name not in HOMES else ''}"
        )
    return Named(name, target or None)


def trackers_of(track: Sequence[str]) -> list[Named]:
    """The trackers that were asked for, and those of which this process has a run open."""
    named = [parse_track(text) for text in track]
    names = {tracker.name for tracker in named}
    return named + [Named(name, None) for name, active in _ACTIVE.items() if name not in names and active()]


def missing(named: Named) -> str | None:
    """What to type where a tracker's package is not installed."""
    try:
        there = find_spec(named.name) is not None
    except ValueError:  # it is imported, and made by hand
        there = True
    return None if there else str(extra_needed(named.name, f"--track {named.name}"))
