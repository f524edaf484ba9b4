"""The usage of an episode, which NeMo Gym tells once for all its model calls: laid on them, and written again."""

from __future__ import annotations

from collections.abc import Sequence

from windrow.policies import Completion
from windrow.records import Json, Usage
from windrow.util.token_contexts import ID_BYTES


def read_usage(usage: Json) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    details = usage.get("input_tokens_details")
    return Usage(
        prompt_tokens=_count(usage.get("input_tokens")),
        completion_tokens=_count(usage.get("output_tokens")),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else 0,
    )


def written_usage(usage: Usage) -> dict[str, Json]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def shared(usage: Usage | None, calls: Sequence[Completion]) -> list[Usage | None]:
    """The usage of an episode, by call: what the ids of each come to, where that makes up the whole; otherwise the last call
    carries it, or rather the last that has no ids, whose own numbers it cannot contradict."""
    counts = [_ids(call) for call in calls]
    known = [count for count in counts if count is not None]
    shares: list[Usage | None] = [None] * len(calls)
    if usage is None:
        return shares
    whole = (usage.prompt_tokens, usage.completion_tokens)
    if len(known) == len(calls) and tuple(map(sum, zip(*known, strict=True))) == whole:
        shares = [Usage(prompt_tokens=prompt, completion_tokens=output) for prompt, output in known[:-1]]
        prompt, output = known[-1]
        last = Usage(prompt_tokens=prompt, completion_tokens=output, cached_tokens=usage.cached_tokens)
        return [*shares, last]
    at = len(calls) - 1
    if None in counts and counts[-1] != whole:
        at -= counts[::-1].index(None)
    shares[at] = usage
    return shares


def _ids(call: Completion) -> tuple[int, int] | None:
    """How many ids the prompt and the output of a call have, where they are known."""
    tokens = call.tokens
    return None if tokens is None else (len(tokens.prompt_new) // ID_BYTES, len(tokens.output) // ID_BYTES)


def _count(value: Json) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else 0
