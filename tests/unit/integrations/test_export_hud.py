"""`export --to hud`: flat lines under HUD's names, each message in one step, failures told as such."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.export_helpers import exported, said
from tests.support.hud_rows import V6
from tests.support.run_builders import make_rollout, write_run
from tests.support.scripted_envs import world
from windrow import Completion, Step
from windrow.errors import InfraError
from windrow.records import Call, Stop


def double(n: int) -> int:
    """Twice the number."""
    return 2 * n


async def judged(env: Any) -> Step:
    return Step(
        messages=[{"role": "user", "content": f"step {env.steps}"}],
        reward=env.steps / 2,
        done=env.steps == 2,
        info={"at": env.steps},
    )


def reply(request: Any) -> Completion | str:
    if request.messages[0].text == "down":
        raise InfraError("no route", kind="connection", again=False)
    if request.turn == 0:
        calls = (
            Call(id="c0", name="double", arguments='{"n": 4}'),
            Call(id="c1", name="nothing", arguments="{}"),
        )
        return Completion(content="I call.", tool_calls=calls, reasoning="Twice four.", finish="tool_calls")
    return "8"


async def run_of(tmp_path: Path, split: str = "train") -> list[dict[str, Any]]:
    run = tmp_path / split
    await collected(
        [{"id": "up", "prompt": "go"}, {"id": "down", "prompt": "down"}],
        env=world([], turns=2, step=judged),
        policy=answering(reply),
        tools=[double],
        out=str(run),
        samples=2,
        retries=0,
        call_retries=0,
        source="set",
        split=split,
    )
    return exported(run, "hud")


async def test_a_rollout_is_a_line_under_huds_names(tmp_path: Path) -> None:
    first, second, *_ = await run_of(tmp_path)
    expected = {
        "source": "set:train",
        "split": "train",
        "task_index": 0,
        "task_id": "up",
        "task": {"id": "up", "prompt": "go"},
        "sample_index": 0,
        "attempt": 1,
        "prompt": "go",
        "model": "test",
        "reward": 1.5,
        "done": True,
        "status": "completed",
        "is_error": False,
        "error": None,
        "stop_reason": "done",
        "stop": "env_done",
        "content": "8",
    }
    assert {key: first[key] for key in expected} == expected
    [rollout, other, *_] = windrow.load(tmp_path / "train")
    assert (first["rollout_id"], first["group_id"]) == (rollout.id, rollout.group)
    assert (second["rollout_id"], second["group_id"], second["sample_index"]) == (other.id, rollout.group, 1)
    assert first["usage"]["llm_call_count"] == 2
    assert set(first["timing"]) >= {
        "queued",
        "setup",
        "policy",
        "env",
        "tools",
        "score",
        "total",
        "started_at",
    }
    assert [tool["name"] for tool in first["tools"]] == ["double"]


async def test_a_step_has_its_messages_its_calls_and_its_reward_and_no_message_stands_twice(
    tmp_path: Path,
) -> None:
    first = (await run_of(tmp_path))[0]
    one, two = first["trace"]
    assert [(step["step"], step["reward"], step["info"], step["content"]) for step in (one, two)] == [
        (1, 0.5, {"at": 1}, "I call."),
        (2, 1.0, {"at": 2}, "8"),
    ]
    assert [m["role"] for m in one["messages"]] == ["user", "assistant", "tool", "tool"]
    assert one["messages"][1]["tool_calls"][0]["function"] == {"name": "double", "arguments": '{"n": 4}'}
    assert (one["reasoning"], one["finish_reason"]) == ("Twice four.", "tool_calls")
    ran, refused = one["tool_calls"]
    assert (ran["name"], ran["arguments"], ran["result"], ran["is_error"]) == ("double", {"n": 4}, "8", False)
    assert (refused["name"], refused["is_error"]) == ("nothing", True)
    assert "unknown tool 'nothing'" in refused["error"]
    texts = [m["content"] for m in two["messages"]]
    assert texts == ["step 1", "8", "step 2"]
    assert one["start_timestamp"] < one["end_timestamp"]


async def test_a_failure_is_a_line_that_says_so_and_has_no_reward(tmp_path: Path) -> None:
    down = (await run_of(tmp_path))[2]
    assert (down["task_id"], down["reward"], down["done"], down["status"]) == ("down", None, False, "error")
    assert (down["is_error"], down["stop_reason"], down["stop"]) == (True, None, "error")
    assert {key: down["error"][key] for key in ("owner", "kind", "message")} == {
        "owner": "infra",
        "kind": "connection",
        "message": "no route",
    }
    assert (down["prompt"], down["content"], len(down["trace"])) == ("down", "", 1)


async def test_the_split_is_in_the_source_and_in_every_id(tmp_path: Path) -> None:
    """PR 335's first review: exports of train and test collided."""
    train, test = await run_of(tmp_path, "train"), await run_of(tmp_path, "test")
    assert {row["source"] for row in train} == {"set:train"}
    assert {row["source"] for row in test} == {"set:test"}
    for name in ("rollout_id", "group_id"):
        assert not {row[name] for row in train} & {row[name] for row in test}


def test_the_end_is_told_in_huds_words_and_in_ours(tmp_path: Path) -> None:
    ends: list[tuple[Stop, str | None]] = [
        ("answered", "done"),
        ("max_turns", "max_steps"),
        ("context_overflow", "length"),
        ("timeout", "timeout"),
        ("parse_error", "malformed_tool_call"),
        ("error", None),
    ]
    rollouts = [said(stop, index=n, stop=stop, status="truncated") for n, (stop, _) in enumerate(ends)]
    found = exported(write_run(tmp_path / "run", rollouts), "hud")
    assert [(row["stop"], row["stop_reason"]) for row in found] == ends
    assert {(row["status"], row["done"], row["reward"]) for row in found} == {("completed", False, None)}


def test_a_row_of_hud_goes_out_as_it_came_in(tmp_path: Path) -> None:
    rollout = said("a", reward=0.25)
    task = windrow.Task(key="k", digest="d", source="s", split=None, index=0, tags=(), data=V6)
    changed = {"messages": rollout.messages, "turns": rollout.turns, "reward": 0.25, "grade": "graded"}
    write_run(tmp_path / "run", [make_rollout("a", **changed, scores=rollout.scores, task=task)])
    [row] = exported(tmp_path / "run", "hud")
    assert (row["task"], row["source"], row["reward"]) == (V6, "s", 0.25)


def test_a_rollout_without_its_text_and_one_that_contradicts_itself(tmp_path: Path) -> None:
    whole = said("a", reward=1.0)
    bare = said("bare", index=1, reward=1.0, messages=())
    late = msgspec.structs.replace(whole.turns[0], started_at=1e300)
    run = write_run(
        tmp_path / "run",
        [whole, bare, said("b", index=2, messages=whole.messages[:1]), said("c", index=3, turns=(late,))],
    )
    out = tmp_path / "o.jsonl"
    report = windrow.export(run, to="hud", out=out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["task_id"], [len(step["messages"]) for step in line["trace"]]) for line in lines] == [
        ("a", [2]),
        ("bare", [0]),
    ]
    assert report.invalid == {
        "rollouts with a turn that names messages which are not there": 1,
        "rollouts with times that no calendar has": 1,
    }
