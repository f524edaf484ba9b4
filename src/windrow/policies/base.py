"""What a policy is, and how it is called: retries and deadlines are the same for every policy."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from windrow.config import Sampling
from windrow.errors import InfraError, PolicyError, StaleConnection
from windrow.policies.message_encoding import Items, MessageCache, json_array
from windrow.policies.prompt_ids import PromptReader
from windrow.records import Call, Capture, Json, Message, Tokens, Usage
from windrow.util.deadlines import Deadline

ANY_SAMPLING = frozenset(Sampling.__struct_fields__) | {"seed"}  # of a policy that is told all and honours it
MAX_BACKOFF_S = 60.0
MAX_RETRY_AFTER_S = 600.0
MAX_ASKED_WAITS = 20  # of one call, that the server asked for: what comes after them counts as a retry


class Route:
    """What an episode's calls share: the endpoint that the first one went to, and what was sent and received so far."""

    __slots__ = ("branches", "conversation", "encoded", "endpoint", "prompts")

    def __init__(self) -> None:
        self.endpoint: object | None = None
        self.encoded: MessageCache | None = None
        self.prompts: PromptReader | None = None
        self.branches: list[Any] | None = None  # what a dialect that sends ids has sent and got so far
        self.conversation: Any = None  # as a policy whose tool calls are text has shown it


class CallOutcome(NamedTuple):
    """One try of a call: how long it took, and whether it failed because there was too much to do."""

    seconds: float
    ok: bool
    overloaded: bool


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


def _say_nothing(message: str) -> None:
    pass


class Policy:
    """Answers requests. `complete` is one try: it raises InfraError where trying again may help."""

    name: str = "policy"
    model: str = "policy"
    accepts: frozenset[str] = frozenset()
    default_sampling: Mapping[str, Json] = {}  # what is asked for where the configuration says nothing
    default_concurrency: int | None = None
    default_capture: Capture = "text"
    captures: frozenset[Capture] = frozenset({"none", "text"})  # what may be asked of it
    wanted_capture: Capture = "text"  # what will be asked of it; set before it is opened
    gives_top_logprobs: bool = False  # may be asked for the likeliest tokens at each place
    scores_ids: bool = False  # may be sent requests with `given` ids
    wanted_top_logprobs: int = 0  # how many will be asked for; set before it is opened
    reads_tool_calls: bool = True  # finds native tool calls in its replies
    notify: Callable[[str], None] = staticmethod(
        _say_nothing
    )  # tells the user: an endpoint is paused, or back
    on_call: Callable[[CallOutcome], None] | None = None  # is told of every try, once it has ended

    def identity(self) -> dict[str, Json]:
        """What makes this policy answer as it does, for the behaviour fingerprint: nothing volatile."""
        return {"policy": self.name, "model": self.model}

    async def open(self) -> None:
        """Called once before the first request; raises EndpointError when this policy cannot serve the run."""

    def hold(self, request: Request) -> Awaitable[None] | None:
        """What is to be awaited before each try: a rate limit, an outage. None when it may be sent at once.

        This counts neither as the call's time nor as a try.
        """
        return None

    async def complete(self, request: Request) -> Completion:
        raise NotImplementedError

    async def close(self) -> None:
        """Called once, after the last request."""


async def complete(
    policy: Policy, request: Request, *, retries: int, backoff_s: float, timeout_s: float
) -> Completion:
    """One call with its retries; each try has `timeout_s`, and a try that takes longer is not repeated.

    A wait that the server asks for uses up no retry, MAX_ASKED_WAITS times. Nor does a call that went into a stale
    connection: it is sent again at once, over a new one. The server had most likely closed the connection before the
    call came, yet nobody can know; so `retries` counts it as what it is, a call that was sent once more.
    """
    tries = free = 0  # the free ones use up no retry
    while True:
        held = policy.hold(request)
        if held is not None:
            await held
        started = time.monotonic() if policy.on_call is not None else 0.0
        deadline = Deadline(timeout_s)
        try:
            with deadline:
                completion = _checked(await policy.complete(request), policy)
            if policy.on_call is not None:
                policy.on_call(CallOutcome(time.monotonic() - started, ok=True, overloaded=False))
            return completion if not tries else msgspec.structs.replace(completion, retries=tries)
        except TimeoutError:
            if not deadline.expired():
                raise  # the policy's own
            problem = InfraError(f"no answer within {timeout_s:g} s", kind="call_timeout", again=False)
            problem.retries = tries
            _report(policy, problem, started)
            raise problem from None
        except PolicyError as problem:
            problem.retries = tries
            raise
        except InfraError as problem:
            problem.retries = tries
            _report(policy, problem, started)
            stale = isinstance(problem, StaleConnection) and not request.new_connection
            waits = problem.retry_after_s is not None and free < MAX_ASKED_WAITS
            if not problem.again or (tries - free >= retries and not (waits or stale)):
                raise
            if stale:
                request = msgspec.structs.replace(request, new_connection=True)
            elif not problem.held:
                await asyncio.sleep(pause_s(tries - free, backoff_s, problem.retry_after_s))
            tries += 1
            free += waits or stale


def _report(policy: Policy, problem: InfraError, started: float) -> None:
    """Tell of a try that failed."""
    if policy.on_call is not None:
        overloaded = problem.kind in ("http_429", "http_503", "call_timeout")
        policy.on_call(CallOutcome(time.monotonic() - started, ok=False, overloaded=overloaded))


def _checked(completion: Completion, policy: Policy) -> Completion:
    """A policy is a user's code too: what cannot be written down is told to be its fault."""
    if not isinstance(completion, Completion):
        raise PolicyError(
            f"policy {policy.model!r} returned {type(completion).__name__}; expected a Completion",
            kind="bad_completion",
        )
    said = completion
    if (
        type(said.content) in _TEXT
        and type(said.finish) in _TEXT
        and type(said.model) in _TEXT
        and type(said.usage) in _USAGE
        and said.tool_calls == ()
        and said.malformed == ()
        and said.tokens is None
        and said.reasoning is None
        and said.version is None
        and said.first_token_s is None
    ):
        return completion  # as nearly all are
    wrong = next((name for name, kinds in _KINDS if not isinstance(getattr(completion, name), kinds)), None)
    if wrong is None and not all(isinstance(call, Call) for call in completion.tool_calls):
        wrong = "tool_calls"
    if wrong is None and not all(isinstance(what, str) for what in completion.malformed):
        wrong = "malformed"
    if wrong is None:
        return completion
    raise PolicyError(
        f"policy {policy.model!r} returned a Completion whose {wrong!r} is {getattr(completion, wrong)!r:.80}",
        kind="bad_completion",
    )


_TEXT = (str, type(None))
_USAGE = (Usage, type(None))
_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("content", _TEXT),
    ("tool_calls", (tuple, list)),
    ("reasoning", _TEXT),
    ("finish", _TEXT),
    ("usage", _USAGE),
    ("tokens", (Tokens, type(None))),
    ("model", _TEXT),
    ("version", _TEXT),
    ("first_token_s", (int, float, type(None))),
    ("malformed", (tuple, list)),
)


def pause_s(tries: int, backoff_s: float, retry_after_s: float | None) -> float:
    """How long to wait before the next try: the server's wish, else twice as long each time; always with jitter."""
    if retry_after_s is not None:
        return min(retry_after_s, MAX_RETRY_AFTER_S) * random.uniform(1.0, 1.1)
    return min(backoff_s * 2.0**tries, MAX_BACKOFF_S) * random.uniform(0.5, 1.0)
