"""A shop in words, for WebGym's rows where there is no browser: what is recorded has the form in which `web` records it.

windrow collect examples/webgym/train.jsonl --split train --env examples.webgym.shop:Shop …
"""

from __future__ import annotations

from windrow import Env, Observation, Score, Step, Tool

NOTHING = {"type": "object", "properties": {}}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class Shop(Env):
    version = 1

    async def reset(self, task):
        self.task = task
        self.answered = None
        self.page = "Home"
        tools = [
            Tool(name="click", description="Open the price list.", parameters=NOTHING, call=self.click),
            Tool(name="back", description="Go back.", parameters=NOTHING, call=self.back),
            Tool(name="answer", description="Finish.", parameters=TEXT, call=self.answer),
        ]
        words = f"You are at {task['start_url']}. {task['instruction']}"
        return Observation([{"role": "user", "content": words}], tools)

    def click(self):
        self.page = "Prices"
        return f"The price is {self.task['definite_answer']}."

    def back(self):
        self.page = "Home"
        return "This is the home page."

    def answer(self, text):
        self.answered = text
        return "The answer was taken."

    async def step(self, reply, results):
        state = {"url": self.task["start_url"], "title": self.page, "answer": self.answered, "blocked": None}
        return Step(
            done=self.answered is not None,
            stop="answered" if self.answered is not None else None,
            state=state,
        )

    async def score(self, episode):
        return Score(float(self.answered is not None and self.task["definite_answer"] in self.answered))
