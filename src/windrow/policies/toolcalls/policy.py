"""A policy whose tool calls are text: any policy, with the calls written and read in one of the formats.

With tools in the request, the system message describes them, earlier calls and results are shown as text, and no
native tools are sent. The reply's content stays exactly as it was sampled; the calls found in it stand beside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

import msgspec

from windrow.errors import UsageError
from windrow.policies.base import Completion, Policy, Request
from windrow.policies.toolcalls import FORMATS, chosen_format, needs_examples
from windrow.policies.toolcalls.base import Format, ToolSchemas
from windrow.policies.toolcalls.examples import examples
from windrow.records import Capture, Json, Message

VERSION = 1  # of what the formats say and read: a change of it is a change of behaviour


class TextToolPolicy(Policy):
    def __init__(self, policy: Policy, format_name: str, *, identified: bool = True) -> None:
        """`identified`: whether the format is part of the identity; one that follows from the model's name is not."""
        self.name = policy.name
        self.model = policy.model
        self.accepts = policy.accepts
        self.default_sampling: Mapping[str, Json] = policy.default_sampling
        self.default_concurrency = policy.default_concurrency
        self.default_capture = policy.default_capture
        self.captures = policy.captures
        self.gives_top_logprobs = policy.gives_top_logprobs
        self.scores_ids = policy.scores_ids
        self.reads_tool_calls = True
        self._policy = policy
        self._format = FORMATS[format_name]
        self._identity: dict[str, Json] = (
            {"tool_calls": {"format": format_name, "version": VERSION}} if identified else {}
        )

    def identity(self) -> dict[str, Json]:
        return {**self._policy.identity(), **self._identity}

    async def open(self) -> None:
        await self._policy.open()

    async def close(self) -> None:
        await self._policy.close()

    @property
    def notify(self) -> Callable[[str], None]:
        return self._policy.notify

    @notify.setter
    def notify(self, tell: Callable[[str], None]) -> None:
        self._policy.notify = tell

    @property
    def wanted_capture(self) -> Capture:
        return self._policy.wanted_capture

    @wanted_capture.setter
    def wanted_capture(self, level: Capture) -> None:
        self._policy.wanted_capture = level

    @property
    def wanted_top_logprobs(self) -> int:
        return self._policy.wanted_top_logprobs

    @wanted_top_logprobs.setter
    def wanted_top_logprobs(self, k: int) -> None:
        self._policy.wanted_top_logprobs = k

    def hold(self, request: Request) -> Awaitable[None] | None:
        return self._policy.hold(request)

    async def complete(self, request: Request) -> Completion:
        if not request.tools:
            return await self._policy.complete(request)
        taught = any(message.tool_calls and message.origin == "task" for message in request.messages)
        shown = examples(request.tools, self._format) if needs_examples(self.model) and not taught else ()
        messages = tuple(as_text(request.messages, request.tools, self._format, shown))
        completion = await self._policy.complete(
            msgspec.structs.replace(request, messages=messages, tools=())
        )
        if completion.tool_calls or not completion.content:
            return completion
        parsed = self._format.parse(_spoken(completion.content), request.tools)
        calls = tuple(
            msgspec.structs.replace(call, id=f"call_{request.turn}_{n}")
            for n, call in enumerate(parsed.calls)
        )
        return msgspec.structs.replace(completion, tool_calls=calls, malformed=parsed.malformed)


def with_tool_calls(policy: Policy, setting: str) -> Policy:
    """`policy` with the tool calls that `policy.tool_calls` asks for; `auto` goes by the model's name.

    Where the policy's server gives text alone, native calls are not to be had, and `auto` falls back to `hermes`.
    """
    if isinstance(policy, TextToolPolicy):
        return policy
    if setting == "native":
        if not policy.reads_tool_calls:
            raise UsageError(
                f"--tool-calls native: the dialect of {policy.model!r} gives text alone, in which nobody finds "
                f"the calls; choose another of {', '.join(FORMATS)}"
            )
        return policy
    if setting != "auto":
        return TextToolPolicy(policy, setting)
    found = "native" if policy.name == "scripted" else chosen_format(policy.model)
    if found == "native" and not policy.reads_tool_calls:
        return TextToolPolicy(policy, "hermes")
    return policy if found == "native" else TextToolPolicy(policy, found, identified=False)


def as_text(
    messages: Iterable[Message], tools: ToolSchemas, form: Format, shown: Iterable[Message] = ()
) -> Iterator[Message]:
    """The conversation as the model is shown it: the tools in the system message, calls and results as text.

    What is `shown` first comes between the system message and the rest.
    """
    names: dict[str | None, str] = {}
    results: list[str] = []
    described = False
    for message in messages:
        if not described:
            described = True
            if message.role in ("system", "developer"):
                yield _with_text(message, f"{message.text}\n\n{form.describe(tools)}")
                yield from shown
                continue
            yield Message(role="system", content=form.describe(tools), origin="task")
            yield from shown
        if message.role == "tool":
            results.append(form.render_result(names.get(message.tool_call_id, "tool"), message.text))
            continue
        if results:
            yield Message(role="user", content="\n".join(results), origin="tool")
            results = []
        names.update({call.id: call.name for call in message.tool_calls or ()})
        yield _said(message, tools, form) if message.tool_calls else message
    if results:
        yield Message(role="user", content="\n".join(results), origin="tool")


def _said(message: Message, tools: ToolSchemas, form: Format) -> Message:
    """A reply with calls: its own text where the calls are in it, else its text and then the calls."""
    calls = message.tool_calls or ()
    if len(form.parse(_spoken(message.text), tools).calls) == len(calls):
        return _with_text(message, message.text)
    return _with_text(
        message, "\n".join(filter(None, [message.text, *(form.render_call(c, tools) for c in calls)]))
    )


def _with_text(message: Message, text: str) -> Message:
    return Message(role=message.role, content=text, origin=message.origin)


def _spoken(text: str) -> str:
    """The reply without its thoughts: a call that is only thought of is none."""
    _, end, spoken = text.rpartition("</think>")
    if end:
        return spoken
    return "" if text.lstrip().startswith("<think>") else text
