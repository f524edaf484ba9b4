"""The usage of an episode, which NeMo Gym reports once for all model calls: divided among the calls, and summed up
again.
"""

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
    """Divide the usage of an episode among its calls. If the token ids of all calls add up to the total, each call
    gets its own count; otherwise the last call without ids carries the total, or else the last call.
    """
    counts = [_ids(call) for call in calls]
    known_counts = [count for count in counts if count is not None]
    shares: list[Usage | None] = [None] * len(calls)
    if usage is None:
        return shares
    whole = (usage.prompt_tokens, usage.completion_tokens)
    if len(known_counts) == len(calls) and tuple(map(sum, zip(*known_counts, strict=True))) == whole:
        shares = [
            Usage(prompt_tokens=prompt, completion_tokens=output) for prompt, output in known_counts[:-1]
        ]
        prompt, output = known_counts[-1]
        last = Usage(prompt_tokens=prompt, completion_tokens=output, cached_tokens=usage.cached_tokens)
        return [*shares, last]
    at = len(calls) - 1
    if None in counts and counts[-1] != whole:
        at -= counts[::-1].index(None)
    shares[at] = usage
    return shares


def _ids(call: Completion) -> tuple[int, int] | None:
    """Return the number of ids in the prompt and the output of a call, if they are known."""
    tokens = call.tokens
    return None if tokens is None else (len(tokens.prompt_new) // ID_BYTES, len(tokens.output) // ID_BYTES)


def _count(value: Json) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else 0
