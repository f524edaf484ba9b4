"""Calls as text: what a model is shown of a conversation does not depend on how often it was shown before."""

from __future__ import annotations

import itertools

from windrow.policies.toolcalls import FORMATS
from windrow.policies.toolcalls.conversation import Conversation
from windrow.records import Call, Message

TOOLS = ({"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},)
FORM = FORMATS["hermes"]


def user(text: str) -> Message:
    return Message(role="user", content=text, origin="task")


def calling(*ids: str) -> Message:
    calls = tuple(Call(id=one, name="look", arguments="{}") for one in ids)
    return Message(role="assistant", content=None, origin="policy", tool_calls=calls)


def result(of: str, text: str) -> Message:
    return Message(role="tool", content=text, origin="tool", tool_call_id=of)


MESSAGES = (user("go"), calling("a", "b"), result("a", "1"), result("b", "2"), calling("c"), result("c", "3"))


def test_a_message_is_converted_once_however_often_it_is_shown() -> None:
    conversation = Conversation(TOOLS, FORM)
    shown = [conversation.as_text(MESSAGES[:count]) for count in (1, 4, 4, 6)]
    for before, after in itertools.pairwise(shown):
        assert all(one is other for one, other in zip(before, after, strict=False))
    assert [len(one) for one in shown] == [2, 4, 4, 6]
    assert shown[-1] == Conversation(TOOLS, FORM).as_text(MESSAGES)


def test_results_that_come_one_by_one_are_shown_as_those_that_come_together() -> None:
    conversation = Conversation(TOOLS, FORM)
    for count in range(1, len(MESSAGES) + 1):
        assert conversation.as_text(MESSAGES[:count]) == Conversation(TOOLS, FORM).as_text(MESSAGES[:count])


def test_a_window_that_has_lost_a_call_no_longer_names_its_tool() -> None:
    conversation = Conversation(TOOLS, FORMATS["react"])
    conversation.as_text(MESSAGES)
    assert conversation.as_text(MESSAGES[2:3]) == Conversation(TOOLS, FORMATS["react"]).as_text(MESSAGES[2:3])


def test_examples_go_once_the_task_shows_a_call_of_its_own() -> None:
    conversation = Conversation(TOOLS, FORM, shows_examples=True)
    taught = Message(role="assistant", content="", origin="task", tool_calls=calling("a").tool_calls)
    assert len(conversation.as_text((user("go"),))) == 8
    assert conversation.as_text((user("go"), taught)) == Conversation(TOOLS, FORM).as_text(
        (user("go"), taught)
    )
