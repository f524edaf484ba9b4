"""Lines with tokens that anything has happened to: they are verified, reported or left out, and nothing else is raised."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given

from tests.fuzz.mutations import fuzz, mutated_json, taken_or_refused
from tests.support.exact_token_policy import make_turn, tokens
from tests.support.run_builders import folder_in_memory, make_rollout, write_run
from windrow import Message
from windrow.cli.main import main
from windrow.exports.tokens.drift import drift_of
from windrow.exports.tokens.sequences import training_sequences
from windrow.exports.tokens.verify import CHECKS, problems, verify_run
from windrow.records import Call, Rollout, encode
from windrow.store.reader import load


def exact() -> Rollout:
    """Three turns: the second departs from the first, the third goes on from the second."""
    calls = (Call(id="c", name="look", arguments="{}"),)
    messages = [
        Message(role="user", content="one", origin="task"),
        Message(role="assistant", content="two", origin="policy", turn=0, reasoning="hm", tool_calls=calls),
        Message(role="tool", content="three", origin="tool", tool_call_id="c"),
        Message(role="assistant", content="four", origin="policy", turn=1),
        Message(role="user", content="five", origin="user"),
        Message(role="assistant", content="six", origin="policy", turn=2),
    ]
    turns = [
        make_turn(
            tokens([1, 2], [3, 4, 5, 6, 7, 8, 9]), reads=((0, 1),), writes=1, versions=((0, "a"), (1, "b"))
        ),
        make_turn(tokens([5, 6], [7], prefix=3, continues=0), reads=((0, 3),), writes=3),
        make_turn(tokens([8], [9], prefix=6, continues=1), reads=((0, 5),), writes=5),
    ]
    return make_rollout("a", turns=tuple(turns), messages=tuple(messages), capture="tokens")


@pytest.fixture(scope="module")
def run() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield write_run(folder / "run", [make_rollout("b")])


@fuzz(300)
@given(line=mutated_json([msgspec.json.decode(encode(exact()))]))
def test_a_line_of_any_tokens_is_verified_and_reported_or_left_out(line: bytes, run: Path) -> None:
    (run / "rollouts.jsonl").write_bytes(line.replace(b"\n", b" ") + b"\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdict = taken_or_refused(lambda: verify_run(run))
        rollouts: list[Rollout] = taken_or_refused(lambda: list(load(run))) or []
        for rollout in rollouts:
            taken_or_refused(lambda: drift_of([rollout]))  # noqa: B023
            wrong = {problem.check for problem in problems(rollout) if CHECKS[problem.check][0] == "fatal"}
            if rollout.capture == "tokens" and not wrong:
                assert verdict is not None
                training_sequences(rollout)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(_Quiet()):
                assert main(["tokens", str(run), rollout.id, "--json"]) in (0, 1, 2)


class _Quiet:
    """Takes what a command says of an error; an internal one is a failure."""

    def write(self, text: str) -> Any:
        assert "internal error" not in text

    def flush(self) -> None:
        pass
