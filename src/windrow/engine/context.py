"""The run context: what all episodes of a run share, and what a task's row changes of it.

It holds the policy, the environment, the agent, the tools, the scorers and the limits; `components` makes them from a
configuration. A row may name an environment, an agent, sampling or limits of its own: `task_setup` is what applies to a task.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack

import msgspec

from windrow.agents import Agent, find_agent
from windrow.config import LimitsConfig, Price
from windrow.envs import Ask, BaseEnv, EnvContext, Match, find_env, nobody
from windrow.envs.scoring import AnyScorer, GroupScorer, Scorer
from windrow.envs.seating import Seating
from windrow.policies import Policy
from windrow.policies.base import PolicyNeeds, open_policy
from windrow.policies.calls import CallObserver
from windrow.policies.capture import capture_level
from windrow.records import (
    OPPONENT,
    Capture,
    Json,
    PolicyRecord,
    Task,
    Usage,
)
from windrow.registry import name_of
from windrow.tasks.plan import Slot
from windrow.tasks.prompts import PromptTemplate
from windrow.tasks.row_formats import limits_of, own_env, sampling_of
from windrow.tools.toolbox import Toolbox
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


class Model(msgspec.Struct, frozen=True):
    """A model, and how it is asked: the policy itself, an opponent, or one that an environment or a scorer asks."""

    policy: Policy
    sampling: dict[str, Json]
    call_retries: int = 5
    backoff_s: float = 0.5
    price: Price | None = None
    capture: Capture = "text"  # the most that it is asked to give of a reply
    observe: CallObserver | None = None  # is called with the outcome of every try of a call

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


class RunContext:
    """What all episodes of a run share. `open` comes before the first episode, `close` after the last."""

    def __init__(
        self,
        *,
        policy: Policy,
        env: type[BaseEnv],
        agent: type[Agent],
        models: Mapping[str, Model] | None = None,
        env_settings: dict[str, Json] | None = None,
        seating: Seating | None = None,
        agent_settings: dict[str, Json] | None = None,
        scorers: Sequence[AnyScorer] = (),
        toolbox: Toolbox | None = None,
        prompt: PromptTemplate | None = None,
        sampling: dict[str, Json] | None = None,
        forced_sampling: frozenset[str] = frozenset(),
        seeds: str = "none",
        limits: LimitsConfig | None = None,
        forced_limits: frozenset[str] = frozenset(),
        call_retries: int = 5,
        backoff_s: float = 0.5,
        behaviour: str = "",
        grading: str | None = None,
        capture: Capture | None = None,
        top_logprobs: int = 0,
        price: Price | None = None,
        redact: Callable[[str], None] = lambda secret: None,
    ) -> None:
        self.policy = policy
        self.models = models or {}
        self.toolbox = toolbox or Toolbox()
        self.prompt = prompt
        self.limits = limits or LimitsConfig()
        self.behaviour = behaviour
        self.grading = grading
        self._capture = capture
        self.top_logprobs = top_logprobs
        self.env = env  # the run's own; a row may name another
        self.policy_model = Model(policy, sampling or {}, call_retries, backoff_s, price, self.capture(env))
        self._redact = redact
        self.agent_name = name_of(agent)
        self._env_settings = env_settings or {}
        self._seating = seating or Seating()
        self._agent_type = agent
        self._agent_settings = agent_settings or {}
        self._agent = agent(self._agent_settings)  # one for all episodes
        self._scorers = tuple(scorers)
        self._sampling = sampling or {}
        self._forced = forced_sampling
        self._forced_limits = forced_limits
        self._seeds = seeds
        self.blobs: Blobs = MemoryBlobs()
        self._episode_setups: dict[tuple[str | None, str | None, str | None], EpisodeSetup] = {}
        self._last_setup: tuple[Task | None, TaskSetup | None] = (None, None)

    def observed_by(self, observe: CallObserver) -> RunContext:
        """The same context, in which `observe` is called with every try of a call to the policy."""
        observed = copy.copy(self)  # the episode setups stay shared: `close` of either sees them all
        observed.policy_model = msgspec.structs.replace(self.policy_model, observe=observe)
        return observed

    def task_setup(self, task: Task) -> TaskSetup:
        """What applies to every attempt at a task. The last one is kept, since the samples of a task start one after another."""
        last, setup = self._last_setup
        if last is not task or setup is None:
            episode = self.episode_setup(task)
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
        own = (own_env(row), task.get("agent"), self._agent_type.called(self._agent_settings, row))
        setup = self._episode_setups.get(own)
        if setup is None:
            setup = self._episode_setups[own] = self._make_episode_setup(*own)
        return setup

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
            return self._sampling
        return {**self._sampling, **{k: v for k, v in row.items() if v is not None and k not in self._forced}}

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
        self, env_name: str | None, agent_name: str | None, called: str | None
    ) -> EpisodeSetup:
        """`called`: the name under which the run's own agent plays the row."""
        env, settings, seating = self.env, self._env_settings, self._seating
        if env_name is not None and env_name != name_of(env):
            env, settings, seating = find_env(env_name), {}, Seating()
        agent, called = self._agent, called or self.agent_name
        if agent_name is not None and agent_name != self.agent_name:
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
