"""Running a reply's tool calls: side by side, each within its time, each answered whatever becomes of it.

A call that is unknown, malformed, too slow or raises is told to the model; the calls beside it still run.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Mapping

import msgspec

from windrow.engine.cancel import is_ours
from windrow.engine.threads import in_thread
from windrow.errors import ToolError
from windrow.records import Call, Json, ToolCall
from windrow.tools import Tool, ToolResult


async def run_calls(
    calls: tuple[Call, ...], tools: Mapping[str, Tool], *, timeout_s: float, first_result: int
) -> tuple[list[ToolResult], list[ToolCall]]:
    """Results in the order of the calls. `first_result` is the message index that the first result will have."""
    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(_run(call, tools, timeout_s, first_result + number))
            for number, call in enumerate(calls)
        ]
    done = [task.result() for task in running]
    return [result for result, _ in done], [record for _, record in done]


async def _run(
    call: Call, tools: Mapping[str, Tool], timeout_s: float, result_index: int
) -> tuple[ToolResult, ToolCall]:
    started_at, started = time.time(), time.monotonic()
    arguments: dict[str, Json] | str = call.arguments
    error: str | None = None
    clock = asyncio.timeout(timeout_s)
    try:
        arguments = _parsed(call)
        if call.name not in tools:
            raise ToolError(f"unknown tool {call.name!r}; the tools are: {', '.join(tools) or 'none'}")
        async with clock:
            content = await _called(tools[call.name], _parsed(call))  # its own copy, to do with as it likes
    except BaseException as problem:  # whatever a tool raises is an answer to the model
        if is_ours(problem):
            raise
        error = str(problem) if isinstance(problem, ToolError) else f"{type(problem).__name__}: {problem}"
        if isinstance(problem, TimeoutError) and clock.expired():
            error = f"the tool {call.name!r} did not finish within {timeout_s:g} s"
    if error is not None:
        content = f"Error: {error}"
    record = ToolCall(
        id=call.id,
        name=call.name,
        arguments=arguments,
        result=result_index,
        failed=error is not None,
        error=error,
        started_at=started_at,
        seconds=time.monotonic() - started,
    )
    return ToolResult(call=call, content=content, failed=error is not None), record


def _parsed(call: Call) -> dict[str, Json]:
    try:
        arguments = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise ToolError(f"the arguments of {call.name!r} are not valid JSON: {problem}") from None
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments of {call.name!r} must be a JSON object")
    return arguments


async def _called(tool: Tool, arguments: dict[str, Json]) -> str:
    if inspect.iscoroutinefunction(tool.call):
        result = await tool.call(**arguments)
    else:
        result = await in_thread(tool.call, **arguments)
        if inspect.isawaitable(result):
            result = await result
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()
