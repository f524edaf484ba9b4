"""The dialects by name. `auto` is none of them: the endpoint is asked what it is (`policies/probe.py`)."""

from __future__ import annotations

from windrow.policies.dialects.anthropic import AnthropicMessages
from windrow.policies.dialects.base import BadReply, Dialect
from windrow.policies.dialects.chat import OpenAIChat, SglangChat, VllmChat
from windrow.policies.dialects.llamacpp import LlamacppChat, LlamacppCompletion
from windrow.policies.dialects.responses import OpenAIResponses
from windrow.policies.dialects.sglang import SglangGenerate
from windrow.policies.dialects.vllm import VllmCompletions, VllmGenerate

__all__ = ["AUTO", "DIALECTS", "BadReply", "Dialect"]

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
