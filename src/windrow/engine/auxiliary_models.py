"""Models beside the policy: an environment asks them by name (`ctx.complete`), for example to simulate a user.

Their calls are no turns of the episode. Their replies are recorded where the environment passes them on; their costs
are the metrics `<name>_calls`, `<name>_prompt_tokens`, `<name>_completion_tokens` and `<name>_seconds`.
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


class AuxiliaryModels:
    """The auxiliary models of one episode. An overload is a failure of the infrastructure; a refusal is one of the
    environment."""

    def __init__(self, slot: Slot, context: RunContext, recorder: Recorder) -> None:
        self._slot = slot
        self._context = context
        self._recorder = recorder
        self._call_count = 0

    async def __call__(self, name: str, messages: Sequence[Message | Mapping[str, Any]]) -> Completion:
        model = self._context.models.get(name)
        if model is None:
            names = ", ".join(self._context.models) or "none"
            raise EnvError(f"the environment has no model {name!r} (its models: {names})", kind="no_model")
        freezer = Freezer()
        request = Request(
            messages=await shown(
                [freezer.message(message, "env") for message in messages], self._context.blobs
            ),
            tools=(),
            sampling=model.sampling,
            id=f"{self._slot.id}:{name}",
            attempt=self._slot.attempt,
            turn=self._call_count,
        )
        self._call_count += 1
        started = time.monotonic()
        try:
            completion = await complete(
                model.policy,
                request,
                retries=model.call_retries,
                backoff_s=model.backoff_s,
                timeout_s=self._context.limits.call_timeout_s,
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
