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
from windrow.util.byte_budget import HeldBytes

ANY_SAMPLING = frozenset(Sampling.__struct_fields__) | {"seed"}  # of a policy that takes every option


# Fields of a request that no `sampling.extra` may name, whatever the server: what they say is written down elsewhere.
OWN_FIELDS = frozenset({"model", "messages", "tools", "n", "seed", "stream"})


def extra_problem(extra: Json, own_fields: frozenset[str]) -> str | None:
    """What is wrong with a `sampling.extra`: a field that is Windrow's to write, so that the record is right about it."""
    name = next((name for name in extra or () if name in own_fields), None)
    if name is None:
        return None
    hint = {
        "model": "the model is --model",
        "seed": "--seeds sends seeds",
        "n": "-k asks for several samples",
    }
    if name in Sampling.__struct_fields__:
        hint[name] = f"give it as sampling.{name}"
    return f"'sampling.extra' may not have {name!r}, which is Windrow's to write; {hint.get(name, 'leave it out')}"


class Route:
    """State that the calls of one episode share: their endpoint, and caches of what was sent and received so far."""

    __slots__ = ("branches", "conversation", "encoded", "endpoint", "held", "prompts")

    def __init__(self) -> None:
        self.endpoint: object | None = None
        self.encoded: MessageCache | None = None
        self.prompts: PromptReader | None = None
        self.branches: list[Any] | None = None  # texts and ids so far, for dialects that send ids
        self.conversation: Any = None  # the messages as text, for policies whose tool calls are text
        self.held: list[HeldBytes] = []  # what large replies take of the process's budget


class ForcedTokens(NamedTuple):
    """Ids that are scored rather than sampled: how likely is `output` after `prompt`?

    `text` is the text of the output: a model for which the ids have another text has another vocabulary.
    """

    prompt: Sequence[int]
    output: Sequence[int]
    text: str | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One model call. `id`, `attempt` and `turn` name it; they are not part of what the model sees.

    With `forced`, nothing is sampled: the completion's tokens are those ids and the logprobs that the model gives them.
    """

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Json], ...]
    sampling: dict[str, Json]
    id: str
    attempt: int
    turn: int
    capture: Capture = "text"
    top_logprobs: int = 0  # how many of the likeliest tokens are wanted at each position of the reply
    forced: ForcedTokens | None = None
    route: Route | None = None  # the same for all calls of an episode
    new_connection: bool = False  # use a connection that was not used before

    @property
    def given(self) -> ForcedTokens | None:
        """The former name of `forced`."""
        return self.forced

    def encoded_messages(self, items: Items) -> list[bytes]:
        """For each message the encoded `items` that a dialect sends for it; those of earlier calls are cached."""
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
        """The reader of the episode's prompt ids."""
        if self.route is None:
            return PromptReader()
        if self.route.prompts is None:
            self.route.prompts = PromptReader()
        return self.route.prompts


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's answer. `retries` is the number of tries that failed before this one.

    `malformed` describes, for the model, the tool calls in the reply that could not be read.
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
    capture: Capture = "text"  # the level that `tokens` reaches


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
    own_fields: frozenset[str] = frozenset()  # what `sampling.extra` may not name
    default_sampling: Mapping[str, Json] = {}  # used where the configuration sets nothing
    default_concurrency: int | None = None
    default_capture: Capture = "text"
    captures: frozenset[Capture] = frozenset({"none", "text"})  # levels that a request may ask for
    gives_top_logprobs: bool = False  # can return the likeliest tokens at each position
    scores_ids: bool = False  # may be sent requests with `forced` ids
    reads_tool_calls: bool = True  # finds native tool calls in its replies
    needs: PolicyNeeds = PolicyNeeds()  # as of the last `open`

    def identity(self) -> dict[str, Json]:
        """Everything that shapes this policy's answers, for the behaviour fingerprint: nothing volatile."""
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
        """An awaitable that ends when the next try may be sent (rate limit, outage); None if it may be sent at once.

        The wait counts neither as the call's time nor as a try.
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
