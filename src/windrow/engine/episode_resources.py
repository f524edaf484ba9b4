"""The resources of one episode: its environment and the run's own tools, each closed however the episode ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Generic, TypeVar

from windrow.engine.context import RunContext
from windrow.engine.recorder import Recorder
from windrow.envs import BaseEnv
from windrow.registry import name_of
from windrow.tools import Tool
from windrow.util.guard import CANCEL_GRACE_S, guarded

E = TypeVar("E", bound=BaseEnv)

RunTools = Sequence[tuple[str, Tool]]

_NO_RUN_TOOLS: nullcontext[RunTools] = nullcontext(())


def open_run_tools(context: RunContext, recorder: Recorder) -> AbstractAsyncContextManager[RunTools]:
    """The run's own tools, open for one episode."""
    return _opened_run_tools(context, recorder) if context.toolbox.has_sources else _NO_RUN_TOOLS


@asynccontextmanager
async def _opened_run_tools(context: RunContext, recorder: Recorder) -> AsyncIterator[RunTools]:
    async with AsyncExitStack() as stack:
        with recorder.timed("setup"):
            run_tools = await stack.enter_async_context(context.toolbox.episode())
        yield run_tools


class OpenEnv(Generic[E]):
    """The environment of one attempt. `close` runs once, within its time, however the attempt ends."""

    def __init__(self, env: E, context: RunContext, recorders: Sequence[Recorder]) -> None:
        self._env = env
        self._limit_s = context.limits.close_timeout_s
        self._recorders = recorders

    async def __aenter__(self) -> E:
        return self._env

    async def __aexit__(self, *_: object) -> None:
        if type(self._env).close is not BaseEnv.close:  # the default has nothing to close
            await self._close()

    async def _close(self) -> None:
        """Close the environment. A cancellation meanwhile is raised afterwards."""
        closing = asyncio.ensure_future(guarded(_closed(self._env), f"{name_of(type(self._env))}.close()"))
        cancelled = await _settled(closing, self._limit_s)
        if not closing.done():
            closing.cancel()
            # `guarded` gives up a coroutine that ignores its cancellation, so that this ends.
            cancelled = await _settled(closing, 2 * CANCEL_GRACE_S) or cancelled
        if not closing.done() or closing.cancelled() or closing.exception() is not None:
            for recorder in self._recorders:
                recorder.metrics["close_failed"] = 1.0
        if cancelled is not None:
            raise cancelled


async def _closed(env: BaseEnv) -> None:
    try:
        await env.close()
    except SystemExit as problem:  # it would end the loop
        raise RuntimeError(f"close() raised {problem!r}") from None


async def _settled(task: asyncio.Future[None], limit_s: float) -> asyncio.CancelledError | None:
    """Wait at most `limit_s` for `task`. A cancellation of the caller does not end the wait; it is returned."""
    cancelled: asyncio.CancelledError | None = None
    deadline = time.monotonic() + limit_s
    while not task.done() and (left_s := deadline - time.monotonic()) > 0:
        try:
            await asyncio.wait({task}, timeout=left_s)
        except asyncio.CancelledError as problem:
            cancelled = problem
    return cancelled
