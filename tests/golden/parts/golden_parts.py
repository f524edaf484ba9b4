"""What the golden runs name as `golden_parts:X`: policies, a judge, environments, an agent, tools and scorers.

Everything here imports only names of `windrow` itself and gives the same answer to the same question.
"""

from __future__ import annotations

import asyncio
import re
import struct
import zlib
from typing import Any

from windrow import Env, Match, Observation, Score, Step, ToolStop, WindrowError

# -- policies (`scripted:golden_parts:NAME`)


def sums(request: Any) -> str:
    """Adds; the seed, which is the sample's number, decides how well."""
    asked = request.messages[-1].text
    sample = request.sampling.get("seed", 0)
    if "broken" in asked:
        return "It is \ud800 4."
    found = re.search(r"(\d+) \+ (\d+)", asked)
    total = int(found[1]) + int(found[2]) if found else 7
    return [f"The answer is {total}.", f"Perhaps {total + 1}?", f"<think>Easy.</think>{total}"][sample % 3]


async def slow_sums(request: Any) -> str:
    """Adds so slowly that two workers have something to do."""
    await asyncio.sleep(0.3)
    return sums(request)


def greeter(request: Any) -> str:
    """Greets whom the task names, in more words with each sample: no two greetings are alike."""
    whom = request.messages[-1].text.split()[-1]
    return "Good morning" + ", my dear" * request.sampling.get("seed", 0) + f" {whom}"


def shopper(request: Any) -> str:
    """Looks, then answers with the price that the page shows; the second sample forgets to look."""
    page = next(message.text for message in reversed(request.messages) if message.role == "user")
    price = re.search(r"(\d+) EUR", page)
    if price is None and request.sampling.get("seed", 0) == 0:
        return 'I look. <tool_call>{"name": "click", "arguments": {"x": 4, "y": 3}}</tool_call>'
    said = price[0] if price else "cheap"
    return f'<tool_call>{{"name": "answer", "arguments": {{"content": "{said}"}}}}</tool_call>'


def _asking(*calls: str) -> str:
    return "".join(f"<tool_call>{call}</tool_call>" for call in calls)


CALLS = {  # by a word of the task, a reply a turn; the last one is said from then on
    "Add": [_asking('{"name": "add", "arguments": {"a": 2, "b": 3}}'), "That makes 5."],
    "Divide": [
        "Two ways. "
        + _asking(
            '{"name": "divide", "arguments": {"a": 1, "b": 0}}',
            '{"name": "divide", "arguments": {"a": 1, "b": 2}}',
        ),
        "There is nothing.",
    ],
    "mistakes": [
        _asking(
            '{"name": "add", "arguments": {"a": "two"}}',
            '{"name": "nobody", "arguments": {}}',
            '{"name": "secret", "arguments": {}}',
        ),
        '<tool_call>{"name": "add", "arguments": {"a": 2',
        "It is 1.",
    ],
    "last word": [_asking('{"name": "finish", "arguments": {"word": "hay"}}')],
    "ever": [_asking('{"name": "add", "arguments": {"a": 1, "b": 1}}')],
}


def caller(request: Any) -> str:
    """Calls tools as the task says."""
    told = next(message.text for message in request.messages if message.role == "user")
    replies = next(replies for word, replies in CALLS.items() if word in told)
    return replies[min(request.turn, len(replies) - 1)]


def bold(request: Any) -> str:
    """Says 9, after having said what is no number once."""
    return "nine" if request.turn == 0 and request.sampling.get("seed", 0) == 0 else "9"


def timid(request: Any) -> str:
    return "2"


def judge(request: Any) -> str:
    """Says what is asked for; of clarity it says it only when it is asked again."""
    asked, again = request.messages[0].text, len(request.messages) > 1
    if "<verdict>" in asked:
        first, second = (
            len(text) for text in re.findall(r"(?s)reply [AB].*?(Good morning[^\n]*)", asked)[:2]
        )
        return f"<verdict>{'tie' if first == second else 'A' if first > second else 'B'}</verdict>"
    if "clear" in asked:
        return "Quite clear. <score>4</score>" if again else "Quite clear."
    if "Is this kind?" in asked:
        return "Yes" if "dear" in asked else "No."
    return f"So it is. <score>{'yes' if 'morning' in asked else 'no'}</score>"


# -- environments


def picture(number: int) -> bytes:
    """A PNG of one colour, 8 by 6; its data is stored, not compressed, so that no zlib decides its bytes."""
    rows = (b"\0" + struct.pack(">I", number)[1:] * 8) * 6

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 8, 6, 8, 2, 0, 0, 0)
    stored = b"\x78\x01\x01" + struct.pack("<HH", len(rows), len(rows) ^ 0xFFFF) + rows
    data = stored + struct.pack(">I", zlib.adler32(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


class Shop(Env):
    """A shop whose pages are pictures and a few words: a click shows the price, an answer ends the episode."""

    version = 1

    async def reset(self, task: Any) -> Observation:
        self.task, self.clicks, self.answer = task, 0, ""
        return Observation([await self.page(task["instruction"])], [click, answer])

    async def step(self, reply: Any, results: Any) -> Step:
        called = [call.name for call in reply.tool_calls or ()]
        state = {"url": f"{self.task['start_url']}/{self.clicks}", "title": f"Page {self.clicks}"}
        if "answer" in called:
            self.answer = reply.tool_calls[0].arguments
            return Step(done=True, stop="answered", state={**state, "action": "answer"})
        self.clicks += 1
        shown = await self.page(f"The price is {self.task['definite_answer']}.")
        return Step(messages=[shown], state={**state, "action": "click"}, metrics={"clicks": 1.0})

    async def score(self, episode: Any) -> Score:
        return Score(
            float(str(self.task["definite_answer"]) in self.answer),
            evidence=self.answer,
            metrics={"seen": 1.0},
        )

    async def page(self, text: str) -> dict[str, Any]:
        image = await self.ctx.blobs.image(picture(self.clicks * 70 + 5), "image/png", 8, 6)
        return {"role": "user", "content": [{"type": "text", "text": text}, image]}

    @classmethod
    def aggregate(cls, rollouts: Any) -> dict[str, float]:
        return {"shop/rollouts": float(len(rollouts))}


class Door(Env):
    """Is stuck in the first attempts of some rows; opens at the second reply, which the group is judged by."""

    version = "2"

    async def reset(self, task: Any) -> Observation:
        if self.ctx.attempt <= task.get("stuck", 0):
            raise WindrowError("the door is stuck", kind="stuck", retryable=True)
        self.replies = 0
        return Observation([{"role": "user", "content": f"Open the door of {task['house']}."}])

    async def step(self, reply: Any, results: Any) -> Step:
        self.replies += 1
        if reply.text.startswith("?"):
            return Step(
                messages=[{"role": "user", "content": "What?"}], parse_error="it is a question", reward=-0.5
            )
        said = [{"role": "user", "content": "It moves."}]
        done = self.replies == 2
        return Step(
            messages=[] if done else said,
            reward=0.25,
            done=done,
            scores={"push": 1.0},
            info={"n": self.replies},
        )


class Higher(Match):
    """Both say a number at once, twice; the higher one wins each round."""

    version = 1
    seats = 2
    max_illegal = 1

    async def reset(self, task: Any) -> None:
        self.round, self.rounds = 0, task.get("rounds", 2)
        self.said: dict[int, int] = {}

    def to_act(self) -> list[int]:
        return [seat for seat in range(2) if seat not in self.said] if self.round < self.rounds else []

    async def observe(self, seat: int) -> Observation:
        told = f"Round {self.round}: say a number from 1 to 9." if seat not in self.said else "Wait."
        return Observation([{"role": "user", "content": told}])

    async def act(self, replies: Any) -> Any:
        for seat, reply in replies.items():
            if reply.text not in tuple("123456789"):
                return await self.illegal(seat, "That is no number from 1 to 9.")
        self.said |= {seat: int(reply.text) for seat, reply in replies.items()}
        if len(self.said) < 2:
            return {}
        won = {seat: float(self.said[seat] > self.said[1 - seat]) for seat in range(2)}
        self.round, self.said = self.round + 1, {}
        return {seat: Step(reward=won[seat], state={"round": self.round}) for seat in range(2)}

    async def score(self, seat: int, episode: Any) -> Score:
        return Score(0.0, metrics={"replies": float(len(episode.turns))})


# -- a user, an agent, tools


def user(task: Any, messages: Any) -> str | None:
    """Asks why, twice; then it has heard enough."""
    asked = sum(message["role"] == "assistant" for message in messages)
    return None if asked > 2 else f"Why is that, {task['name']}?"


async def windowed(session: Any) -> None:
    """Shows the policy the first message and the last two."""
    while not session.ended:
        first, *rest = session.messages
        reply = await session.complete([first, *rest[-2:]])
        if reply is not None and not session.ended:
            await session.step(reply)


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the one
        b: the other
    """
    return a + b


def divide(a: float, b: float) -> dict[str, float]:
    """Divide a by b."""
    return {"quotient": a / b}


def finish(word: str) -> ToolStop:
    """Say the last word."""
    return ToolStop(f"the end: {word}")


def secret() -> str:
    """Tell what nobody may know."""
    return "42"


def _tools() -> tuple[Any, Any]:
    from windrow import tool

    @tool
    def click(x: int, y: int) -> str:
        """Click at a place."""
        return "clicked"

    @tool
    def answer(content: str) -> str:
        """Give the answer."""
        return "taken"

    return click, answer


click, answer = _tools()


# -- scorers


def _yes_or_no(said: str) -> float:
    if said.strip(" .").lower() not in ("yes", "no"):
        raise ValueError("answer with yes or no")
    return float(said.strip(" .").lower() == "yes")


async def kind(task: Any, reply: str, ctx: Any) -> float:
    """Asks the judge, and so runs after the commit."""
    question = f"Is this kind? Answer yes or no.\n\n{reply}"
    return float(await ctx.ask([{"role": "user", "content": question}], _yes_or_no, about="kindness"))


def long(task: Any, reply: str) -> Score:
    return Score(
        len(reply) / 100, evidence={"chars": len(reply)}, metrics={"words": float(len(reply.split()))}
    )


long.after_commit = True  # type: ignore[attr-defined]
long.version = 1  # type: ignore[attr-defined]


def strict(task: Any, reply: str) -> Score:
    return Score({"strict": (float(reply.endswith(".")), 0.5), "short": (float(len(reply) < 40), 0.25)})


strict.version = 3  # type: ignore[attr-defined]


def shortest(group: Any) -> dict[Any, float]:
    least = min(len(rollout.reply) for rollout in group.rollouts)
    return {rollout.key: float(len(rollout.reply) == least) for rollout in group.rollouts}


shortest.unit = "group"  # type: ignore[attr-defined]
shortest.version = 1  # type: ignore[attr-defined]


def length_reward(completions: Any, **kwargs: Any) -> list[float]:
    """A reward function as TRL's trainers call it."""
    return [-len(completion) / 100 for completion in completions]
