"""`windrow stats RUN --as webgym`: WebGym's metrics of a run, and the honest numbers beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from windrow.integrations.webgym.metrics import HonestMetrics, Measurement, Share, Trajectory, measure
from windrow.integrations.webgym.steps import trajectory_of
from windrow.records import Json
from windrow.store.passes import Pass
from windrow.store.reader import RunReader, load


class WebGymReport(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one iteration, or of all; `cancelled` rollouts are in none of them."""

    run: str
    iteration: int | None
    measured: Measurement
    cancelled: int

    def plain(self) -> dict[str, Json]:
        """Return the report as JSON, each share with its rate."""
        honest = self.measured.honest
        named = ("success", "success_of_graded", "blocked")
        by_difficulty = {band: _share(share) for band, share in honest.success_by_difficulty.items()}
        return {
            "run": self.run,
            "iteration": self.iteration,
            "webgym": msgspec.to_builtins(self.measured.webgym),
            "honest": {
                **{name: _share(getattr(honest, name)) for name in named},
                "outcomes": honest.outcomes,
                "success_by_difficulty": by_difficulty,
                "cancelled": self.cancelled,
            },
        }

    def text(self) -> str:
        theirs: dict[str, float] = msgspec.to_builtins(self.measured.webgym)
        which = "" if self.iteration is None else f", iteration {self.iteration}"
        rows = [("run", f"{self.run}{which}")]
        rows += [(name, _number(value)) for name, value in theirs.items()]
        rows += list(_honest_rows(self.measured.honest))
        if self.cancelled:
            rows.append(("cancelled", f"{self.cancelled:,}, in none of these numbers"))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def report(run: str | Path, *, iteration: int | None = None) -> WebGymReport:
    """Report on the final attempts of a run: of one `iteration`, or of all if it is None."""
    wanted = Pass(Path(run), RunReader(run).manifest, iteration) if iteration is not None else None
    cancelled = 0

    def trajectories() -> Iterator[Trajectory]:
        nonlocal cancelled
        for rollout in load(run):
            if (wanted is not None and rollout not in wanted) or rollout.opponent:
                continue
            trajectory = trajectory_of(rollout)
            if trajectory is None:
                cancelled += 1
            else:
                yield trajectory

    measured = measure(trajectories())
    return WebGymReport(run=str(run), iteration=iteration, measured=measured, cancelled=cancelled)


def _honest_rows(honest: HonestMetrics) -> Iterator[tuple[str, str]]:
    yield "success", f"{_of(honest.success)} of all; {_of(honest.success_of_graded)} of the graded"
    for band, share in honest.success_by_difficulty.items():
        yield f"  {band}", _of(share)
    yield "blocked", f"{_of(honest.blocked)} of all"
    yield "outcomes", ", ".join(f"{count:,} {name}" for name, count in honest.outcomes.items()) or "none"


def _of(share: Share) -> str:
    return f"{share.count:,} of {share.of:,}" + (f" ({share.rate:.4f})" if share.rate is not None else "")


def _share(share: Share) -> dict[str, Json]:
    return {"count": share.count, "of": share.of, "rate": share.rate}


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
