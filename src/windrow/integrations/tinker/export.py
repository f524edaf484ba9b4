"""`tinker`: a run as tinker-cookbook's rollout summaries, one line per trajectory, and its training datums in a file
beside them.

Summaries need no tokens; datums come from rollouts that were captured as tokens. Every sampled token has mask 1 in
exactly one datum.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from windrow.errors import UsageError
from windrow.exports.advantages import ADVANTAGES, ALL_THE_SAME
from windrow.exports.base import Example, Exporter, Invalid, Unfit
from windrow.exports.selection import NOT_GRADED
from windrow.integrations.tinker.summaries import Form, summary_line
from windrow.integrations.tinker.traces import has_images
from windrow.records import Grading, Json, Rollout
from windrow.store.passes import Passes
from windrow.store.reader import RunReader
from windrow.util.token_contexts import BrokenContext

NOT_JUDGED = "rollouts that nobody was to grade: their total_reward is null and their advantages are 0"
NO_DATUMS = "rollouts without datums: they {why}"

_encode = msgspec.json.Encoder().encode


class Tinker(Exporter):
    """`split` and `iteration` are said of every line (the task's split, and the rollout's pass). `trace: none` leaves the conversations out.
    `advantages`: centered or grpo. `mask_parse_errors`: replies that could not be read are not trained."""

    needs_groups = True

    def __init__(
        self,
        *,
        split: str | None = None,
        iteration: int | None = None,
        trace: str = "full",
        advantages: str = "centered",
        mask_parse_errors: bool = False,
    ) -> None:
        super().__init__()
        if advantages not in ADVANTAGES:
            raise UsageError(f"advantages {advantages!r}: expected one of {', '.join(ADVANTAGES)}")
        if trace not in ("full", "none"):
            raise UsageError(f"trace {trace!r}: expected full or none")
        if iteration is not None and (type(iteration) is not int or iteration < 0):
            raise UsageError(f"iteration {iteration!r}: expected a number from 0 on")
        if type(split) not in (str, type(None)) or type(mask_parse_errors) is not bool:
            raise UsageError("split is a text, such as eval/gsm8k, and mask_parse_errors true or false")
        self._advantage = ADVANTAGES[advantages]
        self._iteration = iteration
        self._form = Form(split=split, trace=trace == "full", mask_parse_errors=mask_parse_errors)

    def beside(self, out: Path) -> Sequence[Path]:
        return [datums_beside(out)]

    def begin(self, run: Path, beside: Sequence[BinaryIO]) -> None:
        [self._datums] = beside
        reader = RunReader(run)
        if self._iteration is None:
            self._passes = Passes(run, reader.manifest)
        if self._form.trace:
            self._gradings = reader.gradings()

    def rows(self, example: Example) -> list[dict[str, Json]]:
        rollout = example.rollout
        if rollout.grade in ("pending", "failed") and rollout.status in ("completed", "truncated"):
            raise Unfit(NOT_GRADED)
        try:
            iteration = self._passes.of(rollout) if self._iteration is None else self._iteration
            line = summary_line(rollout, self._form._replace(iteration=iteration), self._gradings_of(rollout))
            datums = self._datums_of(example)
        except (BrokenContext, IndexError, struct.error):
            raise Invalid("rollouts whose turns, messages or tokens do not fit together") from None
        if rollout.grade == "none":
            self.notes[NOT_JUDGED] += 1
        for datum in datums:
            self._datums.write(_encode(datum) + b"\n")
        return [line]

    def _gradings_of(self, rollout: Rollout) -> Sequence[Grading]:
        return self._gradings.of(rollout.key) if self._form.trace else ()

    def _datums_of(self, example: Example) -> list[dict[str, Json]]:
        why = _without_datums(example.rollout)
        if why is not None:
            self.notes[NO_DATUMS.format(why=why)] += 1
            return []
        from windrow.integrations.tinker.export_datums import (
            datums_of,  # only where there are tokens: it needs numpy
        )

        advantage = self._advantage_of(example)
        return datums_of(example.rollout, advantage, self._form, self.notes)

    def _advantage_of(self, example: Example) -> float:
        if example.rollout.reward is None:
            return 0.0
        if min(example.rewards) == max(example.rewards):
            self.notes[ALL_THE_SAME] += 1
        return self._advantage(example.rollout.reward, example.rewards)


def datums_beside(out: Path) -> Path:
    """`train_rollout_summaries.jsonl` has `train_datums.jsonl` beside it."""
    return out.with_name(f"{out.stem.removesuffix('_rollout_summaries')}_datums.jsonl")


def _without_datums(rollout: Rollout) -> str | None:
    """Return the reason why a rollout has no datums; None if it has some."""
    if rollout.status not in ("completed", "truncated"):
        return "did not end well"
    if rollout.capture != "tokens":
        return f"were captured as {rollout.capture} (collect with --capture tokens)"
    if has_images(rollout):
        return "have images, which are no token ids"
    return None
