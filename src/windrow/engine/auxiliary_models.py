"""Models beside the policy: an environment asks them by name (`ctx.complete`), say to have one play the user.

They are no turns of the episode. What they say is recorded where the environment passes it on; what they cost is in
the metrics `<name>_calls`, `<name>_prompt_tokens`, `<name>_completion_tokens` and `<name>_seconds`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from windrow.engine.context import RunContext
from windrow.engine.recorder import Recorder
from windrow.errors import EnvError, PolicyError
from windrow.policies import Completion, Request
from windrow.policies.calls import complete
from windrow.records import Message
from windrow.tasks.plan import Slot
from windrow.util.blobs import shown
from windrow.util.freeze import Freezer


class Asking:
    """Asks on behalf of one episode. An overload is infrastructure's failure; a refusal is the environment's."""

    def __init__(self, slot: Slot, context: RunContext, recorder: Recorder) -> None:
        self._slot = slot
        self._world = context
        self._recorder = recorder
        self._asked = 0

    async def __call__(self, name: str, messages: Sequence[Message | Mapping[str, Any]]) -> Completion:
        model = self._world.models.get(name)
        if model is None:
            known = ", ".join(self._world.models) or "none"
            raise EnvError(f"the environment has no model {name!r} (its models: {known})", kind="no_model")
        freezer = Freezer()
        request = Request(
            messages=await shown(
                [freezer.message(message, "env") for message in messages], self._world.blobs
            ),
            tools=(),
            sampling=model.sampling,
            id=f"{self._slot.id}:{name}",
            attempt=self._slot.attempt,
            turn=self._asked,
        )
        self._asked += 1
        started = time.monotonic()
        try:
            completion = await complete(
                model.policy,
                request,
                retries=model.call_retries,
                backoff_s=model.backoff_s,
                timeout_s=self._world.limits.call_timeout_s,
            )
        except PolicyError as problem:
            raise EnvError(f"the model {name!r}: {problem}", kind=problem.kind, retryable=False) from problem
        finally:
            self._count(name, "calls", 1)
            self._count(name, "seconds", time.monotonic() - started)
        if completion.usage is not None:
            self._count(name, "prompt_tokens", completion.usage.prompt_tokens)
            self._count(name, "completion_tokens", completion.usage.completion_tokens)
        return msgspec.structs.replace(completion, content=freezer.text(completion.content or ""))

    def _count(self, name: str, what: str, amount: float) -> None:
        metrics = self._recorder.metrics
        metrics[f"{name}_{what}"] = metrics.get(f"{name}_{what}", 0.0) + amount
