"""The table of a match: the referee asks the game whose turn it is, the seats for their replies, and the game what
follows.

Only the referee calls the game, one call at a time. A seat waits until it is told something; it never waits for a seat
that has left, since whoever leaves is noticed.
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


class Told(msgspec.Struct, frozen=True):
    """What a seat is told: messages, and then it is asked; or, with `stop`, that the game is over for it."""

    messages: Sequence[Message] = ()
    tools: Sequence[Tool] = ()
    stop: Stop | None = None


class Place:
    """One seat at the table."""

    def __init__(self, number: int, recorder: Recorder) -> None:
        self.number = number
        self.left = False  # its player is gone
        self.out = False  # the game is over for it
        self.reply: asyncio.Future[Message | None] | None = (
            None  # what it is asked for; None: it left instead
        )
        self._recorder = recorder
        self._inbox: asyncio.Queue[Told] = asyncio.Queue()
        self._tools: frozenset[str] | None = None  # of its first observation
        self._turn: int | None = None  # that of its last move
        self._held: list[Message] = []  # said to it before its conversation was opened

    # -- the player's side

    async def told(self) -> Told:
        """What it is told next. Whoever gives up waiting loses nothing."""
        return await self._inbox.get()

    def move(self, reply: Message) -> None:
        if self.reply is None or self.reply.done():
            raise RuntimeError(f"seat {self.number} replied when it was not asked")
        self._turn = reply.turn
        self.reply.set_result(reply)

    def leave(self) -> None:
        self.left = True
        if self.reply is not None and not self.reply.done():
            self.reply.set_result(None)

    # -- the referee's side

    def heard(self, observation: Observation) -> Told:
        """What it will be told, as it is now: the game may go on changing its lists."""
        if not isinstance(observation, Observation):
            raise TypeError(f"observe() returned {type(observation).__name__}; expected an Observation")
        offered = frozenset(tool.name for tool in observation.tools)
        first = self._tools is None
        self._tools = offered if self._tools is None else self._tools
        if new := offered - self._tools:
            raise ValueError(
                f"observe() offered seat {self.number} the tool {min(new)!r} later; tools are offered with its first "
                f"observation"
            )
        messages = self._recorder.frozen(observation.messages, "task" if first else "env")
        self._held, held = [], self._held
        return Told((*messages, *held), observation.tools)

    def ask(self, told: Told) -> None:
        self.reply = asyncio.get_running_loop().create_future()
        if self.left:
            self.reply.set_result(None)
        self._inbox.put_nowait(told)

    def take(self, step: Step) -> None:
        """Record what the game said of this seat, at once: a limit or a crash may end it before it is told."""
        turn = self._recorder.turn_count - 1 if self._turn is None or self.left else self._turn
        if turn >= 0:
            self._recorder.stepped(step, turn)
        else:
            self._held += self._recorder.frozen(step.messages, "env")
            self._recorder.rewarded(step)
        if (step.done or step.stop is not None) and not self.out:
            self.end(step.stop or "env_done")

    def end(self, stop: Stop) -> None:
        self.out = True
        self._recorder.add(self._held, "env")
        self._inbox.put_nowait(Told(stop=stop))


class Table:
    def __init__(self, match: Match, recorders: Sequence[Recorder]) -> None:
        self.match = match
        self.places = [Place(number, recorder) for number, recorder in enumerate(recorders)]

    async def referee(self) -> None:
        """Return when the game is over and every seat has been told."""
        match = self.match
        while wanted := self._wanted():
            told = [
                place.heard(await guarded_method(match, "observe", match.observe(place.number)))
                for place in wanted
            ]
            for place, what in zip(wanted, told, strict=True):
                place.ask(what)
            replies = await _replies(wanted)
            if await self._let_go() and not self._wanted():
                break
            replies = {seat: reply for seat, reply in replies.items() if not self.places[seat].out}
            if replies:
                self._take("act", await guarded_method(match, "act", match.act(replies)))
        for place in self.places:
            if not place.out:
                place.end("env_done")

    def _wanted(self) -> list[Place]:
        """Whose replies the game waits for; nobody's once it is over for everyone."""
        if all(place.out for place in self.places):
            return []
        wanted = [self._place("to_act", seat) for seat in self.match.to_act()]
        if len(set(wanted)) < len(wanted):
            raise EnvError("to_act() named a seat twice")
        if gone := [place.number for place in wanted if place.out]:
            raise EnvError(f"to_act() named seat {gone[0]}, for which the game is over")
        return wanted

    async def _let_go(self) -> bool:
        """Tell the game who has left; whether anyone has."""
        gone = [place for place in self.places if place.left and not place.out]
        for place in gone:
            place.out = True
            self._take(
                "forfeit", await guarded_method(self.match, "forfeit", self.match.forfeit(place.number))
            )
        return bool(gone)

    def _take(self, method: str, steps: Mapping[int, Step]) -> None:
        if not isinstance(steps, Mapping):
            raise TypeError(f"{method}() returned {type(steps).__name__}; expected {{seat: Step}}")
        for seat, step in steps.items():
            if not isinstance(step, Step):
                raise TypeError(f"{method}() returned {type(step).__name__} for seat {seat}; expected a Step")
            self._place(method, seat).take(step)

    def _place(self, method: str, seat: int) -> Place:
        number = operator.index(seat)
        if not 0 <= number < len(self.places):
            raise EnvError(f"{method}() named seat {number}; the seats are 0 to {len(self.places) - 1}")
        return self.places[number]


async def _replies(wanted: Sequence[Place]) -> dict[int, Message]:
    """What they reply, of those that did not leave instead."""
    replies: dict[int, Message] = {}
    for place in wanted:
        assert place.reply is not None
        reply = await place.reply
        if reply is not None:
            replies[place.number] = reply
    return replies


class SeatEnv(Env):
    """A seat as an environment: to the session and the agent a match is one like any other."""

    name = "seat"

    def __init__(self, table: Table, place: Place, opening: Told) -> None:
        self._match = table.match
        self._place = place
        self._opening = opening

    async def reset(self, task: Task) -> Observation:
        return Observation(self._opening.messages, self._opening.tools)

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        if not self._match.is_move(self._place.number, reply):
            return Step()
        self._place.move(reply)
        told = await self._place.told()
        return Step(messages=told.messages, done=told.stop is not None, stop=told.stop)
