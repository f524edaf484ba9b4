"""The dialects by name. `auto` is none of them: the endpoint is asked what it is (`policies/probe.py`)."""

from __future__ import annotations

from windrow.policies.dialects.anthropic import AnthropicMessages
from windrow.policies.dialects.base import BadReply, Dialect
from windrow.policies.dialects.chat import OpenAIChat, SglangChat, VllmChat
from windrow.policies.dialects.llamacpp import LlamacppChat, LlamacppCompletion
from windrow.policies.dialects.responses import OpenAIResponses
from windrow.policies.dialects.sglang import SglangGenerate
from windrow.policies.dialects.vllm import VllmCompletions, VllmGenerate

__all__ = ["AUTO", "DIALECTS", "BadReply", "Dialect", "scoring"]

AUTO = "auto"
DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        OpenAIChat(),
        VllmChat(),
        VllmCompletions(),
        VllmGenerate(),
        SglangChat(),
        SglangGenerate(),
        LlamacppChat(),
        LlamacppCompletion(),
        OpenAIResponses(),
        AnthropicMessages(),
    )
}

# Which dialect of the same server scores ids that are given.
SCORING = {"vllm": "vllm-completions", "vllm-generate": "vllm-completions", "sglang": "sglang-generate"}
SCORING |= {"llamacpp": "llamacpp-completion"}
SCORING |= {name: name for name in ("vllm-completions", "sglang-generate", "llamacpp-completion")}


def scoring(dialect: Dialect) -> Dialect | None:
    """The dialect in which the same server is asked to score ids; None where it cannot."""
    name = SCORING.get(dialect.name)
    return DIALECTS[name] if name is not None else None
