"""`remote`: nobody here answers, since the agent has a model of its own where it plays."""

from __future__ import annotations

from windrow.errors import PolicyError
from windrow.policies.base import ANY_SAMPLING, Completion, Policy, Request

REMOTE = "remote"


class RemotePolicy(Policy):
    """Stands where a run has its policy. What is asked of the sampling is passed on by the agent."""

    name = REMOTE
    model = REMOTE
    accepts = ANY_SAMPLING
    default_capture = "tokens"
    captures = frozenset({"none", "text", "tokens"})

    async def complete(self, request: Request) -> Completion:
        raise PolicyError("the agent plays by itself: there is no policy to ask", kind="no_policy")
