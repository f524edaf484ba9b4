"""WebGym in tests: task rows and trajectories as its documentation has them, made up here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tests.support.exact_token_policy import make_turn
from tests.support.fake_disks import QuickDisk
from tests.support.run_builders import make_rollout, write_run
from windrow.identity import digest, group_id, rollout_id
from windrow.integrations.webgym.metrics import Step, Trajectory
from windrow.records import ErrorRecord, Message, RecordedScore, Rollout, Task, ToolCall
from windrow.store.manifest import read_manifest
from windrow.store.run_directory import RunDirectory
from windrow.store.task_file import TaskLine
from windrow.tasks.row_formats import ForeignRows
from windrow.tasks.rows import spool_rows

Row = dict[str, Any]


def row(number: int = 1, **changes: Any) -> Row:
    """A row, without what is changed to None."""
    plain: Row = {
        "benchmark_name": "made-up",
        "task_name": f"Find the price of item {number}.",
        "domain": "Lifestyle & Leisure",
        "subdomain": "Shopping",
        "website": f"https://shop{number}.example",
        "definite_answer": f"{number} EUR",
        "task_id": number,
        "difficulty": 2,
        "evaluator_reference": [f"The price is {number} EUR.", "It is in stock."],
    }
    return {key: value for key, value in {**plain, **changes}.items() if value is not None}


def steps(*keys: str, chars: int = 10, reward: float | None = 0.0, blocked: bool = False) -> Trajectory:
    """A trajectory of these actions; `reward` and `blocked` are the last step's."""
    before = [Step(key, chars, 0.0) for key in keys[:-1]]
    last = [Step(key, chars, reward, blocked) for key in keys[-1:]]
    return Trajectory((*before, *last), outcome="answered" if keys[-1:] == ("answer",) else "other")


Action = tuple[str, dict[str, Any]] | None  # None: the reply held none that could be read

SCREEN = (1280, 768)


def browsed(
    *actions: Action,
    number: int = 1,
    pass_: int = 0,
    reward: float | None = None,
    blocked: bool = False,
    split: str | None = "train",
    changes: Any = None,
    **fields: Any,
) -> Rollout:
    """A rollout as the environment `web` records it: a page and a screenshot before each reply, an action after it."""
    task = _task(number, split, changes or {})
    messages: list[Message] = [Message(role="system", content="Act.", origin="task")]
    turns = []
    for place, action in enumerate(actions):
        shot = {
            "blob": digest([number, place // 2]) * 2,
            "media_type": "image/png",
            "width": 1280,
            "height": 768,
        }
        page: Any = [{"type": "text", "text": f"Page: {place}"}, shot]
        messages.append(Message(role="user", content=page, origin="env" if place else "task"))
        reply = f"I think. Action: {action[0] if action else '?'}"
        messages.append(Message(role="assistant", content=reply, origin="policy", turn=place))
        wall = {"kind": "captcha", "url": "https://x.example", "why": "a captcha"}
        state = {
            "url": f"https://x.example/{place}",
            "title": f"Page {place}",
            "action": action and action[0],
        }
        state["blocked"] = wall if blocked and place == len(actions) - 1 else None
        calls = (_call(place, *action, result=len(messages)),) if action else ()
        turn = make_turn(
            None, reads=((0, len(messages) - 1),), writes=len(messages) - 1, tool_calls=calls, state=state
        )
        turns.append(
            turn if action else msgspec.structs.replace(turn, parse_error="no line begins with 'Action:'")
        )
    graded: dict[str, Any] = {}
    if reward is not None:
        graded = {
            "reward": reward,
            "grade": "graded",
            "scores": {"facts": RecordedScore(value=reward, weight=1.0)},
        }
    answered = bool(actions) and actions[-1] is not None and actions[-1][0] == "answer"
    ended = {} if answered else {"status": "truncated", "stop": "max_turns"}
    group = _group(task, pass_)
    sample = fields.get("sample", 0)
    told: dict[str, Any] = {"task": task, "env": "web", "group": group, "id": rollout_id(group, sample)}
    told |= {"messages": tuple(messages), "turns": tuple(turns), "state": turns[-1].state if turns else None}
    return make_rollout(task.key, **{**told, **graded, **ended, **fields})


def failed(*actions: Action, kind: str = "browser_gone", **fields: Any) -> Rollout:
    """One that the infrastructure ended, or that had no valid address."""
    owner: Any = "env" if kind == "invalid_url" else "infra"
    error = ErrorRecord(owner=owner, kind=kind, message="it is gone", phase="env", retryable=owner == "infra")
    return browsed(*actions, status="failed", stop="error", error=error, grade="none", **fields)


def write_browsed(path: Path, rollouts: list[Rollout], *, config: Any = None, **manifest: Any) -> Path:
    """A run directory with these rollouts and their tasks."""
    write_run(path, rollouts)
    tasks = {rollout.task.digest: rollout.task for rollout in rollouts}
    lines = [msgspec.json.encode(_line(task)) + b"\n" for task in tasks.values()]
    (path / "tasks.jsonl").write_bytes(b"".join(lines))
    directory = RunDirectory(path, disk=QuickDisk())
    known = read_manifest(path)
    told = {
        "split": "train",
        "config": {"pass": 0, "samples": 1, **(config or {})},
        "created_at": 0.0,
        **manifest,
    }
    directory.write_manifest(msgspec.structs.replace(known, **told))
    directory.close()
    return path


def _task(number: int, split: str | None, changes: Any) -> Task:
    [read] = ForeignRows(spool_rows([row(number, **changes)], "rows"))
    data: Any = read.data  # type: ignore[union-attr]
    return Task(
        key=str(number), digest=digest(data), source="rows", split=split, index=number, tags=(), data=data
    )


def _group(task: Task, pass_: int) -> str:
    return group_id(
        source="rows", split=task.split, digest=task.digest, occurrence=0, pass_=pass_, behaviour="behaviour"
    )


def _line(task: Task) -> TaskLine:
    fields = {
        name: getattr(task, name) for name in ("key", "digest", "source", "split", "index", "tags", "data")
    }
    return TaskLine(occurrence=0, **fields)


def _call(place: int, name: str, arguments: dict[str, Any], *, result: int) -> ToolCall:
    return ToolCall(
        id=f"act-{place}",
        name=name,
        arguments=arguments,
        result=result,
        failed=False,
        started_at=0.0,
        seconds=0.1,
    )
