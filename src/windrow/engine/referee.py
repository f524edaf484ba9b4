"""The referee of a match: asks the game whose turn it is, the seats for their replies, and the game for what follows.

Only the referee calls the game, one call at a time. A seat waits until it gets a message. Nobody waits for a seat whose
player has left: the referee notices that and tells the game.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Mapping, Sequence

import msgspec

from windrow.engine.recorder import Recorder
from windrow.envs import Env, Match, Observation, Step
from windrow.errors import EnvError
from windrow.records import Message, Stop, Task
from windrow.tools import Tool, ToolResult
from windrow.util.guard import guarded_method


class SeatMessage(msgspec.Struct, frozen=True):
    """What the referee sends to a seat: messages to reply to or, with `stop`, that the game is over for it."""

    messages: Sequence[Message] = ()
    tools: Sequence[Tool] = ()
    stop: Stop | None = None


class SeatChannel:
    """The channel between one seat's player and the referee."""

    def __init__(self, number: int, recorder: Recorder) -> None:
        self.number = number
        self.left = False  # its player is gone
        self.out = False  # the game is over for it
        # Awaited by the referee. Its result is None if the player left.
        self.reply: asyncio.Future[Message | None] | None = None
        self._recorder = recorder
        self._inbox: asyncio.Queue[SeatMessage] = asyncio.Queue()
        self._tool_names: frozenset[str] | None = None  # of its first observation
        self._last_turn: int | None = None  # in which it moved
        self._early_messages: list[Message] = []  # which came before its first observation

    # -- the player's side

    async def receive(self) -> SeatMessage:
        """The next message from the referee. A cancelled wait loses no message."""
        return await self._inbox.get()

    def move(self, reply: Message) -> None:
        if self.reply is None or self.reply.done():
            raise RuntimeError(f"seat {self.number} replied when it was not asked")
        self._last_turn = reply.turn
        self.reply.set_result(reply)

    def leave(self) -> None:
        self.left = True
        if self.reply is not None and not self.reply.done():
            self.reply.set_result(None)

    # -- the referee's side

    def prepare(self, observation: Observation) -> SeatMessage:
        """The message for this observation, frozen: the game may go on changing its lists."""
        if not isinstance(observation, Observation):
            raise TypeError(f"observe() returned {type(observation).__name__}; expected an Observation")
        tool_names = frozenset(tool.name for tool in observation.tools)
        is_first = self._tool_names is None
        self._tool_names = tool_names if self._tool_names is None else self._tool_names
        if new_names := tool_names - self._tool_names:
            raise ValueError(
                f"observe() offered seat {self.number} the tool {min(new_names)!r} later; tools are offered with its "
                f"first observation"
            )
        messages = self._recorder.frozen(observation.messages, "task" if is_first else "env")
        self._early_messages, early_messages = [], self._early_messages
        return SeatMessage((*messages, *early_messages), observation.tools)

    def ask(self, message: SeatMessage) -> None:
        self.reply = asyncio.get_running_loop().create_future()
        if self.left:
            self.reply.set_result(None)
        self._inbox.put_nowait(message)

    def record(self, step: Step) -> None:
        """Record a step at once, before the player gets it: a limit or a crash may end the seat before that."""
        last_turn = self._last_turn
        turn = len(self._recorder.turns) - 1 if last_turn is None or self.left else last_turn
        if turn >= 0:
            self._recorder.stepped(step, turn)
        else:
            self._early_messages += self._recorder.frozen(step.messages, "env")
            self._recorder.rewarded_without_turn(step)
        if (step.done or step.stop is not None) and not self.out:
            self.end(step.stop or "env_done")

    def end(self, stop: Stop) -> None:
        self.out = True
        self._recorder.add(self._early_messages, "env")
        self._inbox.put_nowait(SeatMessage(stop=stop))


class Referee:
    """Runs one game. `seats` are the channels to its players, by number."""

    def __init__(self, match: Match, recorders: Sequence[Recorder]) -> None:
        self.match = match
        self.seats = [SeatChannel(number, recorder) for number, recorder in enumerate(recorders)]

    async def run(self) -> None:
        """Return when the game is over and every seat has been told."""
        match = self.match
        while asked := self._seats_to_act():
            await self._ask(asked)
            replies = await _replies(asked)
            if await self._forfeit_departed() and not self._seats_to_act():
                break
            replies = {seat: reply for seat, reply in replies.items() if not self.seats[seat].out}
            if replies:
                self._record("act", await guarded_method(match, "act", match.act(replies)))
        for seat in self.seats:
            if not seat.out:
                seat.end("env_done")

    def _seats_to_act(self) -> list[SeatChannel]:
        """The seats whose replies the game waits for; none if the game is over for everyone."""
        if all(seat.out for seat in self.seats):
            return []
        asked = [self._seat("to_act", number) for number in self.match.to_act()]
        if len(set(asked)) < len(asked):
            raise EnvError("to_act() named a seat twice")
        if out := [seat.number for seat in asked if seat.out]:
            raise EnvError(f"to_act() named seat {out[0]}, for which the game is over")
        return asked

    async def _ask(self, asked: Sequence[SeatChannel]) -> None:
        """Observe for all these seats, then ask them at the same time."""
        match = self.match
        messages = [
            seat.prepare(await guarded_method(match, "observe", match.observe(seat.number))) for seat in asked
        ]
        for seat, message in zip(asked, messages, strict=True):
            seat.ask(message)

    async def _forfeit_departed(self) -> bool:
        """Tell the game which players have left; returns whether any has."""
        departed = [seat for seat in self.seats if seat.left and not seat.out]
        for seat in departed:
            seat.out = True
            steps = await guarded_method(self.match, "forfeit", self.match.forfeit(seat.number))
            self._record("forfeit", steps)
        return bool(departed)

    def _record(self, method: str, steps: Mapping[int, Step]) -> None:
        if not isinstance(steps, Mapping):
            raise TypeError(f"{method}() returned {type(steps).__name__}; expected {{seat: Step}}")
        for number, step in steps.items():
            if not isinstance(step, Step):
                raise TypeError(
                    f"{method}() returned {type(step).__name__} for seat {number}; expected a Step"
                )
            self._seat(method, number).record(step)

    def _seat(self, method: str, named: int) -> SeatChannel:
        number = operator.index(named)
        if not 0 <= number < len(self.seats):
            raise EnvError(f"{method}() named seat {number}; the seats are 0 to {len(self.seats) - 1}")
        return self.seats[number]


async def _replies(asked: Sequence[SeatChannel]) -> dict[int, Message]:
    """The replies by seat, without the seats whose players left instead."""
    replies: dict[int, Message] = {}
    for seat in asked:
        assert seat.reply is not None
        reply = await seat.reply
        if reply is not None:
            replies[seat.number] = reply
    return replies


class SeatEnv(Env):
    """A seat as an environment, so that the session and the agent of a match are the same as of any episode."""

    name = "seat"

    def __init__(self, match: Match, seat: SeatChannel, opening: SeatMessage) -> None:
        self._match = match
        self._seat = seat
        self._opening = opening

    async def reset(self, task: Task) -> Observation:
        return Observation(self._opening.messages, self._opening.tools)

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        if not self._match.is_move(self._seat.number, reply):
            return Step()
        self._seat.move(reply)
        message = await self._seat.receive()
        return Step(messages=message.messages, done=message.stop is not None, stop=message.stop)
