"""Runs for the tests of the store: real collections with a scripted policy, and records made by hand."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.support.fake_disks import QuickDisk
from windrow.collecting.collection import Collection, Summary
from windrow.collecting.opening import open_collection
from windrow.collecting.resolve import resolve
from windrow.collecting.running import run_collection
from windrow.config import load_config
from windrow.engine.components import Overrides
from windrow.engine.control import Control
from windrow.identity import digest, rollout_id, seed_of
from windrow.policies.base import Request
from windrow.policies.scripted import CallablePolicy
from windrow.records import (
    ErrorRecord,
    Grading,
    Json,
    PolicyRecord,
    RecordedScore,
    Rollout,
    Task,
    Timing,
    Usage,
    encode,
)
from windrow.store.manifest import Fingerprint, new_manifest
from windrow.store.reader import load
from windrow.store.run_directory import RunDirectory
from windrow.util.disk import Disk

Row = dict[str, Json]
VOLATILE = ("timing", "started_at", "seconds", "first_token_s", "tools_seconds")


@contextlib.contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A directory in memory where there is one: for tests that write thousands of small files."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


# -- real runs


def rows(count: int) -> list[Row]:
    return [{"prompt": f"say {number}", "answer": str(number)} for number in range(count)]


def echo(request: Request) -> str:
    """Answers `say 7` with 7."""
    return request.messages[-1].text.removeprefix("say ")


def judge(task: Task, reply: str) -> float:
    """Runs after the commit, so that there is a scores.jsonl."""
    return float(reply == task["answer"])


judge.after_commit = True  # type: ignore[attr-defined]


def open_run(
    out: Path,
    *,
    tasks: Sequence[Row] | None = None,
    answer: Callable[[Request], Any] = echo,
    scorers: Sequence[str | Callable[..., Any]] = (judge,),
    disk: Disk | None = None,
    overwrite: bool = False,
    redo: str | None = None,
    regrade: bool = False,
    on_warning: Callable[[str], None] | None = None,
    **options: Any,
) -> Collection:
    """A collection opened on `out`, as the command opens it. `options` are the command's."""
    named = [scorer for scorer in scorers if isinstance(scorer, str)]
    settings = {"samples": 2, "concurrency": 4, "out": str(out), "call_retries": 0, "retries": 0, **options}
    if named:
        settings["scorers"] = named
    parts = Overrides(
        rows=rows(3) if tasks is None else tasks,
        policy=CallablePolicy(answer, name="echo"),
        scorers=tuple(scorer for scorer in scorers if not isinstance(scorer, str)),
    )
    resolved = resolve(load_config((), settings), parts)
    return open_collection(
        resolved,
        overwrite=overwrite,
        redo=redo,
        regrade=regrade,
        disk=disk or QuickDisk(),
        on_warning=on_warning,
    )


async def collect(
    out: Path, *, control: Control | None = None, **options: Any
) -> tuple[Summary, list[Rollout]]:
    """Run `out` as far as it goes: how it ended, and what was reported committed on the way."""
    committed: list[Rollout] = []
    summary = await run_collection(open_run(out, **options), control=control, on_commit=committed.append)
    return summary, committed


def lasting(rollout: Rollout) -> dict[str, Json]:
    """A rollout without what may differ from one run to the next."""
    plain: dict[str, Json] = _without_volatile(msgspec.to_builtins(rollout))
    return plain


def contents(run: Path, attempts: str = "all") -> list[dict[str, Json]]:
    return [lasting(rollout) for rollout in load(run, attempts=attempts)]


def attempts(run: Path) -> list[tuple[str, int]]:
    return [(rollout.id, rollout.attempt) for rollout in load(run, attempts="all")]


def _without_volatile(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _without_volatile(item) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, list | tuple):
        return [_without_volatile(item) for item in value]
    return value


# -- runs made by hand

GRADING = Fingerprint("grading-a", {"scorers": [{"name": "judge", "weight": 1.0}], "env": None})
FAILED = ErrorRecord(owner="infra", kind="http_503", message="busy", phase="policy", retryable=True)


def make_rollout(name: str = "task", **changes: Any) -> Rollout:
    """A completed attempt at sample 0 of a task called `name`, ungraded unless `changes` say otherwise."""
    group = digest(name)[:24]
    sample, attempt = changes.get("sample", 0), changes.get("attempt", 1)
    index = changes.pop("index", 0)
    fields: dict[str, Any] = {
        "id": rollout_id(group, sample),
        "attempt": 1,
        "group": group,
        "sample": 0,
        "episode": None,
        "seat": None,
        "seats": None,
        "seed": seed_of(rollout_id(group, sample), attempt),
        "task": Task(
            key=name,
            digest=digest(name),
            source="rows",
            split=None,
            index=index,
            tags=(),
            data={"prompt": name},
        ),
        "env": "problem",
        "agent": "chat",
        "policy": PolicyRecord(model="m", sampling={}, fingerprint="behaviour"),
        "tools": (),
        "status": "completed",
        "stop": "answered",
        "error": None,
        "reason": None,
        "grade": "none",
        "grading": GRADING.hash,
        "reward": None,
        "scores": {},
        "metrics": {},
        "state": None,
        "messages": (),
        "turns": (),
        "usage": Usage(),
        "timing": Timing(started_at=0.0),
        "capture": "text",
    }
    return Rollout(**{**fields, **changes})


def make_grading(rollout: Rollout, value: float | None, **changes: Any) -> Grading:
    """The verdict of the scorer `judge`; None is one that failed."""
    error = ErrorRecord(owner="scorer", kind="scorer", message="no", phase="score", retryable=True)
    fields: dict[str, Any] = {
        "unit": rollout.id,
        "members": ((rollout.id, rollout.attempt),),
        "scorer": "judge",
        "fingerprint": GRADING.hash,
        "generation": 1,
        "scores": (
            {} if value is None else {"judge": RecordedScore(value=value, weight=1.0, scorer="judge")},
        ),
        "error": error if value is None else None,
    }
    return Grading(**{**fields, **changes})


def write_lines(path: Path, records: Iterable[msgspec.Struct]) -> None:
    with path.open("ab") as file:
        file.writelines(encode(record) + b"\n" for record in records)


def write_run(
    path: Path, rollouts: Iterable[Rollout] = (), gradings: Iterable[Grading] = (), *, grading: Any = GRADING
) -> Path:
    """A run directory that holds these lines."""
    directory = RunDirectory(path, disk=QuickDisk())
    directory.write_manifest(
        new_manifest(
            version="0",
            source="rows",
            split=None,
            config={},
            behaviour=Fingerprint("behaviour", {}),
            grading=grading,
            code={},
        )
    )
    directory.close()
    write_lines(path / "rollouts.jsonl", rollouts)
    write_lines(path / "scores.jsonl", gradings)
    return path
