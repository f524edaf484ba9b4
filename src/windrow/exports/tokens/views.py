"""Views of a rollout and of a group as a trainer wants them, each computed when it is first asked for.

What needs no arrays is on the records themselves: `truncated`, `completion`, `generation_seconds`, `tool_seconds` and
`tool_use` of a `Rollout`.
"""

from __future__ import annotations

from functools import cached_property

from windrow.exports.tokens.arrays import Floats, Ids, Mask
from windrow.exports.tokens.linking import STRICT, Merging
from windrow.exports.tokens.sequences import TrainingSequence, training_sequences
from windrow.records import Rollout, RolloutGroup


class RolloutView:
    """The arrays of a rollout: one a training sequence, and so one where nothing forked.

    A completion is everything from the first sampled token on that the sequence trains.
    """

    def __init__(self, rollout: Rollout, merging: Merging = STRICT) -> None:
        self.rollout = rollout
        self._merging = merging

    @cached_property
    def sequences(self) -> tuple[TrainingSequence, ...]:
        return tuple(training_sequences(self.rollout, self._merging))

    @cached_property
    def prompt_ids(self) -> tuple[Ids, ...]:
        return tuple(sequence.prompt_ids for sequence in self.sequences)

    @cached_property
    def completion_ids(self) -> tuple[Ids, ...]:
        return tuple(sequence.completion_ids for sequence in self.sequences)

    @cached_property
    def logprobs(self) -> tuple[Floats, ...]:
        """Of the completions; 0 where nothing was sampled."""
        return tuple(sequence.completion_logprobs for sequence in self.sequences)

    @cached_property
    def tool_mask(self) -> tuple[Mask, ...]:
        """Of the completions: true where the model sampled, false on results and other context."""
        return tuple(sequence.completion_mask for sequence in self.sequences)


class GroupView:
    """The views of a group's rollouts, in the order of its samples."""

    def __init__(self, group: RolloutGroup, merging: Merging = STRICT) -> None:
        self.group = group
        self.rollouts = tuple(RolloutView(rollout, merging) for rollout in group.rollouts)

    @cached_property
    def sequences(self) -> tuple[tuple[TrainingSequence, ...], ...]:
        return tuple(view.sequences for view in self.rollouts)

    @cached_property
    def completion_ids(self) -> tuple[tuple[Ids, ...], ...]:
        return tuple(view.completion_ids for view in self.rollouts)

    @cached_property
    def logprobs(self) -> tuple[tuple[Floats, ...], ...]:
        return tuple(view.logprobs for view in self.rollouts)

    @cached_property
    def tool_mask(self) -> tuple[tuple[Mask, ...], ...]:
        return tuple(view.tool_mask for view in self.rollouts)
