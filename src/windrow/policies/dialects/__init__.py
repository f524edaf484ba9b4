"""Dialects: how each kind of model server is asked, and how its answer is read. The table of them by name.

A dialect turns a request into a body and an answer into a completion, and holds no state. Connections, failures and
the choice of an endpoint are one level up. `auto` is not a dialect: the endpoint is asked what it is
(`policies/probe.py`).
"""

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

# The dialect in which the same server scores forced ids.
SCORING = {"vllm": "vllm-completions", "vllm-generate": "vllm-completions", "sglang": "sglang-generate"}
SCORING |= {"llamacpp": "llamacpp-completion"}
SCORING |= {name: name for name in ("vllm-completions", "sglang-generate", "llamacpp-completion")}


def scoring(dialect: Dialect) -> Dialect | None:
    """The dialect in which the same server scores forced ids; None where it cannot."""
    name = SCORING.get(dialect.name)
    return DIALECTS[name] if name is not None else None
