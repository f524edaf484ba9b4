"""The logprobs that a teacher gives the ids of a training sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from windrow.exports.tokens.arrays import Floats, floats_of
from windrow.exports.tokens.sequences import TrainingSequence
from windrow.records import Turn


def teacher_logprobs(turns: Sequence[Turn], sequence: TrainingSequence) -> Floats | None:
    """As long as the sequence, 0 where nothing is trained; None where a turn that is trained has none."""
    logprobs = np.zeros(len(sequence), np.float32)
    for span in sequence.spans:
        if not span.trained:
            continue
        tokens = turns[span.turn].tokens
        if tokens is None or tokens.teacher is None:
            return None
        logprobs[span.start : span.stop] = floats_of(tokens.teacher.logprobs)
    return logprobs
