"""What dialects with typed content parts share."""

from __future__ import annotations

from windrow.errors import PolicyError
from windrow.policies.wire import decode_object
from windrow.records import Call, Json, Message


def texts(message: Message) -> list[str]:
    """The texts of a message, part by part; PolicyError for a part that is something else."""
    if not isinstance(message.content, list):
        return [message.content] if message.content else []
    other = next((part for part in message.content if "text" not in part), None)
    if other is not None:
        raise PolicyError(
            f"a part of type {other.get('type')!r} in a {message.role} message cannot be sent in this dialect: "
            f"only text can; use --dialect openai",
            kind="unsupported_content",
        )
    return [str(part["text"]) for part in message.content]


def arguments_of(call: Call) -> dict[str, Json]:
    """A call's arguments as an object; what would not parse is kept under a name that says so."""
    return decode_object(call.arguments) or ({"unreadable": call.arguments} if call.arguments.strip() else {})
