"""`windrow tokens`: the drift report of a run, and the sequences of a rollout as ids or as text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from tests.support.exact_token_policy import make_turn, tokens
from tests.support.run_builders import make_rollout, write_run
from windrow import Message
from windrow.cli.main import main
from windrow.records import Rollout

# The second prompt has another id where the first turn said 4; the third goes on from the second.
MESSAGES = (
    Message(role="user", content="one", origin="task"),
    Message(role="assistant", content="two", origin="policy", turn=0),
    Message(role="user", content="three", origin="env"),
    Message(role="assistant", content="four", origin="policy", turn=1),
    Message(role="user", content="five", origin="env"),
    Message(role="assistant", content="six", origin="policy", turn=2),
)
TURNS = (
    make_turn(tokens([1, 2], [3, 4]), reads=((0, 1),), writes=1),
    make_turn(tokens([5, 6], [7], prefix=3, continues=0), reads=((0, 3),), writes=3),
    make_turn(tokens([8], [9], prefix=6, continues=1), reads=((0, 5),), writes=5),
)


def forked(name: str = "a") -> Rollout:
    return make_rollout(name, turns=TURNS, messages=MESSAGES, capture="tokens", reward=0.5)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", [forked(), make_rollout("b")])


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["tokens", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_a_run_is_shown_with_its_forks_and_what_they_cost(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [" ".join(line.split()) for line in said(capsys, run).splitlines()]
    assert "rollouts 1 exact, 1 text: no ids" in rows
    assert "sequences 2 of 3 turns" in rows
    assert "tokens 12 in all, 3 of them repeated by forks and branches" in rows
    assert "trained 4 of 4 sampled, 0 lost" in rows
    assert "seam 1: the end of the reply was tokenised or closed otherwise" in rows
    where = (
        f"{forked().id}.1 turn 1 departs from turn 0 at id 3: the end of the reply was tokenised or closed"
    )
    assert any(row.startswith(where) for row in rows)


def test_the_report_is_json_too(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(said(capsys, run, "--json"))
    assert (report["turns"], report["sequences"], report["forks"]) == (3, 2, {"seam": 1})
    assert report["examples"][0]["fork"]["position"] == 3


def test_a_rollouts_sequences_are_shown_piece_by_piece(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, run, forked().id[:8])
    pieces = [line.split() for line in out.splitlines() if line[:1] in "+ "]
    assert ["+", "2", "turn", "0", "2", "3", "4"] in pieces
    assert ["0", "context", "5", "1", "2", "3", "5", "6"] in pieces
    assert ["+", "7", "turn", "2", "1", "9"] in pieces
    assert "sequence 1: 8 tokens, 2 trained" in out


def test_a_sequence_is_json_too(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = map(json.loads, said(capsys, run, forked().id, "--json").splitlines())
    assert first["input_ids"] == [1, 2, 3, 4]
    assert first["loss_mask"] == [0, 0, 1, 1]
    assert first["logprobs"] == [0, 0, -0.5, -0.5]
    assert (second["rollout_id"], second["segment"]) == (forked().id, 1)
    assert (second["group"], second["truncated"], second["unanswered_tool_calls"]) == (
        forked().group,
        False,
        0,
    )


def test_a_tolerant_merge_is_asked_for_with_the_ids_that_end_a_turn(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = json.loads(said(capsys, run, "--json", "--tolerant", "--end-of-turn", "4,5"))
    assert (report["sequences"], report["spliced"]) == (1, 1)


def test_text_is_shown_where_a_tokenizer_is_at_hand(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={chr(97 + id): id for id in range(26)}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert "'bcdfg'" in said(capsys, run, forked().id, "--tokenizer", path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["zzz"], "no rollout of"),
        ([make_rollout("b").id], "was captured as 'text'"),
        (["--tolerant"], "--tolerant needs --end-of-turn"),
        (["--end-of-turn", "x"], "--end-of-turn x: expected ids"),
        (["--roles", "agents"], "--roles agents: expected some of agent, auxiliary, judge, discarded"),
        (["--tokenizer", "nowhere"], "--tokenizer nowhere: there is no tokenizer.json"),
        (["--tokenizer", __file__], "--tokenizer"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["tokens", str(run), *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("blocked", "command", "line"),
    [
        ("numpy", ["tokens", "run"], "pip install 'windrow-rl[tokens]'"),
        ("numpy", ["verify", "run"], "pip install 'windrow-rl[tokens]'"),
        ("tokenizers", ["tokens", "run", "--tokenizer", "x"], "pip install tokenizers"),
    ],
)
def test_what_is_not_installed_is_named_with_the_line_to_type(
    blocked: str, command: list[str], line: str
) -> None:
    code = f"import sys; sys.modules[{blocked!r}] = None\nfrom windrow.cli.main import main\nsys.exit(main({command!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, line in done.stderr) == (2, True), done.stderr
