"""Judge the rollouts of a run again, from the record: no policy is asked, and no rollout is run again.

windrow rescore RUN --scorer my_module:my_scorer     # a new generation of verdicts, beside the old one
windrow rescore RUN --failed-only                    # only what could not be judged
windrow rescore RUN --list                           # the generations; --use N makes another the active one
"""

from __future__ import annotations

import argparse
import time

from windrow.cli.collect import BUDGET_EXIT
from windrow.cli.flags import add_judge_arguments, add_trust_run_argument
from windrow.cli.output import write_error, write_out
from windrow.cli.progress_text import duration, percent
from windrow.cli.signals import Signals
from windrow.cli.text import shorten
from windrow.config import OPTIONS
from windrow.engine.control import Control
from windrow.errors import UsageError
from windrow.grading.rescoring import (
    Generation,
    Rescored,
    RescoreProgress,
    generations,
    rescore,
    use_generation,
)
from windrow.util.event_loop import run_loop

PROGRESS_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run directory")
    group = parser.add_argument_group("how they are judged")
    group.add_argument(
        "--scorer",
        dest="scorers",
        action="append",
        metavar="NAME[=WEIGHT]",
        help="in place of the run's own; repeats",
    )
    add_judge_arguments(group)
    group.add_argument("--score-timeout", type=float, metavar="S", help="seconds for one grading (60)")
    group.add_argument("--config", action="append", default=[], metavar="FILE", help="YAML; repeats")
    group.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="such as judge.sampling.temperature=0"
    )
    group = parser.add_argument_group("which rollouts")
    group.add_argument("--where", metavar="WHERE", help="such as reward=0,task.source=gsm8k")
    group.add_argument("--failed-only", action="store_true", help="only what has no verdict yet")
    group = parser.add_argument_group("generations")
    group.add_argument("--list", action="store_true", help="list them")
    group.add_argument("--use", type=int, metavar="N", help="make this one the active one")
    group.add_argument(
        "--no-activate", dest="activate", action="store_false", help="leave the active one as it is"
    )
    group = parser.add_argument_group("run")
    group.add_argument(
        "--min-group",
        type=float,
        metavar="R",
        help="judge a group from this share of its samples on (the run's)",
    )
    group.add_argument("--budget-tokens", type=int, metavar="N", help="stop when the judge has used so many")
    group.add_argument("--budget-cost", type=float, metavar="C", help="stop when it has cost so much")
    group.add_argument("--budget-seconds", type=float, metavar="S", help="stop after so long")
    group.add_argument(
        "--no-lock", dest="lock", action="store_false", default=None, help="do not lock the run"
    )
    add_trust_run_argument(group, "use the scorers and judges that it names")
    group.add_argument("--quiet", action="store_true", help="no progress; errors are still shown")


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        write_out(_listed(generations(arguments.run)))
        return 0
    if arguments.use is not None:
        chosen = use_generation(arguments.run, arguments.use, trust_run=arguments.trust_run)
        names = ", ".join(entry["name"] for entry in chosen.of.get("scorers") or ())
        write_out(f"{arguments.run}: generation {chosen.generation} is active ({names})")
        return 0
    options = {name: getattr(arguments, name) for name in OPTIONS if hasattr(arguments, name)}
    scorers = options.pop("scorers")
    signals = Signals(write_error, what="gradings")
    control = Control()
    progress = _Progress(quiet=arguments.quiet)

    async def whole() -> Rescored:
        with signals.watch(control, lambda: progress.in_flight):
            return await rescore(
                arguments.run,
                scorers=scorers,
                where=arguments.where,
                failed_only=arguments.failed_only,
                config=arguments.config,
                sets=arguments.set,
                activate=arguments.activate,
                trust_run=arguments.trust_run,
                control=control,
                on_progress=progress,
                on_warning=lambda text: write_error(f"warning: {text}"),
                **options,
            )

    try:
        rescored = run_loop(whole())
    except KeyboardInterrupt:
        return signals.exit_code or 130
    write_out(_text(arguments.run, rescored, control))
    if signals.exit_code is not None:
        return signals.exit_code
    if control.reason == "budget":
        return BUDGET_EXIT
    return 1 if rescored.failed or control.stopping else 0


def _text(run: str, rescored: Rescored, control: Control) -> str:
    if not rescored.chosen and not control.stopping:
        return f"{run}: nothing was judged, since no rollout is chosen (--where, --failed-only, or none that ended)"
    lines = [f"{run}: {rescored.judged:,} gradings, generation {rescored.generation}"]
    if rescored.failed:
        lines.append(
            f"{rescored.failed:,} failed, such as: {shorten(rescored.example, 200)}\nThe same command judges them again"
        )
    if rescored.short:
        lines.append(
            f"{rescored.short:,} groups have too few samples to be judged together: collect fills them up, or --min-group "
            f"judges what is there"
        )
    if control.stopping:
        lines.append(f"not finished ({control.why or 'stopped'}): the same command continues")
    if rescored.active:
        lines.append(f"generation {rescored.generation} is active: windrow stats {run}")
    elif rescored.failed or control.stopping:
        lines.append(f"generation {rescored.generation} becomes active when every rollout has its verdict")
    else:
        lines.append(
            f"generation {rescored.generation} is not active; make it so with: "
            f"windrow rescore {run} --use {rescored.generation}"
        )
    return "\n".join(lines)


def _listed(run_generations: list[Generation]) -> str:
    if not run_generations:
        raise UsageError("the run is graded by no scorers")
    rows = [("generation", "scorers", "gradings", "failed")]
    rows += [
        (
            f"{'*' if generation.active else ' '} {generation.number}",
            ", ".join(generation.scorers),
            f"{generation.gradings:,}",
            f"{generation.failed:,}",
        )
        for generation in run_generations
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


class _Progress:
    """A line on standard error every few seconds; on a terminal it is written in place."""

    def __init__(self, *, quiet: bool) -> None:
        self._last: RescoreProgress | None = None
        self._quiet = quiet
        self._started = time.monotonic()
        self._next = self._started + PROGRESS_S

    @property
    def in_flight(self) -> int:
        return self._last.in_flight if self._last is not None else 0

    def __call__(self, progress: RescoreProgress) -> None:
        self._last = progress
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + PROGRESS_S
        rate = progress.read / (now - self._started)
        left = duration((progress.total - progress.read) / rate) if rate else "?"
        failed = f", {progress.failed:,} failed" if progress.failed else ""
        write_error(
            f"{percent(progress.read, progress.total):3}%  {progress.read:,}/{progress.total:,} rollouts  "
            f"{progress.judged:,} gradings{failed}  {rate:,.0f}/s  {left} to go"
        )
