"""The part of an isolated scorer that runs the user's function, in a confined process (`util/fork_server.py`).

The server imports the function once; each verdict is given in a fresh process.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any

import msgspec

from windrow.engine.episode_scoring import NO_JUDGE
from windrow.envs import Episode
from windrow.envs.scoring import AnyScorer, GroupScorer
from windrow.errors import WindrowError
from windrow.grading.user_functions import scorer_of
from windrow.records import RolloutGroup
from windrow.registry import resolve

_scorers: list[AnyScorer] = []  # the one that this server is for


class Order(msgspec.Struct, frozen=True):
    """The scorer to make: the function's name, and how it is configured."""

    function: str
    name: str
    weight: float
    settings: dict[str, Any]


def prepare(argument: str) -> None:
    order = msgspec.json.decode(argument, type=Order)
    function = resolve("scorer", order.function, {})
    _scorers.append(
        scorer_of(function, name=order.name, weight=order.weight, settings=order.settings, inline=True)
    )


def answer(question: bytes) -> bytes:
    """Judge an episode, or a group: a verdict, or one for each attempt; or what the function raised."""
    [scorer] = _scorers
    try:
        if isinstance(scorer, GroupScorer):
            group = msgspec.msgpack.decode(question, type=RolloutGroup)
            verdicts = _run(scorer.judge_group(group, NO_JUDGE))
            return msgspec.json.encode({"verdicts": list(verdicts.items())})
        episode = msgspec.msgpack.decode(question, type=Episode)
        return msgspec.json.encode({"verdict": _run(scorer.judge(episode, NO_JUDGE))})
    except BaseException as problem:  # also a SystemExit
        said = (
            str(problem)
            if isinstance(problem, WindrowError)
            else f"raised {type(problem).__name__}: {problem}"
        )
        kind = problem.kind if isinstance(problem, WindrowError) else type(problem).__name__
        retryable = problem.retryable if isinstance(problem, WindrowError) else True
        return msgspec.json.encode({"error": said, "kind": kind, "retryable": retryable})


def _run(work: Awaitable[Any]) -> Any:
    assert inspect.iscoroutine(work)
    return asyncio.run(work)
