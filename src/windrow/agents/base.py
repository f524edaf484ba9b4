"""An agent drives one episode through a session; the session records, counts and enforces the limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

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


class Agent:
    version: ClassVar[str | int | None] = None

    def __init__(self, settings: Mapping[str, Json]) -> None:
        self.settings = settings

    async def run(self, session: Session) -> None:
        raise NotImplementedError

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        """Raise ValueError with what is wrong with the settings; called once, before the run."""
