"""The reward in the answer of an evaluate tool, found in the same fields as HUD finds it.

HUD scores an error as 0, and also an answer without a reward. Here both are failed gradings, because the episode was
not judged.
"""

from __future__ import annotations

import sys

import msgspec

from windrow.errors import ScorerError
from windrow.records import Json
from windrow.tools.mcp_session import McpAnswer

KEYS = ("reward", "grade", "score")


class FoundReward(msgspec.Struct, frozen=True):
    reward: float
    subscores: dict[str, float] = {}


def check_judged(answer: McpAnswer, tool: str) -> None:
    """Raise ScorerError if the tool reports a failure."""
    if answer.failed:
        raise ScorerError(
            f"the evaluate tool {tool!r} failed: {answer.text:.2000}", kind="evaluate_failed", retryable=False
        )


def find_reward(answer: McpAnswer, tool: str) -> FoundReward:
    """Return the value of `reward`, `grade` or `score`; or else the weighted sum of the subscores; or else the reward
    in the first text that is JSON. Raise ScorerError if there is none.
    """
    check_judged(answer, tool)
    content = answer.structured
    if isinstance(content, dict):
        subscores = _numbers(content.get("subscores"))
        for key in KEYS:
            if key in content:
                return FoundReward(_reward(content[key], tool), subscores)
        if isinstance(content.get("subscores"), dict) and isinstance(content.get("weights"), dict):
            weights = content["weights"]
            shares = {name: value for name, value in content["subscores"].items() if name in weights}
            total = sum(_reward(value, tool) * _reward(weights[name], tool) for name, value in shares.items())
            return FoundReward(_reward(total, tool), subscores)
    for text in answer.texts:
        try:
            content = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        if isinstance(content, dict):
            for key, value in content.items():
                if key in KEYS:
                    return FoundReward(_reward(value, tool), _numbers(content.get("subscores")))
    raise ScorerError(
        f"the evaluate tool {tool!r} answered without a reward ({', '.join(KEYS)}, or subscores with weights): {answer.text:.500}",
        kind="no_reward",
        retryable=False,
    )


def _reward(value: Json, tool: str) -> float:
    if _is_finite(value):
        return float(value)
    raise ScorerError(
        f"the evaluate tool {tool!r} gave {value!r:.80} for a reward, not a finite number",
        kind="bad_reward",
        retryable=False,
    )


def _numbers(value: Json) -> dict[str, float]:
    fields = value if isinstance(value, dict) else {}
    return {name: float(number) for name, number in fields.items() if _is_finite(number)}


def _is_finite(value: Json) -> bool:
    """Return whether a number can be a reward; JSON has integers that no float can hold."""
    return isinstance(value, bool | int | float) and abs(value) <= sys.float_info.max
