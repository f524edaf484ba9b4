"""`tool`: a question to be answered with tools. It goes on while the policy calls; a reply without calls is the answer.

The row's `prompt` or `messages` is the question, as in `problem`; the tools are the run's.
"""

from __future__ import annotations

from windrow.envs.base import Step
from windrow.envs.problem import Problem
from windrow.records import Message
from windrow.tools import ToolResult


class ToolUse(Problem):
    name = "tool"
    version = 1

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        return Step() if reply.tool_calls else Step(done=True, stop="answered")
