"""Tool calls as text, for models and servers without native ones: the formats by name, one module each.

A format describes tools, writes calls and results, and reads calls; `policy.py` wraps any policy with one. Running the
calls does not belong here. The format is chosen by the model's name:

| a model whose name holds       | format   |
|--------------------------------|----------|
| qwen3-coder, qwen3.5, qwen3.6  | `xml`    |
| qwen, hermes, qwq              | `hermes` |
| llama-3, llama3, llama-4       | `llama`  |
| smollm                         | `hermes`, with examples |
| anything else                  | `native` |

The first line that fits counts. Examples (`examples.py`) are shown to a model of that name in every format. With a
server that handles tool calls itself for such a model, set `native`.
"""

from __future__ import annotations

from typing import Literal

from windrow.policies.toolcalls import fenced, hermes, llama, react, xml
from windrow.policies.toolcalls.base import Format, Parsed

__all__ = ["FORMATS", "Format", "FormatName", "Parsed", "chosen_format", "needs_examples"]

FormatName = Literal["native", "hermes", "llama", "xml", "react", "fenced"]

FORMATS: dict[str, Format] = {
    "hermes": hermes,
    "llama": llama,
    "xml": xml,
    "react": react,
    "fenced": fenced,
}

_BY_MODEL: tuple[tuple[tuple[str, ...], FormatName], ...] = (
    (("qwen3-coder", "qwen3.5", "qwen3.6"), "xml"),
    (("qwen", "hermes", "qwq"), "hermes"),
    (("llama-3", "llama3", "llama-4", "llama4"), "llama"),
    (("smollm",), "hermes"),
)
_SHOWN_EXAMPLES = ("smollm",)


def chosen_format(model: str) -> FormatName:
    """The format for a model of this name, by the table above."""
    name = model.lower()
    for parts, format_name in _BY_MODEL:
        if any(part in name for part in parts):
            return format_name
    return "native"


def needs_examples(model: str) -> bool:
    """Whether a model of this name only calls tools after it was shown how."""
    return any(part in model.lower() for part in _SHOWN_EXAMPLES)
