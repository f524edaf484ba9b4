"""The prompt of a model call: which recorded messages it reads, and how the model sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windrow.engine.message_lookup import MessageLookup, Ranges
from windrow.engine.recorder import Recorder
from windrow.envs import Env
from windrow.records import Message
from windrow.util.blobs import Blobs, shown
from windrow.util.freeze import copied_messages


class PromptWindow:
    """Chooses the messages of each call of one episode: the agent's own, else those of the environment's `window`."""

    __slots__ = ("_blobs", "_copies", "_env", "_lookup", "_recorder")

    def __init__(self, env: Env, recorder: Recorder, blobs: Blobs) -> None:
        self._env = env
        self._recorder = recorder
        self._blobs = blobs
        self._lookup: MessageLookup | None = None  # of an agent that sends messages of its own
        self._copies: list[Message] = []  # of the recorded messages, for the environment's `window`

    def ranges(self, messages: Sequence[Message | Mapping[str, Any]] | None) -> Ranges:
        """The recorded messages that the next call reads. Messages of the agent's that are new are recorded first."""
        if messages is None:
            return self._env_window()
        recorder = self._recorder
        if self._lookup is None:
            self._lookup = MessageLookup(recorder.messages)
        lookup = self._lookup
        frozen = [
            message
            if isinstance(message, Message) and lookup.holds(message)
            else recorder.frozen((message,), "env")[0]
            for message in messages
        ]
        if not frozen:
            raise ValueError("complete() was given no messages")
        recorder.add(lookup.missing(frozen), "env")
        return lookup.ranges(frozen)

    def _env_window(self) -> Ranges:
        """The messages that the environment wants the policy to see."""
        count = len(self._recorder.messages)
        if type(self._env).window is Env.window:
            return ((0, count),)
        self._copies += copied_messages(self._recorder.messages[len(self._copies) :])
        ranges = tuple((start, stop) for start, stop in self._env.window(tuple(self._copies)))
        if not ranges or not all(0 <= start < stop <= count for start, stop in ranges):
            raise ValueError(f"window() gave {ranges}, which are no ranges of {count} messages")
        return ranges

    async def messages(self, ranges: Ranges) -> tuple[Message, ...]:
        """The messages of these ranges as the model sees them."""
        recorded = self._recorder.messages
        start, stop = ranges[0]
        selected = recorded[start:stop]
        for start, stop in ranges[1:]:
            selected += recorded[start:stop]
        if self._recorder.has_parts:
            return await shown(copied_messages(selected), self._blobs)
        return tuple(selected)  # texts cannot be changed
