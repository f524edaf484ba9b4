"""A guessing game: an environment of several turns in forty lines.

windrow collect examples/guess.jsonl --env examples.guess:GuessingGame --model scripted:examples.guess:bisect
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from windrow import Env, Message, Observation, Request, Score, Step, Task


class GuessingGame(Env):
    """Row: {"low": 1, "high": 100}. The number is drawn from the attempt's seed, so that it can be played again."""

    version = 1

    @classmethod
    def check_row(cls, row: Mapping[str, Any]) -> None:
        if not (isinstance(row.get("low"), int) and isinstance(row.get("high"), int)):
            raise ValueError("'low' and 'high' must be whole numbers")

    async def reset(self, task: Task) -> Observation:
        self.number = random.Random(self.ctx.seed).randint(task["low"], task["high"])
        self.guesses: list[int] = []
        rules = f"Guess my number between {task['low']} and {task['high']}. Answer with a number only."
        return Observation([{"role": "user", "content": rules}])

    async def step(self, reply: Message, results: list[Any]) -> Step:
        found = re.search(r"-?\d+", reply.text)
        if found is None:
            said = {"role": "user", "content": "That is no number. Answer with a number only."}
            return Step(messages=[said], parse_error="no number in the reply")
        guess = int(found[0])
        self.guesses.append(guess)
        state = {"guesses": list(self.guesses)}
        if guess == self.number:
            return Step(done=True, state=state, info={"hint": "found"})
        hint = "higher" if guess < self.number else "lower"
        said = {"role": "user", "content": f"My number is {hint} than {guess}."}
        return Step(messages=[said], state=state, info={"hint": hint})

    async def score(self, episode: Any) -> Score:
        found = self.number in self.guesses
        return Score(float(found), metrics={"guesses": len(self.guesses)})


def bisect(request: Request) -> str:
    """A policy that plays well: it halves what is left."""
    low, high = (int(text) for text in re.findall(r"\d+", request.messages[0].text)[:2])
    for message in request.messages[1:]:
        if (hint := re.search(r"is (higher|lower) than (-?\d+)", message.text)) is not None:
            low, high = (int(hint[2]) + 1, high) if hint[1] == "higher" else (low, int(hint[2]) - 1)
    return str((low + high) // 2)
