"""Calls to a policy: retries, deadlines and the check of what comes back are the same for every policy."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from windrow.errors import InfraError, PolicyError, StaleConnection
from windrow.policies.base import Completion, Policy, Request
from windrow.records import Call, Tokens, Usage
from windrow.util.deadlines import Deadline

MAX_BACKOFF_S = 60.0
MAX_RETRY_AFTER_S = 600.0
MAX_ASKED_WAITS = 20  # waits of one call that the server asked for: any further one counts as a retry


class CallOutcome(NamedTuple):
    """One try of a call: how long it took, and whether it failed because there was too much to do."""

    seconds: float
    ok: bool
    overloaded: bool


CallObserver = Callable[[CallOutcome], None]


async def complete(
    policy: Policy,
    request: Request,
    *,
    retries: int,
    backoff_s: float,
    timeout_s: float,
    observe: CallObserver | None = None,
) -> Completion:
    """One call with its retries; each try has `timeout_s`, and a try that takes longer is not repeated.

    `observe` is called with the outcome of every try that the policy did not refuse, once it has ended.

    A wait that the server asks for uses up no retry, MAX_ASKED_WAITS times. Nor does a call that went into a stale
    connection: it is sent again at once, over a new one. The server had most likely closed the connection before the
    call came, yet nobody can know; so `retries` counts it as what it is, a call that was sent once more.
    """
    tries = free = 0  # the free ones use up no retry
    while True:
        held = policy.hold(request)
        if held is not None:
            await held
        started = time.monotonic() if observe is not None else 0.0
        deadline = Deadline(timeout_s)
        try:
            with deadline:
                completion = _checked(await policy.complete(request), policy)
            if observe is not None:
                observe(CallOutcome(time.monotonic() - started, ok=True, overloaded=False))
            return completion if not tries else msgspec.structs.replace(completion, retries=tries)
        except TimeoutError:
            if not deadline.expired():
                raise  # the policy's own
            problem = InfraError(f"no answer within {timeout_s:g} s", kind="call_timeout", again=False)
            problem.retries = tries
            _report(observe, problem, started)
            raise problem from None
        except PolicyError as problem:
            problem.retries = tries
            raise
        except InfraError as problem:
            problem.retries = tries
            _report(observe, problem, started)
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


def _report(observe: CallObserver | None, problem: InfraError, started: float) -> None:
    """Tell the observer of a try that failed."""
    if observe is not None:
        overloaded = problem.kind in ("http_429", "http_503", "call_timeout")
        observe(CallOutcome(time.monotonic() - started, ok=False, overloaded=overloaded))


def _checked(completion: Completion, policy: Policy) -> Completion:
    """The completion, where it can be recorded; PolicyError where it cannot, since a policy may be a user's code."""
    if not isinstance(completion, Completion):
        raise PolicyError(
            f"policy {policy.model!r} returned {type(completion).__name__}; expected a Completion",
            kind="bad_completion",
        )
    if (
        type(completion.content) in _TEXT
        and type(completion.finish) in _TEXT
        and type(completion.model) in _TEXT
        and type(completion.usage) in _USAGE
        and completion.tool_calls == ()
        and completion.malformed == ()
        and completion.tokens is None
        and completion.reasoning is None
        and completion.version is None
        and completion.first_token_s is None
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
