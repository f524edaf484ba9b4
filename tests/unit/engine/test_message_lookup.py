"""Looking up messages: which recorded messages are meant does not depend on whether an agent hands back the objects or copies."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from windrow.engine.message_lookup import MessageLookup, Ranges
from windrow.records import Message

messages = st.builds(
    Message,
    role=st.just("user"),
    content=st.sampled_from("abc"),  # so few that many are the same
    origin=st.sampled_from(["task", "policy", "env"]),
)


def looked_up(recorded: list[Message], wanted: list[Message]) -> tuple[list[str], Ranges]:
    """What is added, and the ranges that are read then."""
    recorded = list(recorded)
    lookup = MessageLookup(recorded)
    lookup.missing(recorded)
    missing = lookup.missing(wanted)
    recorded += [msgspec.structs.replace(message, origin="env") for message in missing]
    return [message.text for message in missing], lookup.ranges(wanted)


@given(
    recorded=st.lists(messages, min_size=1, max_size=9),
    picks=st.lists(st.integers(0, 8), min_size=1, max_size=9),
    new=st.lists(messages, max_size=2),
)
def test_objects_and_their_copies_are_found_at_the_same_places(
    recorded: list[Message], picks: list[int], new: list[Message]
) -> None:
    own = [*(recorded[pick % len(recorded)] for pick in picks), *new]
    copies = [msgspec.structs.replace(message, origin="env") for message in own]
    assert looked_up(recorded, own) == looked_up(recorded, copies)
