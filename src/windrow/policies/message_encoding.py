"""Messages as JSON, each encoded once an episode.

Every request of a conversation sends all of it again. What a message is on the wire depends on the message and the
dialect alone, so its bytes are kept from one request to the next, and a turn costs what is new in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_

import msgspec

from windrow.policies.wire import encode
from windrow.records import Json, Message

Items = Callable[[Message], list[Json]]  # what a dialect sends for a message: nothing, an object, or several


class MessageCache:
    """The encoded messages of an episode's last request.

    A message is recognised as the object that it is, whatever it says. Content in parts is encoded anew each time: it
    holds images, which are not worth keeping twice, in lists that a policy may change.
    """

    __slots__ = ("_encoded", "_items", "_messages")

    def __init__(self) -> None:
        self._items: Items | None = None
        self._messages: Sequence[Message] = ()
        self._encoded: list[bytes] = []

    def encoded(self, messages: Sequence[Message], items: Items) -> list[bytes]:
        """For each message its items, separated by commas; empty where it has none.

        `items` has to be the same function object in every request of a dialect.
        """
        if items is not self._items:
            self._items, self._messages, self._encoded = items, (), []
        previous, encoded = self._messages, self._encoded
        earlier: dict[int, bytes] = {}
        if len(previous) > len(messages) or not all(map(is_, previous, messages)):
            # A window that has moved, or an edited history: what stands in it may still be known.
            earlier = dict(zip(map(id, previous), encoded, strict=True))
            previous, encoded = (), []
        new = messages[len(previous) :]
        if not new:  # a call is tried again
            return encoded
        encoded = encoded + [earlier.get(id(message)) or encode_items(items(message)) for message in new]
        self._messages, self._encoded = messages, encoded
        if any(isinstance(message.content, list) for message in new):
            of_text = [
                index for index, message in enumerate(messages) if not isinstance(message.content, list)
            ]
            self._messages, self._encoded = (
                [messages[index] for index in of_text],
                [encoded[index] for index in of_text],
            )
        return encoded


def encode_items(items: list[Json]) -> bytes:
    """The elements of a JSON array, without its brackets."""
    return encode(items)[1:-1]


def json_array(elements: Sequence[bytes]) -> msgspec.Raw:
    """The array of elements that are encoded already; empty ones are left out."""
    return msgspec.Raw(b"[%b]" % b",".join(filter(None, elements)))
