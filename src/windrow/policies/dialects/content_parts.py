"""What dialects with typed content parts share."""

from __future__ import annotations

from collections.abc import Callable

from windrow.errors import PolicyError
from windrow.policies.wire import decode_object
from windrow.records import Call, Json, Message, part_text


def parts(message: Message, text: Callable[[str], Json], image: Callable[[str], Json | None]) -> list[Json]:
    """A message's content, part by part, as this dialect writes texts and images (by URL); PolicyError for a part that
    it cannot write."""
    if not isinstance(message.content, list):
        return [text(message.content)] if message.content else []
    return [_part(part, message.role, text, image) for part in message.content]


def texts(message: Message) -> list[str]:
    """The texts of a message, part by part; PolicyError for a part that is something else."""
    return parts(message, str, lambda url: None)


def _part(
    part: dict[str, Json], role: str, text: Callable[[str], Json], image: Callable[[str], Json | None]
) -> Json:
    if part.get("text") is not None or part.get("type") == "text":
        return text(part_text(part))
    address = part.get("image_url")
    url = address.get("url") if isinstance(address, dict) else address
    image_part = image(url) if isinstance(url, str) else None
    if image_part is None:
        raise PolicyError(
            f"a part of type {part.get('type')!r} in a {role} message cannot be sent in this dialect; use "
            f"--dialect openai",
            kind="unsupported_content",
        )
    return image_part


def arguments_of(call: Call) -> dict[str, Json]:
    """A call's arguments as an object; what would not parse is kept under a name that says so."""
    return decode_object(call.arguments) or ({"unreadable": call.arguments} if call.arguments.strip() else {})
