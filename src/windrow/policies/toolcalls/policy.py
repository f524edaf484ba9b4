"""A policy whose tool calls are text: any policy, with the calls written and read in one of the formats.

With tools in the request, the system message describes them, earlier calls and results are shown as text, and no
native tools are sent. The reply's content stays exactly as it was sampled; the calls found in it stand beside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

import msgspec

from windrow.errors import UsageError
from windrow.policies.base import Completion, Policy, PolicyNeeds, Request, open_policy
from windrow.policies.toolcalls import FORMATS, chosen_format, needs_examples
from windrow.policies.toolcalls.conversation import Conversation, spoken
from windrow.records import Json

VERSION = 1  # of what the formats say and read: a change of it is a change of behaviour


class TextToolPolicy(Policy):
    """Wraps a policy: tools and calls are written into its prompts as text, and calls are read from its replies."""

    def __init__(self, policy: Policy, format_name: str, *, identified: bool = True) -> None:
        """`identified`: whether the format is part of the identity; one that follows from the model's name is not."""
        self.name = policy.name
        self.model = policy.model
        self.accepts = policy.accepts
        self.own_fields = policy.own_fields
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

    async def open(self, needs: PolicyNeeds | None = None) -> None:
        await super().open(needs)
        await open_policy(self._policy, self.needs)

    async def close(self) -> None:
        await self._policy.close()

    def hold(self, request: Request) -> Awaitable[None] | None:
        return self._policy.hold(request)

    async def complete(self, request: Request) -> Completion:
        if not request.tools:
            return await self._policy.complete(request)
        messages = self._conversation(request).as_text(request.messages)
        completion = await self._policy.complete(
            msgspec.structs.replace(request, messages=messages, tools=())
        )
        if completion.tool_calls or not completion.content:
            return completion
        parsed = self._format.parse(spoken(completion.content), request.tools)
        calls = tuple(
            msgspec.structs.replace(call, id=f"call_{request.turn}_{n}")
            for n, call in enumerate(parsed.calls)
        )
        return msgspec.structs.replace(completion, tool_calls=calls, malformed=parsed.malformed)

    def _conversation(self, request: Request) -> Conversation:
        """The conversation that the request belongs to."""
        route = request.route
        current: Conversation | None = route.conversation if route is not None else None
        if current is not None and current.tools is request.tools:
            return current
        conversation = Conversation(request.tools, self._format, shows_examples=needs_examples(self.model))
        if route is not None:
            route.conversation = conversation
        return conversation


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
    format_name = "native" if policy.name == "scripted" else chosen_format(policy.model)
    if format_name == "native" and not policy.reads_tool_calls:
        return TextToolPolicy(policy, "hermes")
    return policy if format_name == "native" else TextToolPolicy(policy, format_name, identified=False)
