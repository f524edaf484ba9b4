"""The training sequences of a rollout as Tinker's datums; needs numpy."""

from __future__ import annotations

from collections import Counter

import numpy as np

from windrow.exports.exact import verified_sequences
from windrow.exports.tokens.sequences import TrainingSequence
from windrow.exports.tokens.teacher import teacher_logprobs
from windrow.integrations.tinker.datums import datum_row
from windrow.integrations.tinker.summaries import Form, is_masked, places
from windrow.records import Json, Rollout


def datums_of(rollout: Rollout, advantage: float, form: Form, notes: Counter[str]) -> list[dict[str, Json]]:
    """Return one datum per training sequence: several if prompts did not grow from each other. Raises Invalid."""
    masked = {number for number, turn in enumerate(rollout.turns) if is_masked(turn, form)}
    sequences = verified_sequences(rollout, notes)
    return [_row(rollout, sequence, advantage, masked) for sequence in sequences if len(sequence) > 1]


def _row(rollout: Rollout, sequence: TrainingSequence, advantage: float, masked: set[int]) -> dict[str, Json]:
    trained = sequence.loss_mask.copy()
    for span in sequence.spans:
        if span.turn in masked:
            trained[span.start : span.stop] = False
    row = datum_row(
        sequence.input_ids.tolist(),
        logprobs=sequence.logprobs.tolist(),
        advantages=np.where(trained, advantage, 0.0).tolist(),
        mask=trained.astype(np.float32).tolist(),
    )
    taught = teacher_logprobs(rollout.turns, sequence)
    return {
        **row,
        **places(rollout),
        "rollout_id": rollout.id,
        "segment": sequence.segment,
        "segments": sequence.facts.segments,
        "logprob_kind": sequence.logprob_kind,
        **({} if taught is None else {"teacher_logprobs": taught[1:].tolist()}),
    }
