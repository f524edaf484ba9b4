"""A user's scorer in confined processes (`isolate: true`): for functions that evaluate what a model wrote.

The function sees what it would see in the run's own process, and its verdict is the same. So `isolate` is in no fingerprint. What it
may not do there (`util/confinement`) raises PermissionError, and then the grading has failed: there is no other verdict.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from windrow.envs import Episode
from windrow.envs.scoring import Verdict
from windrow.errors import ScorerError, UsageError
from windrow.grading.verdict_processes import Processes, decoded
from windrow.records import AttemptId, Json, RolloutGroup
from windrow.util.confinement import Confinement
from windrow.util.forked_calls import ForkServer

CPU_S = 60
MEMORY_BYTES = 4 * 2**30
_WORKER = "windrow.grading.isolated_worker"

_processes: dict[
    tuple[str | None, ...], Processes
] = {}  # by all that they depend on: runs of this process share them


class _Answer(msgspec.Struct, frozen=True):
    verdict: Verdict | None = None
    verdicts: list[tuple[AttemptId, Verdict | None]] | None = None
    error: str | None = None
    kind: str | None = None
    retryable: bool = False


class IsolatedFunction:
    """A function that can be imported as `function`, called in confined processes."""

    def __init__(
        self, function: str, source: str | None, *, name: str, weight: float, settings: Mapping[str, Json]
    ) -> None:
        self._who = f"scorer {name!r}"
        order = {"function": function, "name": name, "weight": weight, "settings": dict(settings)}
        argument = msgspec.json.encode(order).decode()
        path = [path or os.getcwd() for path in sys.path]
        key = (argument, source, *path)
        self._processes = _processes.get(key) or _processes.setdefault(key, _made(argument, path, self._who))

    async def judge(self, episode: Episode) -> Verdict:
        """The verdict on an episode, of which the function sees the task and the last reply."""
        last = next((m for m in reversed(episode.messages) if m.origin == "policy"), None)
        shown = msgspec.structs.replace(
            episode, messages=() if last is None else (last,), turns=(), state=None
        )
        answer = await self._answer(shown)
        if answer.verdict is None:
            raise ScorerError(f"{self._who}: its process gave no verdict")
        return answer.verdict

    async def judge_group(self, group: RolloutGroup) -> Mapping[AttemptId, Verdict | None]:
        answer = await self._answer(group)
        if answer.verdicts is None:
            raise ScorerError(f"{self._who}: its process gave no verdicts")
        return dict(answer.verdicts)

    async def _answer(self, shown: Episode | RolloutGroup) -> _Answer:
        said = await self._processes.ask_bytes(msgspec.msgpack.encode(shown), cpu_s=CPU_S)
        if said is None:
            raise ScorerError(
                f"{self._who} took more than {CPU_S} s of processor time", kind="timeout", retryable=False
            )
        answer = decoded(said, _Answer, self._who)
        if answer.error is not None:
            raise ScorerError(f"{self._who}: {answer.error}", kind=answer.kind, retryable=answer.retryable)
        return answer


def _made(argument: str, path: list[str], who: str) -> Processes:
    confinement = Confinement(memory_bytes=MEMORY_BYTES, scratch=True)
    server = ForkServer(_WORKER, argument=argument, path=path, confinement=confinement)
    return Processes(server, who=who, at_once=os.cpu_count() or 1)


def check_can_be_isolated(function: Callable[..., Any], name: str, *, asks_judge: bool) -> None:
    """Refuse a function that another process cannot import, or that needs what a confined one does not have."""
    if asks_judge:
        raise UsageError(
            f"scorer {name!r} asks a judge (`ctx`), which an isolated one cannot reach: leave out `isolate`"
        )
    if function.__module__ == "__main__" or "<" in function.__qualname__:
        raise UsageError(
            f"scorer {name!r} is to be isolated, and another process cannot import it: define it at the top of a module "
            f"of its own"
        )
