"""Asking the policy: one model call at a time is sent, priced and recorded, whether it succeeds or fails."""

from __future__ import annotations

import asyncio
import time

import msgspec

from windrow.engine.context import RunContext
from windrow.engine.episode_limits import EpisodeLimits
from windrow.engine.message_lookup import Ranges
from windrow.engine.models import Model, priced
from windrow.engine.recorder import Recorder
from windrow.errors import ContextOverflow, InfraError, PolicyError, error_record
from windrow.policies import Completion, Request
from windrow.policies.base import Route
from windrow.policies.calls import complete
from windrow.records import Json, Message
from windrow.tasks.plan import Slot
from windrow.util.cancellation import is_ours


class ModelCalls:
    """The model calls of one episode. An agent may have several under way at once."""

    __slots__ = (
        "_limits",
        "_model",
        "_recorder",
        "_route",
        "_sampling",
        "_slot",
        "_top_logprobs",
        "under_way",
    )

    def __init__(
        self,
        slot: Slot,
        model: Model,
        sampling: dict[str, Json],
        context: RunContext,
        recorder: Recorder,
        limits: EpisodeLimits,
    ) -> None:
        self.under_way = 0
        self._slot = slot
        self._model = model
        self._sampling = sampling
        self._top_logprobs = context.top_logprobs
        self._recorder = recorder
        self._limits = limits
        self._route = Route()  # shared by all calls

    async def ask(
        self, messages: tuple[Message, ...], tools: tuple[dict[str, Json], ...], reads: Ranges
    ) -> tuple[Completion, Message] | None:
        """The completion and the reply as it is recorded; None if the call failed, which ends the episode.

        A reply that was cut off ends the episode, too.
        """
        sampling, tokens_left = self._limits.cap_sampling(self._sampling)
        request = Request(
            messages=messages,
            tools=tools,
            sampling=sampling,
            id=self._slot.id,
            attempt=self._slot.attempt,
            turn=len(self._recorder.turns) + self.under_way,
            capture=self._recorder.capture,
            top_logprobs=self._top_logprobs,
            route=self._route,
        )
        self.under_way += 1
        try:
            answer = await self._send(request, reads)
        finally:
            self.under_way -= 1
        if answer is not None and answer[0].finish == "length":
            budget_spent = tokens_left is not None and _completion_tokens(answer[0]) >= tokens_left
            self._recorder.outcome.end("truncated", "max_episode_tokens" if budget_spent else "length")
        return answer

    async def _send(self, request: Request, reads: Ranges) -> tuple[Completion, Message] | None:
        """Send one call and record it. A failure is recorded on a turn of its own and ends the episode."""
        recorder, model = self._recorder, self._model
        sampling = request.sampling if request.sampling != recorder.policy.sampling else None
        started = time.monotonic()
        try:
            with recorder.timed("policy"):
                completion = await complete(
                    model.policy,
                    request,
                    retries=model.call_retries,
                    backoff_s=model.backoff_s,
                    timeout_s=self._limits.config.call_timeout_s,
                    observe=model.observe,
                )
        except asyncio.CancelledError:
            # The episode's time was up, or it was cancelled from outside: the call was made, and is recorded.
            recorder.model_failed(seconds=time.monotonic() - started, retries=0, sampling=None, reads=reads)
            raise
        except BaseException as problem:
            if is_ours(problem):
                raise
            retries = self._end_with(problem)
            seconds = time.monotonic() - started
            recorder.model_failed(seconds=seconds, retries=retries, sampling=sampling, reads=reads)
            return None
        if (usage := priced(completion.usage, model.price)) is not completion.usage:
            completion = msgspec.structs.replace(completion, usage=usage)
        seconds = time.monotonic() - started
        reply = recorder.model_replied(
            completion, seconds=seconds, retries=completion.retries, sampling=sampling, reads=reads
        )
        return completion, reply

    def _end_with(self, problem: BaseException) -> int:
        """End the episode with this failure of a call; returns how often the call was retried."""
        outcome = self._recorder.outcome
        if isinstance(problem, ContextOverflow):
            outcome.end("truncated", "context_overflow")
            return problem.retries
        outcome.fail(error_record(problem, owner="policy", phase="policy"))
        return problem.retries if isinstance(problem, InfraError | PolicyError) else 0


def _completion_tokens(completion: Completion) -> int:
    return completion.usage.completion_tokens if completion.usage else 0
