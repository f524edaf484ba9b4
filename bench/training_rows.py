"""How fast recorded turns become training rows, on one core: CPU seconds, the least of the repeats.

Rollouts are recorded by the engine's own storing of tokens, with random ids, and encoded as lines of a log. Measured are
decoding a line, decoding and building its rows, and building alone. The floor copies the same ids, mask and logprobs
into one row with numpy, nothing else.

    python bench/training_rows.py
    python bench/training_rows.py --tokens 1000000 --json
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from windrow.engine.token_deltas import TokenDeltas
from windrow.exports.tokens.sequences import training_sequences
from windrow.records import (
    PolicyRecord,
    Rollout,
    Task,
    Timing,
    Tokens,
    Turn,
    Usage,
    decode_rollout,
    encode,
)

REPEATS = 5
SHAPES = {
    "1 turn of 512 tokens": (1, 200, 0, 512),
    "8 turns of 256 tokens": (8, 1000, 200, 256),
    "200 turns, 30k context": (200, 150, 60, 90),
}  # turns, first prompt, new tokens a turn, sampled tokens a turn


@dataclass(frozen=True)
class Row:
    what: str
    tokens: int  # of one rollout's rows
    line_bytes: int
    stored: int  # ids that its line holds
    floor_per_s: float
    build_per_s: float
    decode_and_build_per_s: float


def rollout_of(turns: int, first: int, new: int, sampled: int, *, drift: bool = False) -> Rollout:
    """One conversation; with `drift`, every prompt has another id where the reply before it ended."""
    draw = random.Random(0)
    token_deltas = TokenDeltas()
    kept: list[Turn] = []
    context: list[int] = []
    for number in range(turns):
        if drift and context:
            context[-1] += 100_000
        prompt = [*context, *(draw.randrange(100_000) for _ in range(new if number else first))]
        output = [draw.randrange(100_000) for _ in range(sampled)]
        kept.append(_turn(token_deltas, prompt, output, number))
        context = prompt + output
    return _rollout(tuple(kept))


def _turn(token_deltas: TokenDeltas, prompt: list[int], output: list[int], number: int) -> Turn:
    whole = struct.pack(f"<{len(prompt)}i", *prompt)
    tokens = Tokens(
        prefix=0,
        prompt_new=whole,
        output=struct.pack(f"<{len(output)}i", *output),
        logprobs=struct.pack(f"<{len(output)}f", *[-0.5] * len(output)),
        logprob_kind="raw",
    )
    return Turn(
        role="agent",
        reads=((0, 2 * number + 1),),
        writes=2 * number + 1,
        tokens=token_deltas.stored(whole, tokens, number),
        finish="stop",
        usage=Usage(prompt_tokens=len(prompt), completion_tokens=len(output)),
        versions=((0, "1"),),
        started_at=0.0,
        first_token_s=None,
        seconds=1.0,
        retries=0,
        tool_calls=(),
        tools_seconds=0.0,
    )


def _rollout(turns: tuple[Turn, ...]) -> Rollout:
    return Rollout(
        id="0" * 24,
        attempt=1,
        group="1" * 24,
        sample=0,
        episode=None,
        seat=None,
        seats=None,
        seed=0,
        task=Task(key="t", digest="2" * 32, source="s", split=None, index=0, tags=(), data={}),
        env="chat",
        agent="chat",
        policy=PolicyRecord(model="m", sampling={}, fingerprint="f"),
        tools=(),
        status="completed",
        stop="env_done",
        error=None,
        reason=None,
        grade="graded",
        grading=None,
        reward=1.0,
        scores={},
        metrics={},
        state=None,
        messages=(),
        turns=turns,
        usage=Usage(),
        timing=Timing(started_at=0.0),
        capture="tokens",
    )


def least_seconds(work: Callable[[], object], times: int) -> float:
    """CPU seconds of `times` calls."""
    taken = []
    for _ in range(REPEATS):
        started = time.process_time()
        for _ in range(times):
            work()
        taken.append(time.process_time() - started)
    return min(taken)


def copy_row(ids: np.ndarray, mask: np.ndarray, logprobs: np.ndarray) -> object:
    return ids.copy(), mask.copy(), logprobs.copy()


def measure(what: str, rollout: Rollout, tokens: int) -> Row:
    """`tokens` is about how many are made into rows for each measurement."""
    line = encode(rollout)
    sequences = training_sequences(decode_rollout(line))
    size = sum(map(len, sequences))
    times = max(1, tokens // size)
    rows = [(s.input_ids, s.loss_mask, s.logprobs) for s in sequences]
    kept = [turn.tokens for turn in rollout.turns if turn.tokens is not None]
    return Row(
        what=what,
        tokens=size,
        line_bytes=len(line),
        stored=sum(len(one.prompt_new + one.output) // 4 for one in kept),
        floor_per_s=times * size / least_seconds(lambda: [copy_row(*row) for row in rows], times),
        build_per_s=times * size / least_seconds(lambda: training_sequences(rollout), times),
        decode_and_build_per_s=times
        * size
        / least_seconds(lambda: training_sequences(decode_rollout(line)), times),
    )


def measure_all(tokens: int) -> list[Row]:
    found = [measure(what, rollout_of(*shape), tokens) for what, shape in SHAPES.items()]
    turns, *rest = SHAPES["200 turns, 30k context"]
    return [*found, measure("the same, every turn forks", rollout_of(turns, *rest, drift=True), tokens)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=3_000_000, help="tokens a measurement")
    parser.add_argument("--json", action="store_true", help="one JSON object a shape")
    given = parser.parse_args()
    for row in measure_all(given.tokens):
        if given.json:
            print(json.dumps(asdict(row)))
        else:
            print(
                f"{row.what}: {row.build_per_s / 1e6:.1f} M tokens/s, with decoding "
                f"{row.decode_and_build_per_s / 1e6:.1f}; {row.stored:,} ids stored of {row.tokens:,}"
            )


if __name__ == "__main__":
    main()
