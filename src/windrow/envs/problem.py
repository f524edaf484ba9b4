"""`problem`: one question, one answer, graded by scorers. The row's `prompt` or `messages` is the question."""

from __future__ import annotations

from collections.abc import Mapping

from windrow.envs.base import Env, Observation, Step
from windrow.records import Json, Message, Task
from windrow.tools import ToolResult

ROLES = ("system", "developer", "user", "assistant", "tool")


class Problem(Env):
    name = "problem"
    version = 1
    takes_prompt = True

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        if settings:
            raise ValueError(f"'problem' has no setting {next(iter(settings))!r}")

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        prompt, messages = row.get("prompt"), row.get("messages")
        if prompt is None and messages is None:
            raise ValueError(
                f"neither 'prompt' nor 'messages' is in the row (it has: {', '.join(row) or 'nothing'})"
            )
        if prompt is not None and messages is not None:
            raise ValueError("both 'prompt' and 'messages' are in the row; give one of them")
        if prompt is not None and not isinstance(prompt, str):
            raise ValueError(f"'prompt' must be a string, found {type(prompt).__name__}")
        if messages is not None:
            _check_messages(messages)

    async def reset(self, task: Task) -> Observation:
        if self.ctx.prompt is not None:
            return Observation(self.ctx.prompt.messages(task.data or {}))
        if task.get("messages") is not None:
            return Observation(task["messages"])
        return Observation([{"role": "user", "content": task["prompt"]}])

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        return Step(done=True, stop="answered")


def _check_messages(messages: Json) -> None:
    if not isinstance(messages, list) or not messages:
        raise ValueError("'messages' must be a list of at least one message")
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ValueError(f"messages[{number}] must be an object with 'role' and 'content'")
        if message.get("role") not in ROLES:
            raise ValueError(f"messages[{number}]: 'role' must be one of {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
            raise ValueError(f"messages[{number}]: 'content' must be a string or a list of parts")
