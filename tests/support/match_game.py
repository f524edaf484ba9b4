"""A game for the tests: every message names its episode, seat and round, so that a mix-up shows."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import windrow
from tests.support.collect_helpers import answering, collected
from windrow import Match, Observation, Request, Rollout, Score, Step
from windrow.records import Message

TAG = re.compile(r"<(\w+) seat (\d) round (\d+)>")


class Tagged(Match):
    """`rounds` rounds; in each, the seats reply one after the other, or with `together` all at once.

    A reply must repeat the tag that its seat was told last. A seat is rewarded 1 + its number for each of its replies,
    and 0.25 for each reply of another.
    """

    version = 1
    closed: list[str]

    async def reset(self, task: Any) -> None:
        self.left = list(range(self.ctx.seats))
        self.rounds = task.get("rounds", 2)
        self.round = 0
        self.waiting = list(self.left)
        self.at("reset", None)

    def to_act(self) -> list[int]:
        if self.round >= self.rounds:
            return []
        return list(self.waiting) if self.settings.get("together") else self.waiting[:1]

    async def observe(self, seat: int) -> Observation:
        self.at("observe", seat)
        return Observation([{"role": "user", "content": self.tag(seat)}])

    async def act(self, replies: Any) -> Any:
        steps: dict[int, Step] = {}
        await asyncio.sleep(0)
        for seat, reply in replies.items():
            self.at("act", seat)
            if reply.text == "illegal":
                return await self.illegal(seat, "that was no move")
            assert reply.text == f"{self.tag(seat)} said", reply.text
            self.waiting.remove(seat)
        for seat in self.left:
            others = len(replies) - (seat in replies)
            reward = (1.0 + seat) * (seat in replies) + 0.25 * others
            steps[seat] = Step(reward=reward, state={"seat": seat, "round": self.round}, metrics={"n": 1.0})
        if not self.waiting:
            self.round += 1
            self.waiting = list(self.left)
        return steps

    async def forfeit(self, seat: int) -> Any:
        if not self.settings.get("goes_on"):
            return await super().forfeit(seat)
        self.left.remove(seat)
        if seat in self.waiting:
            self.waiting.remove(seat)
        return {seat: Step(reward=-1.0)}

    async def score(self, seat: int, episode: Any) -> Score | None:
        self.at("score", seat)
        return Score(0.0, metrics={"replies": float(len(episode.turns))})

    async def close(self) -> None:
        closings.append(self.ctx.id)

    def tag(self, seat: int) -> str:
        return f"<{self.ctx.id} seat {seat} round {self.round}>"

    def at(self, place: str, seat: int | None) -> None:
        """Crash where the settings say so, in the first so many attempts."""
        crash = self.settings.get("crash")
        if crash in (place, f"{place} {seat}") and self.ctx.attempt <= self.settings.get("crashes", 99):
            raise RuntimeError(f"crash in {crash}")

    @classmethod
    def count_seats(cls, settings: Any, row: Any) -> int:
        return int(row.get("seats", 2))


closings: list[str] = []


def last_tag(request: Request) -> re.Match[str]:
    tags = [found for message in request.messages if (found := TAG.fullmatch(message.text))]
    return tags[-1]


def seat_of(request: Request) -> int:
    return int(last_tag(request)[2])


def echo(request: Request) -> str:
    return f"{last_tag(request)[0]} said"


def shuffled(seed: int = 0) -> Callable[[Request], Awaitable[str]]:
    """Echoes after a while that differs from call to call."""
    draw = random.Random(seed)

    async def answer(request: Request) -> str:
        for _ in range(draw.randrange(12)):
            await asyncio.sleep(0)
        return echo(request)

    return answer


async def match(run: Path, policy: Any = echo, *, tasks: Any = None, **options: Any) -> list[Rollout]:
    """One call on `run`; what is on disk after it, every attempt, in the order of the log's episodes."""
    who = policy if hasattr(policy, "complete") else answering(policy)
    settings = {f"env.settings.{name}": value for name, value in options.pop("settings", {}).items()}
    sets = [f"{name}={value}" for name, value in settings.items()]
    usual = {"retries": 0, "call_retries": 0, "env": Tagged, **options}
    await collected(tasks or [{"id": "game"}], policy=who, out=str(run), sets=sets, **usual)
    return list(windrow.load(run, attempts="all"))


def said(messages: tuple[Message, ...]) -> list[str]:
    return [message.text for message in messages]
