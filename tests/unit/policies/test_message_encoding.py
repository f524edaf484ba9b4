"""Messages are encoded once an episode, by whatever dialect sends them."""

from __future__ import annotations

import msgspec

from windrow.policies.base import Request, Route
from windrow.policies.message_encoding import MessageCache, json_array
from windrow.records import Json, Message


def said(text: str) -> Message:
    return Message(role="user", content=text, origin="task")


class Dialect:
    """Sends a message as its text, and counts."""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def __call__(self, message: Message) -> list[Json]:
        self.encoded.append(message.text)
        return [message.content] if message.content else []


def sent(cache: MessageCache, messages: list[Message], dialect: Dialect) -> Json:
    return msgspec.json.decode(bytes(json_array(cache.encoded(messages, dialect))))


def test_a_growing_conversation_encodes_each_message_once() -> None:
    cache, dialect = MessageCache(), Dialect()
    messages = [said(str(number)) for number in range(9)]
    for count in (1, 1, 4, 9, 9):
        assert sent(cache, messages[:count], dialect) == [str(number) for number in range(count)]
    assert dialect.encoded == [str(number) for number in range(9)]


def test_a_window_that_moves_encodes_only_what_comes_into_it() -> None:
    cache, dialect = MessageCache(), Dialect()
    messages = [said(str(number)) for number in range(9)]
    for window in ([0, 1, 2], [0, 2, 3], [0, 3, 4], [4, 0]):
        assert sent(cache, [messages[at] for at in window], dialect) == [str(at) for at in window]
    assert dialect.encoded == ["0", "1", "2", "3", "4"]
    assert sent(cache, messages[:2], dialect) == ["0", "1"]  # what has left the window is not kept
    assert dialect.encoded[5:] == ["1"]


def test_a_message_that_sends_nothing_leaves_no_gap() -> None:
    cache, dialect = MessageCache(), Dialect()
    messages = [said(""), said("a"), said(""), said("b"), said("")]
    for count in range(1, 6):
        assert sent(cache, messages[:count], dialect) == ["a", "b"][: count // 2]


def test_content_in_parts_is_sent_as_it_is_now() -> None:
    cache, dialect = MessageCache(), Dialect()
    part = {"type": "text", "text": "before"}
    messages = [said("a"), Message(role="user", content=[part], origin="task"), said("b")]
    assert sent(cache, messages, dialect) == ["a", [part], "b"]
    part["text"] = "after"
    assert sent(cache, messages, dialect) == ["a", [{"type": "text", "text": "after"}], "b"]
    assert dialect.encoded == ["a", "before", "b", "after"]


def test_another_dialect_is_sent_nothing_of_the_first() -> None:
    cache, one, other = MessageCache(), Dialect(), Dialect()
    messages = [said("a"), said("b")]
    for dialect in (one, other, one):
        assert sent(cache, messages, dialect) == ["a", "b"]
    assert (one.encoded, other.encoded) == (["a", "b"] * 2, ["a", "b"])


def test_the_turns_of_an_episode_share_what_is_encoded() -> None:
    route, dialect = Route(), Dialect()
    messages = tuple(said(str(number)) for number in range(4))
    for turn in range(4):
        request = Request(
            messages=messages[: turn + 1], tools=(), sampling={}, id="r", attempt=1, turn=turn, route=route
        )
        sent_now = msgspec.json.decode(msgspec.json.encode(request.message_array(dialect)))
        assert sent_now == [str(number) for number in range(turn + 1)]
    assert dialect.encoded == [
        "0",
        "0",
        "1",
        "2",
        "3",
    ]  # nothing is kept of the first turn, which is mostly the only one
