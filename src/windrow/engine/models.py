"""A model and how it is asked: its sampling, its retries, its price, and how exactly its replies are kept."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from windrow.config import Price
from windrow.policies import Policy
from windrow.policies.base import PolicyNeeds, open_policy
from windrow.policies.calls import CallObserver
from windrow.records import Capture, Json, Usage


class Model(msgspec.Struct, frozen=True):
    """A model, and how it is asked: the policy itself, an opponent, or one that an environment or a scorer asks."""

    policy: Policy
    sampling: dict[str, Json]
    call_retries: int = 5
    backoff_s: float = 0.5
    price: Price | None = None
    capture: Capture = "text"  # the most that it is asked to give of a reply
    observe: CallObserver | None = None  # is told of every try of a call

    async def open(self, notify: Callable[[str], None], *, top_logprobs: int = 0) -> None:
        """Open the policy for what will be asked of it."""
        needs = PolicyNeeds(capture=self.capture, top_logprobs=top_logprobs, notify=notify)
        await open_policy(self.policy, needs)


def priced(usage: Usage | None, price: Price | None) -> Usage | None:
    """The usage of a call, with what it cost where a price is known."""
    if price is None or usage is None or usage.cost is not None:
        return usage
    cached = price.prompt if price.cached is None else price.cached
    cost = (
        (usage.prompt_tokens - usage.cached_tokens) * price.prompt
        + usage.cached_tokens * cached
        + usage.completion_tokens * price.completion
    )
    return msgspec.structs.replace(usage, cost=cost / 1e6)
