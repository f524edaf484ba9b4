"""An agent drives one episode through a session; the session records, counts and enforces the limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from windrow.records import Json, Message


class Session(Protocol):
    """What an agent may do. After any call `ended` may be true: then the agent returns."""

    @property
    def ended(self) -> bool: ...

    @property
    def messages(self) -> tuple[Message, ...]: ...

    async def complete(self) -> Message | None:
        """Ask the policy with all messages so far. None when a limit or a failure ended the episode instead."""

    async def step(self, reply: Message) -> None:
        """Run the reply's tool calls, then let the environment answer; its messages are added."""


class Agent:
    version: ClassVar[str | int | None] = None

    def __init__(self, settings: Mapping[str, Json]) -> None:
        self.settings = settings

    async def run(self, session: Session) -> None:
        raise NotImplementedError

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        """Raise ValueError with what is wrong with the settings; called once, before the run."""
