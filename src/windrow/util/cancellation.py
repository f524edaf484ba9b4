"""Whose exception it is: ours ends the episode; what user code lets out of itself is only its failure."""

from __future__ import annotations

import asyncio


def is_cancelled(problem: BaseException) -> bool:
    """Whether `problem` is the current task being cancelled, rather than, say, an env awaiting a task it gave up."""
    task = asyncio.current_task()
    return isinstance(problem, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def is_ours(problem: BaseException) -> bool:
    """Whether `problem` must go on: a cancellation of ours, Ctrl-C, a closed coroutine. sys.exit() in an env need not."""
    return is_cancelled(problem) or isinstance(problem, KeyboardInterrupt | GeneratorExit)
