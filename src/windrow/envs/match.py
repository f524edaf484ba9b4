"""`Match`: one game with several seats. Each seat has its own conversation, its own rewards and its own rollout.

The seats of an attempt are one episode: they are written together, fail together and are tried again together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from windrow.envs.base import BaseEnv, EnvContext, Episode, Observation, Step
from windrow.records import Json, Message, Score, Task


class Match(BaseEnv):
    """One game; made anew for each attempt.

    Called in this order: `reset` once; then, as long as `to_act` names seats, `observe` of each of them and `act` with
    their replies; `score` of each seat in turn, also when a limit ended the game; `close` once, always, bounded in
    time. One call at a time: a game needs no locks. Only the tools that it offers may run side by side, each for its
    seat.
    """

    seats: ClassVar[int] = 2
    max_illegal: ClassVar[int] = 0  # for `illegal`; the setting `max_illegal` says otherwise

    def __init__(self, settings: Mapping[str, Json], ctx: EnvContext) -> None:
        """`ctx.seats` is how many seats there are."""
        super().__init__(settings, ctx)
        self._illegal: Counter[int] = Counter()

    async def reset(self, task: Task) -> None:
        """Set up the game. Nobody has been told anything yet."""

    def to_act(self) -> Sequence[int]:
        """The seats whose replies are wanted now: one, or several that reply without knowing of each other. None: the
        game is over."""
        raise NotImplementedError

    async def observe(self, seat: int) -> Observation:
        """What this seat is told before it replies: only what is new to it. The first one opens its conversation, and
        may offer tools."""
        raise NotImplementedError

    def is_move(self, seat: int, reply: Message) -> bool:
        """Whether a reply is what `act` waits for. One that calls tools is not: the seat is asked again with what they
        gave, until it replies without a call."""
        return not reply.tool_calls

    async def act(self, replies: Mapping[int, Message]) -> Mapping[int, Step]:
        """What follows from the replies, for any of the seats, also those that did not reply.

        It is recorded on each one's last turn, rewards added up. Of a seat that has had no turn, the reward is kept as its
        score `reward`, with metrics and state; messages come after its opening. Every seat needs a reward (0 is one) or a score, or it is not graded. `Step.done` ends the game for
        that seat alone.
        """
        raise NotImplementedError

    async def forfeit(self, seat: int) -> Mapping[int, Step]:
        """A seat left before the game was over: a limit or its agent ended it. What follows, as in `act`.

        By default the game ends for everyone. Where it goes on, `to_act` names this seat no more, and `act` gets what
        the others have replied meanwhile.
        """
        return {other: Step(done=True) for other in range(self.ctx.seats)}

    async def score(self, seat: int, episode: Episode) -> Score | None:
        """The score of one seat's `episode`, once the game is over."""
        return None

    async def illegal(self, seat: int, why: str) -> Mapping[int, Step]:
        """The rule for an illegal move, for `act` to return: the seat is told why and asked again, `max_illegal` times
        in a game; the next one is a `forfeit`. Each is a `parse_error` on its turn."""
        self._illegal[seat] += 1
        if self._illegal[seat] <= self.settings.get("max_illegal", self.max_illegal):
            return {seat: Step(messages=[{"role": "user", "content": why}], parse_error=why)}
        steps = dict(await self.forfeit(seat))
        steps[seat] = msgspec.structs.replace(steps.get(seat, Step()), parse_error=why)
        return steps

    @classmethod
    def count_seats(cls, settings: Mapping[str, Json], row: Mapping[str, Json]) -> int:
        """How many seats the game of a row has. Raise ValueError where there can be none."""
        return cls.seats
