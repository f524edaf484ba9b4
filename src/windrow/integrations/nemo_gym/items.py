"""Items of the Responses format ↔ our messages, model calls and tokens.

An output is a whole episode: replies of the model, results of tools, and messages of an environment. A model call
ends with the item that carries its tokens, or before an item that is not the model's. Its tokens are the ids of the
whole prompt, the sampled ids, and one logprob per sampled id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from windrow.agents import InputMessage, ModelTurn, Piece
from windrow.policies import Completion
from windrow.policies.capture import packed
from windrow.records import Call, Json, Message, Tokens, part_text

PROMPT_IDS, OUTPUT_IDS, LOGPROBS = "prompt_token_ids", "generation_token_ids", "generation_log_probs"
TOKEN_KEYS = (PROMPT_IDS, OUTPUT_IDS, LOGPROBS)
_TEXTS = ("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text")
_ROLES = ("system", "developer", "user", "assistant", "tool")


def read_output(output: Json, *, where: str = "response.output") -> list[Piece]:
    """Return the events of an episode in order. ValueError names the item that cannot be read, and the reason."""
    pieces: list[Piece] = []
    for call in _calls(output, where):
        first = call[0][1]
        if _is_said(first):
            pieces.append(ModelTurn(_completion([item for _, item in call])))
        else:
            pieces.append(InputMessage(_heard(first, call[0][0])))
    return pieces


def read_items(items: Json, *, where: str) -> list[Message]:
    """Return items as messages for a prompt: without tokens, and with the model's replies as part of the task."""
    messages: list[Message] = []
    for piece in read_output(items, where=where):
        if isinstance(piece, InputMessage):
            messages.append(msgspec.structs.replace(piece.message, origin="task"))
        else:
            reply = piece.completion
            messages.append(
                Message(
                    role="assistant",
                    content=reply.content,
                    origin="task",
                    tool_calls=reply.tool_calls or None,
                    reasoning=reply.reasoning,
                )
            )
    return messages


def said_items(
    message: Message, tokens: dict[str, Json] | None = None, *, label: str
) -> list[dict[str, Json]]:
    """Return a model's reply as items; its tokens go to the last one. `label` makes the ids of the items unique."""
    items: list[dict[str, Json]] = []
    if message.reasoning is not None:
        summary = [{"type": "summary_text", "text": message.reasoning}]
        items.append({"id": f"rs_{label}", "summary": summary, "type": "reasoning"})
    if message.content is not None or not (message.tool_calls or items):
        items.append(
            {
                "id": f"msg_{label}",
                "content": [{"annotations": [], "text": message.text, "type": "output_text"}],
                "role": "assistant",
                "status": "completed",
                "type": "message",
            }
        )
    for number, call in enumerate(message.tool_calls or ()):
        items.append(
            {
                "arguments": call.arguments,
                "call_id": call.id,
                "name": call.name,
                "type": "function_call",
                "id": f"fc_{label}_{number}",
                "status": "completed",
            }
        )
    items[-1].update(tokens or {})
    return items


def heard_item(message: Message, *, label: str) -> dict[str, Json]:
    """Return a message of a tool or an environment as an item."""
    if message.role == "tool":
        return {
            "call_id": message.tool_call_id or "",
            "output": message.text,
            "type": "function_call_output",
            "id": f"fco_{label}",
            "status": "completed",
        }
    return {"role": message.role, "content": given_content(message.content), "type": "message"}


def given_content(content: str | list[dict[str, Json]] | None) -> Json:
    """Return the content of a message that a model is shown, in the Responses format."""
    if not isinstance(content, list):
        return content or ""
    return [_given_part(part) for part in content]


def token_fields(prompt: bytes, tokens: Tokens) -> dict[str, Json]:
    """Return a turn's tokens as an item carries them; `prompt` are the ids of its whole prompt."""
    return {
        PROMPT_IDS: _unpacked("i", prompt),
        OUTPUT_IDS: _unpacked("i", tokens.output),
        LOGPROBS: _unpacked("f", tokens.logprobs or b""),
    }


def _calls(output: Json, where: str) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Yield the items grouped by model call, each with its index."""
    if not isinstance(output, list):
        raise ValueError(f"{where} must be a list of items, found {output!r:.80}")
    held: list[tuple[str, dict[str, Any]]] = []
    for number, item in enumerate(output):
        at = f"{where}[{number}]"
        if not isinstance(item, dict):
            raise ValueError(f"{at} must be an object, found {item!r:.80}")
        if not _is_said(item):
            if held:
                yield held
            yield [(at, item)]
            held = []
            continue
        held.append((at, item))
        carried = [key for key in TOKEN_KEYS if item.get(key) is not None]
        if carried and len(carried) < len(TOKEN_KEYS):
            raise ValueError(f"{at} has {', '.join(carried)} but not all of {', '.join(TOKEN_KEYS)}")
        if carried:
            yield held
            held = []
    if held:
        yield held


def _is_said(item: dict[str, Any]) -> bool:
    """Return whether the item is the model's: all but tools' results and messages of others."""
    kind = item.get("type", "message")
    return item.get("role") == "assistant" if kind == "message" else not str(kind).endswith("_output")


def _completion(items: Sequence[dict[str, Any]]) -> Completion:
    texts = [_text(item.get("content")) for item in items if item.get("type", "message") == "message"]
    thought = [_text(item.get("summary")) or _text(item.get("content")) for item in _of(items, "reasoning")]
    calls = tuple(_call(item) for item in _of(items, "function_call"))
    tokens, capture = None, "text"
    if all(items[-1].get(key) is not None for key in TOKEN_KEYS):
        tokens, capture = _tokens(items[-1])
    return Completion(
        content="".join(texts) if texts else None,
        reasoning="\n".join(thought) if thought else None,
        tool_calls=calls,
        finish="tool_calls" if calls else "stop",
        tokens=tokens,
        capture=capture,  # type: ignore[arg-type]
    )


def _of(items: Iterable[dict[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    return (item for item in items if item.get("type") == kind)


def _call(item: dict[str, Any]) -> Call:
    fields = [item.get(key) for key in ("call_id", "name", "arguments")]
    if not all(isinstance(field, str) for field in fields):
        raise ValueError("a 'function_call' lacks 'call_id', 'name' or 'arguments'")
    return Call(id=fields[0], name=fields[1], arguments=fields[2])  # type: ignore[arg-type]


def _tokens(item: dict[str, Any]) -> tuple[Tokens | None, str]:
    prompt, output, logprobs = (item[key] for key in TOKEN_KEYS)
    if not all(isinstance(ids, list) for ids in (prompt, output, logprobs)):
        raise ValueError(f"{', '.join(TOKEN_KEYS)} must be lists of numbers")
    if len(output) != len(logprobs):
        raise ValueError(f"{len(output)} generation_token_ids have {len(logprobs)} generation_log_probs")
    try:
        return packed("tokens", prompt=prompt, output=output, logprobs=logprobs)
    except (struct.error, OverflowError) as problem:
        raise ValueError(f"the tokens of an item cannot be kept: {problem}") from None


def _heard(item: dict[str, Any], where: str) -> Message:
    kind = item.get("type", "message")
    if kind == "message":
        if item.get("role") not in _ROLES:
            raise ValueError(
                f"{where}: 'role' must be one of {', '.join(_ROLES)}, found {item.get('role')!r:.80}"
            )
        return Message(role=item["role"], content=_content(item.get("content"), where), origin="env")
    call_id = item.get("call_id")
    return Message(
        role="tool",
        content=_content(item.get("output"), where),
        origin="tool",
        tool_call_id=call_id if isinstance(call_id, str) else None,
    )


def _content(content: Json, where: str) -> str | list[dict[str, Json]]:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise ValueError(f"{where}: the content must be a string or a list of parts")
    if len(content) == 1 and content[0].get("type") in _TEXTS:
        return _text(content)
    return [_shown_part(part) for part in content]


def _text(parts: Json) -> str:
    if isinstance(parts, str):
        return parts
    if parts is not None and not isinstance(parts, list):
        raise ValueError(f"what a model said must be a text or a list of parts, found {parts!r:.80}")
    return "".join(
        str(part.get("text") or part.get("refusal") or "") for part in parts or () if isinstance(part, dict)
    )


def _shown_part(part: dict[str, Json]) -> dict[str, Json]:
    """Return a part as chat models take it."""
    if part.get("type") in _TEXTS:
        return {"type": "text", "text": _text([part])}
    if part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    return part


def _given_part(part: dict[str, Json]) -> dict[str, Json]:
    if part.get("type") == "text":
        return {"type": "input_text", "text": part_text(part)}
    image = part.get("image_url")
    if part.get("type") == "image_url" and isinstance(image, dict):
        return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail", "auto")}
    return part


def _unpacked(kind: str, raw: bytes) -> list[Any]:
    return list(struct.unpack(f"<{len(raw) // 4}{kind}", raw))
