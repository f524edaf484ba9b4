"""The interface of an environment: one object per episode. The engine drives it and records what it returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from windrow.config import PolicyConfig, ScorerConfig
from windrow.policies import Completion
from windrow.policies.base import ForcedTokens
from windrow.records import (
    AttemptId,
    Capture,
    Json,
    Message,
    Rollout,
    RolloutGroup,
    Score,
    Status,
    Stop,
    Task,
    TeacherTokens,
    Turn,
)
from windrow.tasks.prompts import PromptTemplate
from windrow.tasks.trust import Demand
from windrow.tools import Tool, ToolResult
from windrow.util.blobs import Blobs, MemoryBlobs

T = TypeVar("T")

Messages = Sequence[Message | dict[str, Any]]
Ranges = Sequence[tuple[int, int]]  # of message indexes: [start, stop)


class Observation(msgspec.Struct, frozen=True):
    """The first messages of an episode (Message or dict), and the tools the policy may call."""

    messages: Messages
    tools: Sequence[Tool] = ()
    denied: Sequence[str] = ()  # tools that there are, and that it may not call: it is told so


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a reply asked for in words, and that the environment did; `error` says why it could not."""

    name: str
    arguments: Mapping[str, Json]
    started_at: float
    seconds: float
    error: str | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment did after a reply. `reward` enters the reward; `scores` and the rest are only recorded.

    `acts` are recorded as the turn's tool calls, and counted as such; the first message is what came of them. `done`
    ends the episode with stop `env_done`, unless `stop` says otherwise (`answered`, `parse_error`); a limit
    (`max_turns`) truncates it.
    """

    messages: Messages = ()
    acts: Sequence[Act] = ()
    reward: float | None = None
    done: bool = False
    stop: Stop | None = None
    scores: Mapping[str, float] | None = None
    metrics: Mapping[str, float] | None = None
    state: Json = None
    info: Json = None
    parse_error: str | None = None


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, read-only, for `score`."""

    task: Task
    messages: tuple[Message, ...]
    turns: tuple[Turn, ...]
    state: Json
    status: Status
    stop: Stop

    @property
    def reply(self) -> str:
        """The text of the policy's last message, empty if it never answered."""
        return next((m.text for m in reversed(self.messages) if m.origin == "policy"), "")


Ask = Callable[[str, Messages], Awaitable[Completion]]


async def nobody(name: str, messages: Messages) -> Completion:
    raise RuntimeError(f"there is no model {name!r} to ask")


class EnvContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine hands to an episode. Randomness that is derived from `seed` is reproducible.

    `complete(name, messages)` asks one of the environment's own models (`Env.models`), with its retries. `seats` is how
    many a match has. `blobs` keeps large bytes: `await ctx.blobs.image(…)` gives the part of a message that names an image.
    `redact(secret)` keeps a secret, such as a key that belongs to the task, out of every file from then on.
    """

    id: str
    attempt: int
    seed: int
    prompt: PromptTemplate | None = None
    complete: Ask = nobody
    seats: int = 1
    blobs: Blobs = msgspec.field(default_factory=MemoryBlobs)
    redact: Callable[[str], None] = lambda secret: None

    def conceal(self, secret: str) -> None:
        """The former name of `redact`."""
        self.redact(secret)


class ScoreContext(Protocol):
    """What a scorer may do beside reading the record: ask a judge, and name the file of an image."""

    async def ask(
        self,
        messages: Messages,
        read: Callable[[str], T | Awaitable[T]],
        *,
        about: str | None = None,
        judge: str = "judge",
    ) -> T:
        """What `read` makes of the judge's reply, plain or async; `about` says what is in question, for the record.

        A reply that `read` refuses (ValueError) is told to the judge, which is asked again; what stays unreadable
        raises ScorerError: a judgement is read, or it failed. The same messages are asked once in a run.
        """

    def blob_path(self, name: str) -> str | None:
        """The file that holds a blob of the record; None if there is none."""

    async def scored(self, given: ForcedTokens, *, top: int = 0, judge: str = "judge") -> TeacherTokens:
        """The given ids with the logprobs that the judge's model gives them, and its `top` likeliest tokens."""


class BaseEnv:
    """What every kind of environment has: settings, a version, and what is asked of the class itself.

    An instance is one episode, made anew for each attempt. `version` names its behaviour: change it and ids change.
    """

    version: ClassVar[str | int | None] = None
    capture: ClassVar[Capture | None] = None  # how much is kept of its episodes; None: what the policy says
    takes_prompt: ClassVar[bool] = False  # whether a prompt template (`ctx.prompt`) is used
    connects: ClassVar[bool] = False  # whether reset() starts or calls something, which a dry run does not do
    measured: ClassVar[frozenset[str]] = frozenset()  # metrics and entries of `info` that differ every time

    def __init__(self, settings: Mapping[str, Json], ctx: EnvContext) -> None:
        self.settings = settings
        self.ctx = ctx

    async def close(self) -> None:
        return None

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        """Raise ValueError with what is wrong with the settings; called once, before the run."""

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        """Raise ValueError with what is wrong with a task row; called for every row, before the run."""

    @classmethod
    def demands(cls, row: Mapping[str, Json]) -> Iterable[Demand]:
        """What a row names that this environment would import, start, reach, read from the environment or open.

        Called before `check_row` and before every episode: what the user has not allowed is refused first. It only
        looks at the row; ValueError says what is wrong with that.
        """
        return ()

    @classmethod
    def scorers(cls, settings: Mapping[str, Json]) -> Sequence[ScorerConfig]:
        """The scorers that judge its episodes where the run names none."""
        return ()

    @classmethod
    async def score_group(
        cls, settings: Mapping[str, Json], group: RolloutGroup, ctx: ScoreContext
    ) -> Mapping[AttemptId, Score | None]:
        """Judge the final attempts of a task's samples together, by (id, attempt), once all of them are on disk.

        None for a member: it does not apply to it. Runs again when the group has changed.
        """
        raise NotImplementedError

    @classmethod
    def models(cls, settings: Mapping[str, Json]) -> Mapping[str, PolicyConfig]:
        """The models that the environment asks itself, by name; opened and closed with the run."""
        return {}

    @classmethod
    def identity(cls, settings: Mapping[str, Json]) -> Json:
        """The part of the settings that shapes behaviour, for the fingerprint: nothing volatile.

        The models are counted without being named here.
        """
        return settings

    @classmethod
    async def finish(cls, settings: Mapping[str, Json]) -> None:
        """Close what its episodes shared in this process; called once, after the last of them."""

    @classmethod
    def aggregate(cls, rollouts: Sequence[Rollout]) -> Mapping[str, float]:
        """Extra metrics by name, for metrics.json; called after the run, once for each agent that played here.

        `rollouts` are the final attempts, failed ones too, without their messages and turns; usage is kept.
        """
        return {}


class Env(BaseEnv):
    """One episode of one policy.

    Called in this order: `reset` once; `step` after every reply, its tool calls already run; `score` once, also when
    a limit ended the episode; `close` once, always, bounded in time, also after a crash in `reset`.
    """

    async def reset(self, task: Task) -> Observation:
        raise NotImplementedError

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        raise NotImplementedError

    async def score(self, episode: Episode) -> Score | None:
        return None

    def window(self, messages: Sequence[Message]) -> Ranges:
        """The ranges of the messages so far that the policy is asked with, where the agent does not choose: all.

        What is left out stays in the record, where each message stands once: `Turn.reads` are these ranges.
        """
        return ((0, len(messages)),)
