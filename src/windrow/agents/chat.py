"""`chat`: the policy answers, the environment answers back, until the episode ends."""

from __future__ import annotations

from collections.abc import Mapping

from windrow.agents.base import Agent, Session
from windrow.records import Json


class ChatAgent(Agent):
    name = "chat"
    version = 1

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        if settings:
            raise ValueError(f"'chat' has no setting {next(iter(settings))!r}")

    async def run(self, session: Session) -> None:
        while not session.ended:
            reply = await session.complete()
            if reply is not None and not session.ended:
                await session.step(reply)
