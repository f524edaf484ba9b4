"""Looking up messages: which recorded messages an agent means when it sends messages of its own choosing.

Two messages are the same if a policy sees the same of them (role, content, calls, name, reasoning). So an agent may
keep its history as it likes: as messages of the session, as dicts, as a sliding window.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from windrow.records import Message

Ranges = tuple[tuple[int, int], ...]  # of message indexes: (start, stop), as in slices

_encode = msgspec.json.Encoder().encode


class MessageLookup:
    """Finds messages among the recorded ones, which only ever grow.

    A message that is sent after the policy's last reply is looked for only after that reply: the same text before it
    was another message.
    """

    def __init__(self, recorded: Sequence[Message]) -> None:
        self._recorded = recorded
        self._key_by_identity: dict[int, bytes] = {}
        self._keys: list[bytes] = []  # by message index
        self._indexes: dict[bytes, list[int]] = {}  # by key, ascending
        self._last_reply = -1  # the index of the policy's last reply

    def holds(self, message: object) -> bool:
        """Whether this very object is recorded."""
        return id(message) in self._key_by_identity

    def missing(self, messages: Sequence[Message]) -> list[Message]:
        """The messages that are not recorded yet, each once, in their order."""
        self._update()
        missing: dict[bytes, Message] = {}
        for message, key, after in zip(messages, *self._keys_of(messages), strict=True):
            indexes = self._indexes.get(key)
            if indexes is None or indexes[-1] <= after:
                missing.setdefault(key, message)
        return list(missing.values())

    def ranges(self, messages: Sequence[Message]) -> Ranges:
        """The ranges of recorded messages that make up `messages`, in order. All of them must be recorded.

        Where a message is recorded several times, the longest run wins, and among those the latest.
        """
        self._update()
        keys, after = self._keys_of(messages)
        ranges: list[tuple[int, int]] = []
        position = 0
        while position < len(keys):
            starts = [index for index in self._indexes.get(keys[position], ()) if index > after[position]]
            length, start = max((self._run_length(start, keys, position), start) for start in starts)
            if ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], start + length)
            else:
                ranges.append((start, start + length))
            position += length
        return tuple(ranges)

    def _keys_of(self, messages: Sequence[Message]) -> tuple[list[bytes], list[int]]:
        """The keys of the messages, and for each the index after which it is looked for."""
        keys = [self._key_by_identity.get(id(message)) or _key(message) for message in messages]
        reply = self._keys[self._last_reply] if self._last_reply >= 0 else None
        last = max((position for position, key in enumerate(keys) if key == reply), default=len(keys))
        return keys, [self._last_reply if position > last else -1 for position in range(len(keys))]

    def _update(self) -> None:
        """Take in the messages that were recorded since the last call."""
        for index in range(len(self._keys), len(self._recorded)):
            message = self._recorded[index]
            key = _key(message)
            self._key_by_identity[id(message)] = key
            self._keys.append(key)
            self._indexes.setdefault(key, []).append(index)
            if message.origin == "policy":
                self._last_reply = index

    def _run_length(self, start: int, keys: list[bytes], position: int) -> int:
        """How many recorded messages from `start` on equal those from `position` on."""
        length = 0
        while (
            start + length < len(self._keys)
            and position + length < len(keys)
            and self._keys[start + length] == keys[position + length]
        ):
            length += 1
        return length


def _key(message: Message) -> bytes:
    """The message as a policy sees it: without its origin."""
    return _encode(msgspec.structs.replace(message, origin="task", turn=None))
