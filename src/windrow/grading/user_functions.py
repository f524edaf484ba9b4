"""Scorers made from a user's functions: functions of a rollout, of a group, or with the signature of a trainer's
reward function.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from windrow.envs import BaseEnv, Episode, ScoreContext
from windrow.envs.scoring import AnyScorer, Verdict
from windrow.errors import ScorerError
from windrow.grading.base import BaseScorer
from windrow.grading.group_members import entrants_of
from windrow.grading.isolated_scorer import IsolatedFunction, check_can_be_isolated
from windrow.grading.reward_functions import Logged, arguments, is_reward_function, parameters_of, rewards_of
from windrow.identity import source_hash
from windrow.records import AttemptId, Json, RolloutGroup, Score
from windrow.registry import name_of
from windrow.util.guard import blocks, guarded
from windrow.util.threads import in_thread

IN_A_THREAD = "from now on it runs in a thread with a loop of its own"


class _Function(BaseScorer):
    """`isolated`: it judges in confined processes. `inline`: this is such a process, which has no threads."""

    def __init__(
        self,
        name: str,
        weight: float,
        settings: Mapping[str, Json],
        function: Callable[..., Any],
        *,
        isolate: bool = False,
        inline: bool = False,
    ) -> None:
        super().__init__(name, weight, settings)
        self.version = getattr(function, "version", None)
        self.source = source_hash(function)
        self.asks_judge = "ctx" in parameters_of(function)
        self.after_commit = bool(getattr(function, "after_commit", False)) or self.asks_judge
        self._function = function
        self._inline = inline
        self._isolated: IsolatedFunction | None = None
        if isolate:
            check_can_be_isolated(function, name, asks_judge=self.asks_judge)
            target = name if ":" in name else name_of(function)
            self._isolated = IsolatedFunction(
                target, self.source, name=name, weight=weight, settings=settings
            )

    async def _called(self, *arguments: Any, ctx: ScoreContext, **named: Any) -> Any:
        """What the function gives. A plain one runs in a thread, and so does one that was found to block; but not one
        that asks a judge, whose connections belong to this loop."""
        given = {**named, **self.settings, **({"ctx": ctx} if self.asks_judge else {})}
        work = partial(self._function, *arguments, **given)
        who = f"scorer {self.name!r}"
        if self._inline:
            result = work()
            return await result if inspect.isawaitable(result) else result
        if blocks(who) and not self.asks_judge:
            return await in_thread(_to_its_end, work)
        result = work() if inspect.iscoroutinefunction(self._function) else await in_thread(work)
        if inspect.isawaitable(result):
            result = await guarded(result, who, *(() if self.asks_judge else (IN_A_THREAD,)))
        return result


class FunctionScorer(_Function):
    """`(task, reply) -> float | dict | Score`, plain or async."""

    async def judge(self, episode: Episode, ctx: ScoreContext) -> Verdict:
        if self._isolated is not None:
            return await self._isolated.judge(episode)
        return self.verdict(await self._called(episode.task, episode.reply, ctx=ctx))


class GroupFunctionScorer(_Function):
    """`(group) -> {(id, attempt): float | dict | Score | None}`, with the attribute `unit = "group"`."""

    async def judge_group(self, group: RolloutGroup, ctx: ScoreContext) -> Mapping[AttemptId, Verdict | None]:
        if self._isolated is not None:
            return await self._isolated.judge_group(group)
        return _by_attempt(self, f"scorer {self.name!r}", await self._called(group, ctx=ctx))


class RewardFunctionScorer(_Function):
    """`(prompts, completions, completion_ids, **columns) -> list[float | None]`, as trainers call it."""

    async def judge_group(self, group: RolloutGroup, ctx: ScoreContext) -> Mapping[AttemptId, Verdict | None]:
        if self._isolated is not None:
            return await self._isolated.judge_group(group)
        members = [entrant.rollout for entrant in entrants_of(group)]
        verdicts: dict[AttemptId, Verdict | None] = {rollout.key: None for rollout in group.rollouts}
        if not members:
            return verdicts
        logged = Logged()
        try:
            named = arguments(self._function, group, members, logged, self.settings)
            rewards = rewards_of(await self._called(ctx=ctx, **named), len(members))
        except ScorerError as problem:
            message = f"scorer {self.name!r}: {problem}"
            raise ScorerError(message, kind=problem.kind, retryable=problem.retryable) from None
        metrics = {f"{self.name}.{name}": value for name, value in logged.metrics.items()}
        for index, (rollout, reward) in enumerate(zip(members, rewards, strict=True)):
            if reward is not None:
                score = Score(reward, evidence=logged.evidence(index, len(members)), metrics=metrics)
                verdicts[rollout.key] = self.verdict(score)
        return verdicts


class EnvGroupScorer(BaseScorer):
    """An environment's own `score_group`."""

    def __init__(self, env: type[BaseEnv], settings: Mapping[str, Json]) -> None:
        super().__init__("env", 1.0, settings)
        self.asks_judge = True
        self.env = name_of(env)
        self.version = env.version
        self.source = source_hash(env)
        self._env = env

    async def judge_group(self, group: RolloutGroup, ctx: ScoreContext) -> Mapping[AttemptId, Verdict | None]:
        who = f"{self.env}.score_group()"
        return _by_attempt(self, who, await guarded(self._env.score_group(self.settings, group, ctx), who))


def _by_attempt(scorer: BaseScorer, who: str, returned: Any) -> dict[AttemptId, Verdict | None]:
    """Return the verdicts that a user's function gave to a group."""
    if not isinstance(returned, Mapping):
        raise ScorerError(
            f"{who} returned {type(returned).__name__}; expected a dict by rollout.key: (id, attempt)"
        )
    return {key: None if score is None else scorer.verdict(score) for key, score in returned.items()}


def scorer_of(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    weight: float = 1.0,
    settings: Mapping[str, Json] | None = None,
    isolate: bool = False,
    inline: bool = False,
) -> AnyScorer:
    """Return the scorer for a function: its attribute `unit` decides, or else its parameters.

    With `isolate`, or with an attribute of that name, it judges in confined processes; `inline` is for those.
    """
    kind: type[FunctionScorer | GroupFunctionScorer | RewardFunctionScorer] = FunctionScorer
    if getattr(function, "unit", "rollout") == "group":
        kind = GroupFunctionScorer
    elif is_reward_function(function):
        kind = RewardFunctionScorer
    isolate = not inline and (isolate or bool(getattr(function, "isolate", False)))
    return kind(name or name_of(function), weight, settings or {}, function, isolate=isolate, inline=inline)


def _to_its_end(work: Callable[[], Any]) -> Any:
    """Run a plain or an async function to its end here, and return its result."""

    async def whole() -> Any:
        result = work()
        return await result if inspect.isawaitable(result) else result

    return asyncio.run(whole())
