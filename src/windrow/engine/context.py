"""The run context: what all episodes of a run share, and what a task's row changes of it.

It holds the policy, the environment, the agent, the tools, the scorers and the limits; `components` makes them from a
configuration. A row may name an environment, an agent, sampling or limits of its own: `task_setup` is what applies to a task.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack

import msgspec

from windrow.agents import Agent, find_agent
from windrow.config import LimitsConfig, LoadedConfig
from windrow.engine.components import Components
from windrow.engine.models import Model
from windrow.envs import Ask, BaseEnv, EnvContext, Match, find_env, nobody
from windrow.envs.scoring import AnyScorer, GroupScorer, Scorer
from windrow.envs.seating import Seating
from windrow.errors import UsageError
from windrow.policies.calls import CallObserver
from windrow.policies.capture import capture_level
from windrow.records import (
    OPPONENT,
    Capture,
    Json,
    PolicyRecord,
    Task,
)
from windrow.registry import name_of
from windrow.tasks.plan import Slot
from windrow.tasks.row_formats import limits_of, own_env, sampling_of
from windrow.tasks.trust import Demand, RowTrust, module_demands
from windrow.util.blobs import Blobs, MemoryBlobs


class EpisodeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Who takes part in a task's episode: the run's environment and agent, or the row's own."""

    env: type[BaseEnv]
    env_name: str
    env_settings: dict[str, Json]
    seating: Seating  # of a match
    agent: Agent
    agent_name: str
    scorers: tuple[AnyScorer, ...]
    before_commit: tuple[Scorer, ...]  # those of them whose verdict is in the rollout's own line


class TaskSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What all attempts at a task have in common."""

    episode: EpisodeSetup
    policy: PolicyRecord
    limits: LimitsConfig
    capture: Capture


class RunContext:
    """Everything that the episodes of a run share: the components, the scorers, the settings; each task's part of them."""

    def __init__(
        self,
        components: Components,
        loaded: LoadedConfig,
        *,
        scorers: Sequence[AnyScorer],
        behaviour: str,
        grading: str | None,
        redact: Callable[[str], None],
        trust: RowTrust,
    ) -> None:
        """`behaviour` and `grading` are the run's fingerprints. `redact` keeps a text out of all files and messages.
        `trust` is what rows may demand.
        """
        run = loaded.run
        self.policy = components.policy
        self.models = components.models
        self.toolbox = components.toolbox
        self.prompt = components.prompt
        self.limits = run.limits
        self.behaviour = behaviour
        self.grading = grading
        self.top_logprobs = run.top_logprobs or 0
        self.env = components.env  # the run's own; a row may name another
        self.agent_name = name_of(components.agent)
        self.policy_model = Model(
            components.policy,
            components.sampling,
            run.policy.call_retries,
            run.policy.backoff_s,
            components.price,
            components.capture,
        )
        self.blobs: Blobs = MemoryBlobs()
        self._components = components
        self._agent = components.agent(components.agent_settings)
        self._scorers = tuple(scorers)
        self._capture = run.capture
        self._seeds = run.seeds
        self._forced_sampling = frozenset(loaded.forced_sampling)
        self._forced_limits = frozenset(loaded.forced_limits)
        self._redact = redact
        self.trust = trust
        self._episode_setups: dict[tuple[str | None, str | None, str | None], EpisodeSetup] = {}
        self._last_setup: tuple[Task | None, TaskSetup | None] = (None, None)

    def observed_by(self, observe: CallObserver) -> RunContext:
        """The same context, in which `observe` is called with every try of a call to the policy."""
        observed = copy.copy(self)  # the episode setups stay shared: `close` of either sees them all
        observed.policy_model = msgspec.structs.replace(self.policy_model, observe=observe)
        return observed

    def task_setup(self, task: Task) -> TaskSetup:
        """What applies to every attempt at a task. The last one is kept, since the samples of a task start one after another.

        UsageError if the row demands what it may not: nothing leads to an episode but through here.
        """
        last, setup = self._last_setup
        if last is not task or setup is None:
            episode = self.episode_setup(task)
            self._check_trust(episode.env.demands(task.data or {}), task.key)
            setup = TaskSetup(
                episode=episode,
                policy=PolicyRecord(
                    model=self.policy.model, sampling=self.sampling(task), fingerprint=self.behaviour
                ),
                limits=self.limits_of(task),
                capture=self.capture(episode.env),
            )
            self._last_setup = task, setup
        return setup

    def episode_setup(self, task: Task) -> EpisodeSetup:
        """Who takes part in a task's episode. Tasks that ask for the same share one setup."""
        row = task.data or {}
        own = (
            own_env(row),
            task.get("agent"),
            self._components.agent.called(self._components.agent_settings, row),
        )
        setup = self._episode_setups.get(own)
        if setup is None:
            setup = self._episode_setups[own] = self._make_episode_setup(*own, task.key)
        return setup

    def _check_trust(self, demands: Iterable[Demand], key: str) -> None:
        """Again, though the survey of the rows has done so: a replayed row and a kept survey come from a run directory."""
        try:
            self.trust.check(demands)
        except ValueError as problem:
            raise UsageError(f"task {key}: {problem}") from None

    def agents(self, task: Task) -> dict[str, int]:
        """The agents of a task's episode and how many seats each has; the run's own comes first."""
        setup = self.episode_setup(task)
        if not issubclass(setup.env, Match):
            return {setup.agent_name: 1}
        seats, opponents = (
            setup.env.count_seats(setup.env_settings, task.data or {}),
            len(setup.seating.opponents),
        )
        own = {setup.agent_name: seats - opponents}
        return own | {OPPONENT: opponents} if opponents else own

    def sampling(self, task: Task) -> dict[str, Json]:
        """A flag wins over the row, the row over the configuration."""
        row = sampling_of(task.data or {})
        if not row:
            return self._components.sampling
        return {
            **self._components.sampling,
            **{k: v for k, v in row.items() if v is not None and k not in self._forced_sampling},
        }

    def limits_of(self, task: Task) -> LimitsConfig:
        """The limits of a task's episode: a flag wins over the row, the row over the configuration."""
        row = limits_of(task.data or {}, task.split)
        own = {name: value for name, value in row.items() if name not in self._forced_limits}
        return msgspec.structs.replace(self.limits, **own) if own else self.limits

    def env_context(self, slot: Slot, ask: Ask = nobody) -> EnvContext:
        return EnvContext(
            id=slot.id,
            attempt=slot.attempt,
            seed=slot.seed,
            prompt=self.prompt,
            complete=ask,
            blobs=self.blobs,
            redact=self._redact,
        )

    async def open(
        self, notify: Callable[[str], None] = lambda message: None, blobs: Blobs | None = None
    ) -> None:
        """Called once before the first episode; raises EndpointError when a model cannot serve the run.

        `notify` is called with what the user should know of an endpoint while the run goes on. `blobs` keeps large bytes, such as
        images, of the run; the default keeps them in memory.
        """
        self.blobs = blobs or self.blobs
        await self.policy_model.open(notify, top_logprobs=self.top_logprobs)
        for model in self.models.values():
            await model.open(notify)
        await self.toolbox.open()
        await self._agent.open(notify)

    async def close(self) -> None:
        """Called once, after the last episode, also when `open` failed."""
        async with AsyncExitStack() as stack:  # each is closed, whatever the others do
            stack.push_async_callback(self.policy.close)
            for model in self.models.values():
                stack.push_async_callback(model.policy.close)
            stack.push_async_callback(self.toolbox.close)
            stack.push_async_callback(self._agent.close)
            shared = {setup.env: setup.env_settings for setup in self._episode_setups.values()}
            for env, settings in shared.items():
                stack.push_async_callback(env.finish, settings)

    def capture(self, env: type[BaseEnv]) -> Capture:
        """How much is kept of an episode's tokens: as the run is configured, else the environment's default, else the policy's."""
        usual = env.capture or self.policy.default_capture
        return capture_level(self._capture, usual, top=self.top_logprobs)

    def seed(self, seed: int, sample: int) -> int | None:
        """The seed that is sent with an attempt's calls."""
        return {"id": seed, "sample": sample}.get(self._seeds)

    def _make_episode_setup(
        self, env_name: str | None, agent_name: str | None, called: str | None, key: str
    ) -> EpisodeSetup:
        """`called`: the name under which the run's own agent plays the row; `key`: of the task, for messages."""
        components = self._components
        env, settings, seating = components.env, components.env_settings, components.seating
        if env_name is not None and env_name != name_of(env):
            self._check_trust(module_demands(env_name, "env"), key)
            env, settings, seating = find_env(env_name), {}, Seating()
        agent, called = self._agent, called or self.agent_name
        if agent_name is not None and agent_name != self.agent_name:
            self._check_trust(module_demands(agent_name, "agent"), key)
            row_agent = find_agent(agent_name)
            agent, called = row_agent({}), name_of(row_agent)
        scorers = tuple(scorer for scorer in self._scorers if scorer.env in (None, name_of(env)))
        return EpisodeSetup(
            env=env,
            env_name=name_of(env),
            env_settings=settings,
            seating=seating,
            agent=agent,
            agent_name=called,
            scorers=scorers,
            before_commit=tuple(
                scorer
                for scorer in scorers
                if not isinstance(scorer, GroupScorer) and not scorer.after_commit
            ),
        )
