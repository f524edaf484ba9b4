"""`best-of-n`: 1 for the member of a group with the highest score, 0 for the others.

By the score that the setting `by` names, else by the reward so far. Of members that are equal the one with the lowest
sample counts, and the evidence says that there was a tie.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from windrow.envs import ScoreContext
from windrow.envs.scoring import Verdict
from windrow.errors import ScorerError
from windrow.grading.base import BaseScorer
from windrow.grading.group_members import Entrant, entrants_of
from windrow.grading.judge_panel import read_settings
from windrow.records import AttemptId, Json, RecordedScore, RolloutGroup

REWARD = "reward"


class _Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    by: str = REWARD


class BestOfN(BaseScorer):
    after_commit = True
    version = 1

    def __init__(self, name: str, weight: float, settings: Mapping[str, Json]) -> None:
        super().__init__(name, weight, settings)
        self._by = read_settings(settings, _Settings).by

    async def judge_group(self, group: RolloutGroup, ctx: ScoreContext) -> Mapping[AttemptId, Verdict | None]:
        verdicts: dict[AttemptId, Verdict | None] = {rollout.key: None for rollout in group.rollouts}
        entrants = entrants_of(group)
        if not entrants:
            return verdicts
        values = [self._value(entrant) for entrant in entrants]
        best = max(values)
        tied = [e.rollout.sample for e, value in zip(entrants, values, strict=True) if value == best]
        winner = values.index(best)
        for index, (entrant, value) in enumerate(zip(entrants, values, strict=True)):
            evidence: dict[str, Json] = {"by": self._by, "value": value, "best": best}
            if value == best and len(tied) > 1:
                evidence["tie"] = tied
            score = RecordedScore(
                value=float(index == winner), weight=self.weight, evidence=evidence, scorer=self.name
            )
            verdicts[entrant.key] = Verdict({self.name: score}, {})
        return verdicts

    def _value(self, entrant: Entrant) -> float:
        rollout = entrant.rollout
        scores = {name: score for name, score in rollout.scores.items() if score.scorer != self.name}
        if self._by in scores:
            return scores[self._by].value
        rewards = [turn.reward for turn in rollout.turns if turn.reward is not None]
        if self._by != REWARD or not (scores or rewards):
            raise ScorerError(
                f"{entrant.label} has no score {self._by!r} to choose the best by"
                + (
                    f" (it has: {', '.join(sorted(scores))})"
                    if scores
                    else "; name its scorer before this one"
                )
            )
        return sum(score.weight * score.value for score in scores.values()) + sum(rewards)
