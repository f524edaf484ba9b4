"""The training sequences of a rollout whose tokens have passed the checks (`tokens/verify.py`)."""

from __future__ import annotations

from collections import Counter

from windrow.exports.base import Invalid
from windrow.exports.tokens.linking import STRICT, Merging
from windrow.exports.tokens.sequences import TrainingSequence, training_sequences
from windrow.exports.tokens.verify import CHECKS, problems
from windrow.records import Rollout


def verified_sequences(
    rollout: Rollout, notes: Counter[str], merging: Merging = STRICT
) -> list[TrainingSequence]:
    """Of a rollout whose capture is `tokens`. Raises Invalid where they are not fit; warnings go to `notes`."""
    failed_checks = {problem.check for problem in problems(rollout, merging)}
    for check, (level, what) in CHECKS.items():
        if check in failed_checks and level == "fatal":
            raise Invalid(what)
    notes.update(what for check, (_, what) in CHECKS.items() if check in failed_checks)
    return training_sequences(rollout, merging)
