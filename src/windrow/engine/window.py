"""Windows: which recorded messages an agent means when it asks with messages of its own choosing.

A message is known again by what a policy sees of it (role, content, calls, name, reasoning), so that an agent may
keep its history as it likes: as messages of the session, as dicts, as a sliding window.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from windrow.records import Message

Ranges = tuple[tuple[int, int], ...]

_encode = msgspec.json.Encoder().encode


class Window:
    """Finds messages among the recorded ones, which only ever grow.

    What follows the policy's last reply came to be after it: there a message that was said before is said again.
    """

    def __init__(self, recorded: Sequence[Message]) -> None:
        self._recorded = recorded
        self._keys: dict[int, bytes] = {}  # of the recorded messages, by identity
        self._seen: list[bytes] = []
        self._places: dict[bytes, list[int]] = {}
        self._reply = -1  # where the policy's last reply is

    def holds(self, message: object) -> bool:
        """Whether this very object is recorded."""
        return id(message) in self._keys

    def missing(self, messages: Sequence[Message]) -> list[Message]:
        """Those that are not recorded yet, in their order."""
        self._look()
        found: dict[bytes, Message] = {}
        for message, key, after in zip(messages, *self._wanted(messages), strict=True):
            places = self._places.get(key)
            if places is None or places[-1] <= after:
                found.setdefault(key, message)
        return list(found.values())

    def ranges(self, messages: Sequence[Message]) -> Ranges:
        """The ranges of recorded messages that, one after the other, are `messages`; all must be recorded.

        Of equal messages, those are meant that go on longest; of these, the latest.
        """
        self._look()
        wanted, after = self._wanted(messages)
        found: list[tuple[int, int]] = []
        at = 0
        while at < len(wanted):
            places = self._candidates(wanted[at], after[at])
            length, start = max((self._run(place, wanted, at), place) for place in places)
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], start + length)
            else:
                found.append((start, start + length))
            at += length
        return tuple(found)

    def _wanted(self, messages: Sequence[Message]) -> tuple[list[bytes], list[int]]:
        """The messages as they are known again, and for each the place after which it can be."""
        known = self._keys
        keys = [known.get(id(message)) or _seen(message) for message in messages]
        reply = self._seen[self._reply] if self._reply >= 0 else None
        last = max((at for at, key in enumerate(keys) if key == reply), default=len(keys))
        return keys, [self._reply if at > last else -1 for at in range(len(keys))]

    def _candidates(self, key: bytes, after: int) -> list[int]:
        return [place for place in self._places.get(key, ()) if place > after]

    def _look(self) -> None:
        for place in range(len(self._seen), len(self._recorded)):
            key = _seen(self._recorded[place])
            self._keys[id(self._recorded[place])] = key
            self._seen.append(key)
            self._places.setdefault(key, []).append(place)
            if self._recorded[place].origin == "policy":
                self._reply = place

    def _run(self, place: int, wanted: list[bytes], at: int) -> int:
        length = 0
        while (
            place + length < len(self._seen)
            and at + length < len(wanted)
            and self._seen[place + length] == wanted[at + length]
        ):
            length += 1
        return length


def _seen(message: Message) -> bytes:
    """The message as a policy sees it: without where it came from."""
    return _encode(msgspec.structs.replace(message, origin="task", turn=None))
