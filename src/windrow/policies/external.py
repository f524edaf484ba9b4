"""`remote`: the policy of a run whose agent plays elsewhere, with its own model. It cannot be called."""

from __future__ import annotations

from windrow.errors import PolicyError
from windrow.policies.base import ANY_SAMPLING, Completion, Policy, Request

REMOTE = "remote"


class RemotePolicy(Policy):
    """Takes the policy's place in such a run. The agent passes the sampling options on."""

    name = REMOTE
    model = REMOTE
    accepts = ANY_SAMPLING
    default_capture = "tokens"
    captures = frozenset({"none", "text", "tokens"})

    async def complete(self, request: Request) -> Completion:
        raise PolicyError("the agent plays by itself: there is no policy to ask", kind="no_policy")
