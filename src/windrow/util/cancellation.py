"""Tells our own cancellation, which ends the episode, from an exception of user code, which is only its failure."""

from __future__ import annotations

import asyncio


def is_cancelled(problem: BaseException) -> bool:
    """Whether `problem` is the current task's cancellation, rather than, for example, that of a task which an env awaits."""
    task = asyncio.current_task()
    return isinstance(problem, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def is_ours(problem: BaseException) -> bool:
    """Whether `problem` must be raised further: our cancellation, Ctrl-C, a closed coroutine; but not sys.exit() in an env."""
    return is_cancelled(problem) or isinstance(problem, KeyboardInterrupt | GeneratorExit)
