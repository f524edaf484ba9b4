"""`teacher`: the logprobs that another model gives the very ids that were sampled, stored beside the student's own.

It grades nothing: no score, no reward. A rollout's metrics are means over all sampled tokens of its agent turns; the
logprobs themselves are in the grading's line, and in `turn.tokens.teacher` when the run is loaded.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from math import fsum
from typing import Annotated

import msgspec

from windrow.config import PolicyConfig
from windrow.envs import Episode, ScoreContext
from windrow.envs.scoring import Verdict
from windrow.errors import ScorerError
from windrow.grading.judge_panel import JudgingScorer, read_settings
from windrow.policies.base import ForcedTokens
from windrow.records import Json, TeacherTokens, Tokens, Turn
from windrow.util.token_contexts import BrokenContext, prompt_ids


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    policy: PolicyConfig | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0)] = 0


class TeacherScorer(JudgingScorer):
    """The teacher is the model of the setting `policy`, else the run's judge."""

    version = 1
    needs_tokens = True

    def __init__(self, name: str, weight: float, settings: Mapping[str, Json]) -> None:
        self._set = read_settings(settings, _Settings)
        teacher = self._set.policy
        if teacher is not None and not teacher.model:
            raise ValueError("'policy' names no 'model'")
        super().__init__(name, weight, settings, [] if teacher is None else [teacher])

    @classmethod
    def identity(cls, settings: Mapping[str, Json]) -> Json:
        """The teacher counts as a model: what it is, not where it is served."""
        return {key: value for key, value in settings.items() if key != "policy"}

    async def judge(self, episode: Episode, ctx: ScoreContext) -> Verdict:
        by_turn: dict[int, TeacherTokens] = {}
        students: list[float] = []
        teachers: list[float] = []
        for number, turn in enumerate(episode.turns):
            tokens = _sampled(number, turn)
            if tokens is None:
                continue
            scored = await self._scored(episode, number, tokens, ctx)
            by_turn[number] = scored
            students += _floats(tokens.logprobs)
            teachers += _floats(scored.logprobs)
        return Verdict({}, self._means(students, teachers), by_turn)

    async def _scored(
        self, episode: Episode, number: int, tokens: Tokens, ctx: ScoreContext
    ) -> TeacherTokens:
        writes = episode.turns[number].writes
        assert writes is not None
        try:
            prompt = _ids(prompt_ids(episode.turns, number))
        except BrokenContext as problem:
            raise ScorerError(f"turn {number}: {problem}", kind="tokens", retryable=False) from None
        given = ForcedTokens(prompt, _ids(tokens.output), episode.messages[writes].text or None)
        return await ctx.scored(given, top=self._set.top_logprobs)

    def _means(self, students: Sequence[float], teachers: Sequence[float]) -> dict[str, float]:
        """Over all sampled tokens; of a rollout without one, their number alone."""
        count = len(teachers)
        metrics = {f"{self.name}_tokens": float(count)}
        if count:
            metrics[f"{self.name}_logprob"] = fsum(teachers) / count
            metrics[f"{self.name}_kl"] = (fsum(students) - fsum(teachers)) / count
        return metrics


def _sampled(number: int, turn: Turn) -> Tokens | None:
    """The tokens of a turn that is to be scored; ScorerError where something was said and its ids are not there."""
    if turn.role != "agent" or turn.writes is None:
        return None
    tokens = turn.tokens
    if tokens is not None and tokens.output and len(tokens.output) == len(tokens.logprobs or b""):
        return tokens
    if turn.usage is not None and turn.usage.completion_tokens == 0:
        return None  # nothing was sampled
    raise ScorerError(
        f"turn {number} has no token ids for a teacher to score: collect with --capture tokens",
        kind="no_tokens",
        retryable=False,
    )


def _ids(raw: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(raw) // 4}i", raw))


def _floats(raw: bytes | None) -> list[float]:
    return list(struct.unpack(f"<{len(raw or b'') // 4}f", raw or b""))
