"""A conversation as a model without native calls is shown it: the tools in the system message, calls and results as text."""

from __future__ import annotations

from operator import is_

from windrow.policies.toolcalls.base import Format, ToolSchemas
from windrow.policies.toolcalls.examples import examples
from windrow.records import Message


class Conversation:
    """The messages of one episode as text: each is converted once, as long as a call only adds to those of the last.

    `shows_examples`: exchanges that show a call come after the system message, unless the task's own messages show one.
    """

    _taught: bool  # the task's own messages show a call
    _messages: tuple[Message, ...]  # as they came
    _converted: list[Message]
    _names: dict[str | None, str]  # of the tools that were called, by call
    _results: list[str]  # at the end, with nothing after them yet
    _answer: Message | None  # these results as a message

    def __init__(self, tools: ToolSchemas, form: Format, *, shows_examples: bool = False) -> None:
        self.tools = tools
        self._form = form
        self._shows_examples = shows_examples
        self._forget(taught=False)

    def as_text(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        previous = self._messages
        taught = self._shows_examples and any(m.tool_calls and m.origin == "task" for m in messages)
        if taught != self._taught or len(previous) > len(messages) or not all(map(is_, previous, messages)):
            self._forget(taught=taught)
            previous = ()
        for message in messages[len(previous) :]:
            self._add(message)
        self._messages = messages
        return (*self._converted, *self._answered())

    def _forget(self, *, taught: bool) -> None:
        self._taught = taught
        self._messages, self._converted, self._names, self._results, self._answer = (), [], {}, [], None

    def _add(self, message: Message) -> None:
        if not self._converted and self._opened_with(message):
            return
        if message.role == "tool":
            name = self._names.get(message.tool_call_id, "tool")
            self._results.append(self._form.render_result(name, message.text))
            self._answer = None
            return
        self._converted += self._answered()
        self._results, self._answer = [], None
        if message.tool_calls:
            self._names.update({call.id: call.name for call in message.tool_calls})
            message = self._reply_as_text(message)
        self._converted.append(message)

    def _answered(self) -> tuple[Message, ...]:
        """The results that nothing has come after yet, as one message; the same one until there is another result."""
        if not self._results:
            return ()
        if self._answer is None:
            self._answer = Message(role="user", content="\n".join(self._results), origin="tool")
        return (self._answer,)

    def _opened_with(self, first: Message) -> bool:
        """Describe the tools, in the message that comes first if that is a system message; whether it was."""
        system = first.role in ("system", "developer")
        description = self._form.describe(self.tools)
        self._converted.append(
            _with_text(first, f"{first.text}\n\n{description}")
            if system
            else Message(role="system", content=description, origin="task")
        )
        if self._shows_examples and not self._taught:
            self._converted += examples(self.tools, self._form)
        return system

    def _reply_as_text(self, message: Message) -> Message:
        """A reply with calls: its own text where the calls are in it, else its text and then the calls."""
        calls = message.tool_calls or ()
        if len(self._form.parse(spoken(message.text), self.tools).calls) == len(calls):
            return _with_text(message, message.text)
        written = [self._form.render_call(call, self.tools) for call in calls]
        return _with_text(message, "\n".join(filter(None, [message.text, *written])))


def _with_text(message: Message, text: str) -> Message:
    return Message(role=message.role, content=text, origin=message.origin)


def spoken(text: str) -> str:
    """The reply without its thoughts: a call that is only thought of is none."""
    _, end, rest = text.rpartition("</think>")
    if end:
        return rest
    return "" if text.lstrip().startswith("<think>") else text
