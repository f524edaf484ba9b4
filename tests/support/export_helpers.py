"""Exports in tests: runs with rewards made by hand, and the lines of what came out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import windrow
from tests.support.exact_token_policy import make_turn, tokens
from tests.support.run_builders import make_rollout
from windrow.engine.token_deltas import TokenDeltas
from windrow.records import Message, RecordedScore, Rollout, Turn


def said(name: str, *, reward: float | None = None, reply: str | None = None, **changes: Any) -> Rollout:
    """A rollout that was asked its name and answered; graded if a reward is given."""
    graded: dict[str, Any] = {}
    if reward is not None:
        score = RecordedScore(value=reward, weight=1.0, scorer="judge")
        graded = {"reward": reward, "grade": "graded", "scores": {"judge": score}}
    answer = f"{name}!" if reply is None else reply
    talk: dict[str, Any] = {
        "messages": (
            Message(role="user", content=name, origin="task"),
            Message(role="assistant", content=answer, origin="policy", turn=0),
        ),
        "turns": (make_turn(None, reads=((0, 1),), writes=1),),
    }
    return make_rollout(name, **{**talk, **graded, **changes})


def exported(run: Path, to: str, **options: Any) -> list[dict[str, Any]]:
    """The rows of an export as JSON lines, in a file of its own."""
    number = sum(1 for _ in run.parent.glob("export-*.jsonl"))
    out = run.parent / f"export-{number}.jsonl"
    windrow.export(run, to=to, out=out, **options)
    return [json.loads(line) for line in out.read_bytes().splitlines()]


def sampled(
    name: str, calls: Sequence[tuple[Sequence[int], Sequence[int]]] = (((1, 2), (3, 4)),), **changes: Any
) -> Rollout:
    """A rollout of these prompts and outputs, exact, each token with a logprob of its own."""
    token_deltas = TokenDeltas()
    turns: list[Turn] = []
    for number, (prompt, output) in enumerate(calls):
        logprobs = [-(number + 1) - place / 8 for place in range(len(output))]
        whole = tokens(prompt, output, logprobs=logprobs)
        kept = token_deltas.stored(whole.prompt_new, whole, number)
        turns.append(make_turn(kept, reads=((0, 1),), writes=1))
    return said(name, **{"turns": tuple(turns), "capture": "tokens", **changes})
