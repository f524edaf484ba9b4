"""Policies that repeat a recorded rollout: each call returns the reply that the record holds for it."""

from __future__ import annotations

from collections.abc import Sequence

from windrow.engine.correction import malformed_of
from windrow.errors import ContextOverflow, PolicyError
from windrow.policies import Completion, Policy, Request
from windrow.policies.base import ANY_SAMPLING
from windrow.records import Rollout, Turn


class RecordedPolicy(Policy):
    """Repeats the policy's replies, each in the seat that a request belongs to."""

    name = "recorded"
    accepts = ANY_SAMPLING

    def __init__(self, rollouts: Sequence[Rollout]) -> None:
        self.model = rollouts[0].policy.model
        self._seats = {rollout.id: _RecordedSeat(rollout) for rollout in rollouts}

    async def complete(self, request: Request) -> Completion:
        return self._seats[request.id].complete(request)


class _RecordedSeat:
    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._turns = played_turns(rollout)

    def complete(self, request: Request) -> Completion:
        if request.turn >= len(self._turns):
            raise PolicyError("there is no recorded reply left", kind="no_reply_left")
        turn = self._turns[request.turn]
        if turn.writes is None:
            if self._rollout.stop == "context_overflow":
                raise ContextOverflow("recorded: the prompt did not fit")
            raise PolicyError("recorded: this call had no reply", kind="no_reply_left")
        reply = self._rollout.messages[turn.writes]
        return Completion(
            content=reply.content if isinstance(reply.content, str) else None,
            tool_calls=reply.tool_calls or (),
            reasoning=reply.reasoning,
            finish=turn.finish,
            usage=turn.usage,
            model=turn.model,
            malformed=self._malformed(turn),
        )

    def _malformed(self, turn: Turn) -> tuple[str, ...]:
        """Return the calls that could not be read, as the correction after the reply lists them."""
        if turn.parse_error is None or turn.writes is None:
            return ()
        for message in self._rollout.messages[turn.writes + 1 :]:
            if message.origin == "policy":
                break
            if malformed_calls := malformed_of(message):
                return malformed_calls
        last = turn is self._turns[-1] and self._rollout.stop == "parse_error"
        return (turn.parse_error,) if last and turn.state is None and turn.reward is None else ()


class RecordedUser(Policy):
    """Repeats the replies of the environment's own model, in the recorded order."""

    name = "recorded"
    model = "recorded"
    accepts = RecordedPolicy.accepts

    def __init__(self, rollout: Rollout) -> None:
        self._texts = iter([message.text for message in rollout.messages if message.origin == "user"])

    async def complete(self, request: Request) -> Completion:
        text = next(self._texts, None)
        if text is None:
            raise PolicyError("the record has no more words of the user", kind="no_reply_left")
        return Completion(content=text)


def played_turns(rollout: Rollout) -> list[Turn]:
    """Return the turns that this seat played: the policy's, or for an opponent's seat the opponent's."""
    role = "auxiliary" if rollout.opponent else "agent"
    return [turn for turn in rollout.turns if turn.role == role]
