"""Whose cancellation it is: ours ends the episode; one that user code lets out of itself is only its failure."""

from __future__ import annotations

import asyncio


def is_cancelled(problem: BaseException) -> bool:
    """Whether `problem` is the current task being cancelled, rather than, say, an env awaiting a task it gave up."""
    task = asyncio.current_task()
    return isinstance(problem, asyncio.CancelledError) and task is not None and task.cancelling() > 0
