"""An agent drives one episode through a session; the session records, counts and enforces the limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from windrow.agents.external import Dispatch, Played
from windrow.records import Json, Message, Task
from windrow.tools import ToolResult


class Session(Protocol):
    """What an agent may do. After any call `ended` may be true: then the agent returns.

    An agent that returns earlier has given its answer: the last reply goes to the environment, if it has not been
    there, and unless that ends the episode it is completed with stop `answered`.
    """

    @property
    def ended(self) -> bool: ...

    @property
    def task(self) -> Task: ...

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages so far, in the order they came to be: copies."""

    @property
    def tools(self) -> tuple[dict[str, Json], ...]:
        """The schemas of the tools that the policy is shown: copies."""

    async def complete(self, messages: Sequence[Message | Mapping[str, Any]] | None = None) -> Message | None:
        """Ask the policy with all messages so far, or with these; None when the episode ended instead.

        What is not recorded yet is added first; what is, is known again, also as a dict, and not stored twice.
        """

    def add(self, messages: Sequence[Message | Mapping[str, Any]]) -> None:
        """Messages of the agent's own, recorded after all others."""

    async def call_tool(self, name: str, arguments: Mapping[str, Json] | str) -> ToolResult:
        """Run one tool, recorded on the last turn; the result is added as a message.

        Where the last reply asked for this very call, it is answered, and `step` does not run it again; otherwise
        the result is told in a user message, since servers refuse a tool message that answers no call.
        """

    async def step(self, reply: Message) -> None:
        """Run the reply's tool calls, then let the environment answer; its messages are added.

        Any reply that `complete` returned may be chosen, each once; what is recorded stands on the turn that gave it.
        """

    @property
    def dispatch(self) -> Dispatch:
        """What is sent along where the episode is played elsewhere."""

    def record(self, played: Played) -> None:
        """Write down an episode that was played elsewhere, and end it: for an agent that is `external`."""


class Agent:
    """Made once for a run and shared by its episodes: what belongs to one of them stays in `run`."""

    version: ClassVar[str | int | None] = None
    external: ClassVar[bool] = False  # plays elsewhere, with its own model: the run's policy is not asked
    plays_itself: ClassVar[bool] = False  # the former name of `external`: a subclass may set either
    env: ClassVar[str | None] = None  # the only environment that it plays in
    usual_timeout_s: ClassVar[float | None] = None  # of an episode, where the run sets none

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        names = ("external", "plays_itself")
        cls.external = cls.plays_itself = next(
            bool(vars(base)[name]) for base in cls.__mro__ for name in names if name in vars(base)
        )

    def __init__(self, settings: Mapping[str, Json]) -> None:
        self.settings = settings

    async def run(self, session: Session) -> None:
        raise NotImplementedError

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        """Raise ValueError with what is wrong with the settings; called once, before the run."""

    @classmethod
    def check_row(cls, settings: Mapping[str, Json], row: Mapping[str, Json]) -> None:
        """Raise ValueError with what is wrong with a task row; called for every row, before the run."""

    @classmethod
    def called(cls, settings: Mapping[str, Json], row: Mapping[str, Json]) -> str | None:
        """The name under which it plays this row, for the record, the limits and the metrics; None: its own."""
        return None

    @classmethod
    def identity(cls, settings: Mapping[str, Json]) -> Json:
        """The part of the settings that shapes behaviour, for the fingerprint: nothing volatile."""
        return settings

    async def open(self, notify: Callable[[str], None]) -> None:
        """Called once before the first episode; raises EndpointError when it cannot serve the run."""

    async def close(self) -> None:
        """Called once, after the last episode, also when `open` failed."""
