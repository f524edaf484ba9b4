"""The members of a group that are judged together, as a judge is shown them: what all were asked, what each said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from windrow.grading.judge_view import Section, Shows, answer_of, opening_of, reply_of
from windrow.records import AttemptId, Rollout, RolloutGroup

JUDGED = ("completed", "truncated")


class Entrant(NamedTuple):
    """One member: its place among the entrants is nothing but an index, its key is what verdicts go by."""

    rollout: Rollout

    @property
    def key(self) -> AttemptId:
        return self.rollout.key

    @property
    def label(self) -> str:
        seat = "" if self.rollout.seat is None else f" seat {self.rollout.seat}"
        return f"sample {self.rollout.sample}{seat}"

    @property
    def reply(self) -> str:
        return reply_of(self.rollout.messages)


def entrants_of(group: RolloutGroup) -> list[Entrant]:
    """Those that ended by themselves, by sample: in whatever order they were finished."""
    ended = (rollout for rollout in group.rollouts if rollout.status in JUDGED)
    return [Entrant(rollout) for rollout in sorted(ended, key=lambda r: (r.sample, r.seat or 0, r.attempt))]


def opening_of_all(entrants: Sequence[Entrant]) -> list[Section] | None:
    """What was said before the first reply, where that is the same for all."""
    openings = [opening_of(entrant.rollout.messages) for entrant in entrants]
    return openings[0] if all(opening == openings[0] for opening in openings) else None


def shown_together(
    entrants: Sequence[Entrant], labels: Sequence[str], shows: Shows, opening: Sequence[Section] | None
) -> list[Section]:
    """The sections of a question about several replies, each under its label, in this order."""
    sections = list(opening or ())
    for entrant, label in zip(entrants, labels, strict=True):
        messages = entrant.rollout.messages
        if opening is None:  # each has its own
            sections += [(f"before {label}, {who}", text) for who, text in opening_of(messages)]
        sections += answer_of(messages, shows, called=label)
    return sections
