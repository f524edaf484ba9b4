"""Schema 1 is a promise: what is always written, what may be absent, and that old lines stay readable.

`tests/golden/rollout.v1.jsonl` is never rewritten. Lines may be added to it while schema 1 grows.
"""

from __future__ import annotations

import json
import re
import struct
from base64 import b64decode
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from windrow.cli.main import main
from windrow.records import (
    SCHEMA_VERSION,
    ErrorRecord,
    Message,
    PolicyRecord,
    RecordedScore,
    Rollout,
    Task,
    Timing,
    Tokens,
    ToolCall,
    Turn,
    Usage,
    decode_rollout,
    encode,
    is_done,
    reward_of,
)

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = (ROOT / "tests" / "golden" / "rollout.v1.jsonl").read_bytes().splitlines()
LINES = [json.loads(line) for line in GOLDEN]

# What DESIGN.md and docs/file-format.md promise, in the order of the file: always written, then those marked "?".
FIELDS: dict[type, tuple[str, str]] = {
    Rollout: (
        "v id attempt group sample episode seat seats seed task env agent policy tools status stop error reason "
        "grade grading reward scores metrics state messages turns usage timing capture",
        "",
    ),
    Task: ("key digest source split index tags data", ""),
    PolicyRecord: ("model sampling fingerprint version", ""),
    ErrorRecord: ("owner kind message phase retryable traceback", ""),
    Usage: ("prompt_tokens completion_tokens cached_tokens cost", ""),
    Timing: ("started_at queued setup policy env tools score total", ""),
    Message: ("role content origin", "tool_calls tool_call_id name reasoning turn"),
    Turn: (
        "role reads writes tokens finish usage versions started_at first_token_s seconds retries tool_calls "
        "tools_seconds",
        "model sampling parse_error reward scores metrics state info",
    ),
    ToolCall: ("id name arguments result failed started_at seconds", "error"),
    Tokens: ("prefix prompt_new output logprobs logprob_kind", "continues top"),
    RecordedScore: ("value weight", "evidence scorer withholds"),
}
ALWAYS = {kind: always.split() for kind, (always, _) in FIELDS.items()}
OPTIONAL = {kind: optional.split() for kind, (_, optional) in FIELDS.items()}
LOADED = {
    kind: ["teacher"] if kind is Tokens else [] for kind in FIELDS
}  # from scores.jsonl: never in a line


def parts(line: dict[str, Any]) -> list[tuple[type, dict[str, Any]]]:
    """Every object of a line that is a record of ours, with its kind."""
    turns = line["turns"]
    calls = [call for turn in turns for call in turn["tool_calls"]]
    tokens = [turn["tokens"] for turn in turns if turn["tokens"]]
    usages = [turn["usage"] for turn in turns if turn["usage"]]
    return [
        (Rollout, line),
        (Task, line["task"]),
        (PolicyRecord, line["policy"]),
        (Usage, line["usage"]),
        (Timing, line["timing"]),
        *((ErrorRecord, line["error"]) for _ in range(line["error"] is not None)),
        *((Message, message) for message in line["messages"]),
        *((Turn, turn) for turn in turns),
        *((ToolCall, call) for call in calls),
        *((Tokens, tokens) for tokens in tokens),
        *((Usage, usage) for usage in usages),
        *((RecordedScore, score) for score in line["scores"].values()),
    ]


@pytest.mark.parametrize("line", GOLDEN, ids=lambda line: json.loads(line)["id"])
def test_a_golden_line_is_read_and_written_again_byte_for_byte(line: bytes) -> None:
    assert encode(decode_rollout(line)) == line
    assert decode_rollout(line).v == SCHEMA_VERSION == 1


def test_the_golden_file_has_a_line_of_every_kind() -> None:
    rollouts = [decode_rollout(line) for line in GOLDEN]
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    messages = [message for rollout in rollouts for message in rollout.messages]
    assert {rollout.status for rollout in rollouts} == {"completed", "truncated", "failed", "cancelled"}
    assert {rollout.grade for rollout in rollouts} == {"none", "pending", "graded", "failed"}
    assert {rollout.reason for rollout in rollouts} == {None, "interrupted", "surplus"}
    assert any(rollout.error and rollout.error.traceback for rollout in rollouts)
    assert any(rollout.task.data is None for rollout in rollouts)
    assert any(rollout.seats for rollout in rollouts)
    assert any(isinstance(message.content, list) for message in messages)
    assert any(turn.writes is None for turn in turns)
    seen = {(kind, field) for line in LINES for kind, found in parts(line) for field in found}
    assert seen == {(kind, field) for kind in FIELDS for field in ALWAYS[kind] + OPTIONAL[kind]}


def test_golden_lines_are_a_run_that_today_loads(tmp_path: Path) -> None:
    manifest = {
        "schema": 1,
        "windrow": "0.1.0",
        "created_at": 1763244000.0,
        "source": "quiz",
        "split": None,
        "config": {},
        "behaviour": {"hash": "3f9c0d5e7a1b2c48", "of": {}},
        "grading": None,
    }
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    (tmp_path / "rollouts.jsonl").write_bytes(b"".join(line + b"\n" for line in GOLDEN))
    whole = [line["id"] for line in LINES if line["seats"] is None]  # a seat alone is left of a lost episode
    assert [rollout.id for rollout in windrow.load(tmp_path)] == whole


def test_token_arrays_are_little_endian_int32_and_float32_in_base64() -> None:
    tokens = next(turn["tokens"] for line in LINES for turn in line["turns"] if turn["tokens"])
    assert struct.unpack("<3i", b64decode(tokens["prompt_new"])) == (1, 15, 2147483647)
    assert struct.unpack("<3i", b64decode(tokens["output"])) == (7, 8, 9)
    assert struct.unpack("<3f", b64decode(tokens["logprobs"])) == (-0.25, -1.5, -0.0)


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_fields_are_always_written_unless_they_are_marked_optional(kind: type[msgspec.Struct]) -> None:
    found = [part for line in LINES for of, part in parts(line) if of is kind]
    assert found
    for part in found:
        assert [field for field in part if field in ALWAYS[kind]] == ALWAYS[kind]
        assert all(part[field] is not None for field in part if field in OPTIONAL[kind])
    fields = msgspec.structs.fields(kind)
    known = ALWAYS[kind] + OPTIONAL[kind] + LOADED[kind]
    assert sorted(field.encode_name for field in fields) == sorted(known)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["id"])
def test_fields_that_a_reader_does_not_know_are_ignored_at_every_level(line: dict[str, Any]) -> None:
    newer = json.loads(json.dumps(line))
    for _, part in parts(newer):
        part["from_the_future"] = {"v": [2, None]}
    assert decode_rollout(json.dumps(newer)) == decode_rollout(json.dumps(line))


@pytest.fixture
def schema(capsys) -> Any:
    assert main(["schema"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_printed_schema_accepts_every_golden_line(schema: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    validator = jsonschema.Draft202012Validator(schema)
    assert [error.message for line in LINES for error in validator.iter_errors(line)] == []


def test_the_printed_schema_demands_what_is_always_written_and_nothing_else(schema: Any) -> None:
    definitions = schema["$defs"]
    for kind in FIELDS:
        assert sorted(definitions[kind.__name__]["required"]) == sorted(ALWAYS[kind])
        known = ALWAYS[kind] + OPTIONAL[kind] + LOADED[kind]
        known += ["crc32"] if kind is Rollout else []  # which the store adds to the line
        assert sorted(definitions[kind.__name__]["properties"]) == sorted(known)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["status"], "done"),
        (["stop"], None),
        (["reward"], "1.0"),
        (["seed"], 1.5),
        (["messages", 0, "role"], "model"),
        (["messages", 0, "content"], {"text": "a"}),
        (["turns", 0, "reads"], [0, 1]),
        (["task", "data"], "row"),
        (["scores", "number", "value"], None),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, list) else "",
)
def test_the_printed_schema_refuses_what_the_reader_refuses(schema: Any, path: list[Any], value: Any) -> None:
    line = json.loads(GOLDEN[0])
    place = line
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert not jsonschema.Draft202012Validator(schema).is_valid(line)
    with pytest.raises(msgspec.ValidationError):
        decode_rollout(json.dumps(line))


def test_the_documentation_names_every_field() -> None:
    text = (ROOT / "docs" / "file-format.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)\??`", text))
    marked = set(re.findall(r"`(\w+)\?`", text))
    assert {field for kind in FIELDS for field in ALWAYS[kind] + OPTIONAL[kind]} - named == set()
    graded = {"about", "problem", "cached", "lamport"}  # of a grading and its judgements, in scores.jsonl
    assert {field for kind in FIELDS for field in OPTIONAL[kind] + LOADED[kind]} | graded == marked


def test_records_are_frozen() -> None:
    rollout = decode_rollout(GOLDEN[0])
    for record in (rollout, rollout.task, rollout.messages[0], rollout.turns[0]):
        with pytest.raises(AttributeError):
            setattr(record, record.__struct_fields__[0], None)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_any_json_that_an_env_states_is_read_back_as_it_was(value: Any) -> None:
    rollout = decode_rollout(GOLDEN[0])
    turn = msgspec.structs.replace(rollout.turns[0], info=value, state=value)
    rollout = msgspec.structs.replace(rollout, state=value, turns=(turn,))
    again = decode_rollout(encode(rollout))
    assert json.dumps([again.state, again.turns[0].state, again.turns[0].info]) == json.dumps([value] * 3)
    assert encode(again) == encode(rollout)


@pytest.mark.parametrize(
    ("status", "reason", "done"),
    [
        ("completed", None, True),
        ("truncated", None, True),
        ("failed", None, False),
        ("cancelled", "interrupted", False),
        ("cancelled", "budget", False),
        ("cancelled", "surplus", True),
        ("cancelled", "stale", True),
    ],
)
def test_what_settles_a_slot(status: str, reason: str | None, done: bool) -> None:
    assert is_done(status, reason) is done


def test_a_reward_is_weighted_scores_and_turn_rewards_and_only_of_what_ended_well() -> None:
    turns = decode_rollout(GOLDEN[1]).turns
    scores = {"a": RecordedScore(value=0.5, weight=2.0), "b": RecordedScore(value=3.0, weight=-0.5)}
    assert reward_of("completed", "graded", scores, turns) == 0.5 * 2 - 3 * 0.5 + 0.25 + 0.25
    assert reward_of("truncated", "graded", {}, turns) == 0.5
    assert reward_of("completed", "graded", {}, ()) == 0.0
    for grade in ("none", "pending", "failed"):
        assert reward_of("completed", grade, scores, turns) is None
    for status in ("failed", "cancelled"):
        assert reward_of(status, "graded", scores, turns) is None
    assert all(
        rollout.reward == reward_of(rollout.status, rollout.grade, rollout.scores, rollout.turns)
        for rollout in map(decode_rollout, GOLDEN)
    )


def test_the_text_of_a_message_and_the_reply_of_a_rollout() -> None:
    rollouts = [decode_rollout(line) for line in GOLDEN]
    assert [rollout.reply for rollout in rollouts[:2]] == ["The answer is 4.", "4"]
    assert rollouts[5].reply == ""  # cancelled before the policy said anything
    assert rollouts[8].messages[0].text == "What is this?"
    assert rollouts[1].messages[2].text == ""


def test_usage_adds_up_and_a_cost_stays_unknown_until_one_is_known() -> None:
    known, unknown = (
        Usage(prompt_tokens=1, completion_tokens=2, cached_tokens=3, cost=0.5),
        Usage(prompt_tokens=4),
    )
    assert known + unknown == Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=3, cost=0.5)
    assert (unknown + unknown).cost is None
