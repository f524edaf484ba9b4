"""Running the tool calls of a reply: concurrently, each within its time limit, each with a result.

If a tool is unknown, denied or too slow, if it raises, or if its arguments are malformed, the result says so to the
model, and the other calls still run. A result that is too long is cut, and says how much of it is left.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Sequence
from typing import Any

import msgspec

from windrow.config import LimitsConfig
from windrow.errors import ToolError
from windrow.records import Call, Json, ToolCall
from windrow.tools import Tool, ToolResult, ToolStop
from windrow.tools.base import Pictured, ToolImage
from windrow.tools.toolbox import Offer
from windrow.util.blobs import Blobs
from windrow.util.cancellation import is_ours
from windrow.util.deadlines import Deadline
from windrow.util.guard import guarded
from windrow.util.threads import in_thread


async def run_calls(
    calls: tuple[Call, ...], offer: Offer, limits: LimitsConfig, blobs: Blobs, *, first_result: int
) -> tuple[list[ToolResult], list[ToolCall]]:
    """Results and records in the order of the calls. `first_result` is the message index of the first result."""
    if len(calls) == 1:  # as in most replies: no task group is needed
        result, record = await _run(calls[0], offer, limits, blobs, first_result)
        return [result], [record]
    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(_run(call, offer, limits, blobs, first_result + number))
            for number, call in enumerate(calls)
        ]
    finished = [task.result() for task in running]
    return [result for result, _ in finished], [record for _, record in finished]


def result_messages(results: Sequence[ToolResult], *, requested: bool) -> list[dict[str, Any]]:
    """The results as messages. Servers refuse a tool message that answers no call, so a result that no reply
    requested is a user message."""
    if not requested:
        return [{"role": "user", "content": _content(result)} for result in results]
    return [
        {"role": "tool", "content": _content(result), "tool_call_id": result.call.id} for result in results
    ]


def _content(result: ToolResult) -> str | list[dict[str, Json]]:
    if not result.images:
        return result.content
    text: list[dict[str, Json]] = [{"type": "text", "text": result.content}] if result.content else []
    return [*text, *result.images]


async def _run(
    call: Call, offer: Offer, limits: LimitsConfig, blobs: Blobs, result_index: int
) -> tuple[ToolResult, ToolCall]:
    started_at, started = time.time(), time.monotonic()
    arguments: dict[str, Json] | str = call.arguments
    error: str | None = None
    stop = False
    images: tuple[ToolImage, ...] = ()
    deadline = Deadline(limits.tool_timeout_s)
    try:
        arguments = _parsed(call)
        tool = _permitted(call, offer)
        with deadline:
            # A copy of the arguments, which the tool may change.
            content, images, stop = await _called(tool, _parsed(call))
    except BaseException as problem:  # whatever a tool raises is an answer to the model
        if is_ours(problem):
            raise
        timed_out = isinstance(problem, TimeoutError) and deadline.expired()
        error = capped(_error_text(problem, call, limits, timed_out), limits.max_tool_result_chars)
        content = f"Error: {error}"
    content = capped(content, limits.max_tool_result_chars)
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
    kept = [await blobs.image(i.data, i.media_type, i.width, i.height) for i in images]
    return ToolResult(
        call=call, content=content, images=tuple(kept), failed=error is not None, stop=stop
    ), record


def _error_text(problem: BaseException, call: Call, limits: LimitsConfig, timed_out: bool) -> str:
    if timed_out:
        return f"the tool {call.name!r} did not finish within {limits.tool_timeout_s:g} s"
    return str(problem) if isinstance(problem, ToolError) else f"{type(problem).__name__}: {problem}"


def capped(text: str, limit: int) -> str:
    """`text`, cut to `limit` characters; a cut text says so."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut: the first {limit:,} of {len(text):,} characters]"


def _permitted(call: Call, offer: Offer) -> Tool:
    if call.name in offer.denied:
        raise ToolError(f"the tool {call.name!r} is denied", kind="denied")
    if call.name not in offer.tools:
        raise ToolError(f"unknown tool {call.name!r}; the tools are: {', '.join(offer.tools) or 'none'}")
    return offer.tools[call.name]


def _parsed(call: Call) -> dict[str, Json]:
    try:
        arguments = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise ToolError(f"the arguments of {call.name!r} are not valid JSON: {problem}") from None
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments of {call.name!r} must be a JSON object")
    return arguments


async def _called(tool: Tool, arguments: dict[str, Json]) -> tuple[str, tuple[ToolImage, ...], bool]:
    """The result as text, its images, and whether it ends the episode."""
    if inspect.iscoroutinefunction(tool.call):
        result = await _apart(tool.call(**arguments), tool)
    else:
        result = await in_thread(tool.call, **arguments)
        if inspect.isawaitable(result):
            result = await _apart(result, tool)
    stop = isinstance(result, ToolStop)
    value = result.content if stop else result
    if isinstance(value, Pictured):
        return value.text, value.images, stop
    return value if isinstance(value, str) else msgspec.json.encode(value).decode(), (), stop


async def _apart(work: Awaitable[Any], tool: Tool) -> Any:
    """`await work` in a task of its own, so that a tool that cancels its task or sets context variables affects no
    other tool."""
    result, problem = await asyncio.create_task(_caught(guarded(work, f"tool {tool.name!r}")))
    if problem is not None:
        raise problem
    return result


async def _caught(work: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """The result of `work`, or its exception, which a task must not raise: SystemExit would end the loop."""
    try:
        return await work, None
    except BaseException as problem:
        return None, problem
