"""The scorer `riddles`: 1 where the reply has the solution in it."""

from __future__ import annotations

from windrow import Task


def solved(task: Task, reply: str) -> float:
    return float(str(task["solution"]).lower() in reply.lower())
