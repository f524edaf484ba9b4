"""What a policy is: one request in, one completion out. Retries and deadlines are in `calls.py`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from windrow.config import Sampling
from windrow.policies.message_encoding import Items, MessageCache, json_array
from windrow.policies.prompt_ids import PromptReader
from windrow.records import Call, Capture, Json, Message, Tokens, Usage

ANY_SAMPLING = frozenset(Sampling.__struct_fields__) | {"seed"}  # of a policy that is told all and honours it


class Route:
    """What an episode's calls share: the endpoint that the first one went to, and what was sent and received so far."""

    __slots__ = ("branches", "conversation", "encoded", "endpoint", "prompts")

    def __init__(self) -> None:
        self.endpoint: object | None = None
        self.encoded: MessageCache | None = None
        self.prompts: PromptReader | None = None
        self.branches: list[Any] | None = None  # what a dialect that sends ids has sent and got so far
        self.conversation: Any = None  # as a policy whose tool calls are text has shown it


class ForcedTokens(NamedTuple):
    """Ids that are not to be sampled but scored: how likely is `output` after `prompt`?

    `text` is what the output says: a model to which the ids say something else has another vocabulary.
    """

    prompt: Sequence[int]
    output: Sequence[int]
    text: str | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One model call. `id`, `attempt` and `turn` name it; they are not part of what the model sees.

    With `given`, nothing is sampled: the completion's tokens are those ids and the logprobs that the model gives them.
    """

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Json], ...]
    sampling: dict[str, Json]
    id: str
    attempt: int
    turn: int
    capture: Capture = "text"
    top_logprobs: int = 0  # how many of the likeliest tokens are wanted at each place of the reply
    given: ForcedTokens | None = None
    route: Route | None = None  # the same for all calls of an episode
    new_connection: bool = False  # it goes over connections that were not used before

    def encoded_messages(self, items: Items) -> list[bytes]:
        """For each message the `items` that a dialect sends for it, encoded; earlier calls' are not encoded again."""
        route = self.route
        if route is None or not self.turn:  # most episodes have one turn: nothing is kept of it
            return MessageCache().encoded(self.messages, items)
        if route.encoded is None:
            route.encoded = MessageCache()
        return route.encoded.encoded(self.messages, items)

    def message_array(self, items: Items) -> Json:
        """All messages as a JSON array of the `items` that a dialect sends for them."""
        if self.route is None or not self.turn:
            return [item for message in self.messages for item in items(message)]
        return json_array(self.encoded_messages(items))

    @property
    def prompts(self) -> PromptReader:
        """What reads the ids of the episode's prompts."""
        if self.route is None:
            return PromptReader()
        if self.route.prompts is None:
            self.route.prompts = PromptReader()
        return self.route.prompts


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy answered. `retries` is how many tries failed before this one.

    `malformed` are tool calls in the reply that could not be read, in words for the model.
    """

    content: str | None
    tool_calls: tuple[Call, ...] = ()
    reasoning: str | None = None
    finish: str | None = "stop"
    usage: Usage | None = None
    tokens: Tokens | None = None
    model: str | None = None
    version: str | None = None
    first_token_s: float | None = None
    retries: int = 0
    malformed: tuple[str, ...] = ()
    capture: Capture = "text"  # what `tokens` really holds


def _discard(message: str) -> None:
    pass


class PolicyNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What a run needs of a policy, handed over when it is opened.

    `capture` and `top_logprobs` are the most that a request will ask for. `notify` tells the user of something while
    the run goes on: an endpoint is paused, or back.
    """

    capture: Capture = "text"
    top_logprobs: int = 0
    notify: Callable[[str], None] = _discard


class Policy:
    """Answers requests. `complete` is one try: it raises InfraError where trying again may help."""

    name: str = "policy"
    model: str = "policy"
    accepts: frozenset[str] = frozenset()
    default_sampling: Mapping[str, Json] = {}  # what is asked for where the configuration says nothing
    default_concurrency: int | None = None
    default_capture: Capture = "text"
    captures: frozenset[Capture] = frozenset({"none", "text"})  # what may be asked of it
    gives_top_logprobs: bool = False  # may be asked for the likeliest tokens at each place
    scores_ids: bool = False  # may be sent requests with `given` ids
    reads_tool_calls: bool = True  # finds native tool calls in its replies
    needs: PolicyNeeds = PolicyNeeds()  # as of the last `open`

    def identity(self) -> dict[str, Json]:
        """What makes this policy answer as it does, for the behaviour fingerprint: nothing volatile."""
        return {"policy": self.name, "model": self.model}

    async def open(self, needs: PolicyNeeds | None = None) -> None:
        """Called once before the first request; raises EndpointError when this policy cannot serve the run.

        Without `needs`, those that it already has stand.
        """
        if needs is not None:
            self.needs = needs

    def notify(self, message: str) -> None:
        """Tell the user something while the run goes on."""
        self.needs.notify(message)

    def hold(self, request: Request) -> Awaitable[None] | None:
        """What is to be awaited before each try: a rate limit, an outage. None when it may be sent at once.

        This counts neither as the call's time nor as a try.
        """
        return None

    async def complete(self, request: Request) -> Completion:
        raise NotImplementedError

    async def close(self) -> None:
        """Called once, after the last request."""


async def open_policy(policy: Policy, needs: PolicyNeeds) -> None:
    """Open a policy. One whose own `open` takes no parameter finds the needs in `self.needs`."""
    try:
        inspect.signature(policy.open).bind(needs)
    except TypeError:
        await Policy.open(policy, needs)
        await policy.open()
    else:
        await policy.open(needs)
