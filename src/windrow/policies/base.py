"""What a policy is, and how it is called: retries and deadlines are the same for every policy."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import msgspec

from windrow.config import Sampling
from windrow.errors import InfraError, PolicyError
from windrow.records import Call, Capture, Json, Message, Tokens, Usage

ANY_SAMPLING = frozenset(Sampling.__struct_fields__) | {"seed"}  # of a policy that is told all and honours it
MAX_BACKOFF_S = 60.0
MAX_RETRY_AFTER_S = 600.0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One model call. `id`, `attempt` and `turn` name it; they are not part of what the model sees."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Json], ...]
    sampling: dict[str, Json]
    id: str
    attempt: int
    turn: int
    capture: Capture = "text"


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


class Policy:
    """Answers requests. `complete` is one try: it raises InfraError where trying again may help."""

    name: str = "policy"
    model: str = "policy"
    accepts: frozenset[str] = frozenset()
    default_sampling: Mapping[str, Json] = {}  # what is asked for where the configuration says nothing
    default_concurrency: int | None = None
    default_capture: Capture = "text"
    captures: frozenset[Capture] = frozenset({"none", "text"})  # what may be asked of it

    def identity(self) -> dict[str, Json]:
        """What makes this policy answer as it does, for the behaviour fingerprint: nothing volatile."""
        return {"policy": self.name, "model": self.model}

    async def open(self) -> None:
        """Called once before the first request; raises EndpointError when this policy cannot serve the run."""

    async def complete(self, request: Request) -> Completion:
        raise NotImplementedError

    async def close(self) -> None:
        """Called once, after the last request."""


async def complete(
    policy: Policy, request: Request, *, retries: int, backoff_s: float, timeout_s: float
) -> Completion:
    """One call with its retries; each try has `timeout_s`, and a try that takes longer is not repeated."""
    tries = 0
    while True:
        clock = asyncio.timeout(timeout_s)
        try:
            async with clock:
                completion = _checked(await policy.complete(request), policy)
            return completion if not tries else msgspec.structs.replace(completion, retries=tries)
        except TimeoutError:
            if not clock.expired():
                raise  # the policy's own
            problem = InfraError(f"no answer within {timeout_s:g} s", kind="call_timeout", again=False)
            problem.retries = tries
            raise problem from None
        except InfraError as problem:
            problem.retries = tries
            if not problem.again or tries >= retries:
                raise
            await asyncio.sleep(pause_s(tries, backoff_s, problem.retry_after_s))
            tries += 1


def _checked(completion: Completion, policy: Policy) -> Completion:
    """A policy is a user's code too: what cannot be written down is told to be its fault."""
    if not isinstance(completion, Completion):
        raise PolicyError(
            f"policy {policy.model!r} returned {type(completion).__name__}; expected a Completion",
            kind="bad_completion",
        )
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
_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("content", _TEXT),
    ("tool_calls", (tuple, list)),
    ("reasoning", _TEXT),
    ("finish", _TEXT),
    ("usage", (Usage, type(None))),
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
