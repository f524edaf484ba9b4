"""Every format takes a run that holds every kind of rollout: each of them is a row, or counted with the reason."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import windrow
from tests.support.exact_token_policy import make_turn
from tests.support.export_helpers import said, sampled
from tests.support.image_env import picture
from tests.support.run_builders import write_run
from windrow.exports.run import BUILT_IN
from windrow.identity import group_id
from windrow.records import Call, ErrorRecord, Message, Rollout, ToolCall
from windrow.registry import declared
from windrow.store.blobs import FOLDER, path_of
from windrow.util.blobs import name_of_blob

FORMATS = (*BUILT_IN, *declared("exporters"))
STATUSES = {
    "completed": "answered",
    "truncated": "max_turns",
    "failed": "error",
    "cancelled": "cancelled",
}
PICTURE = picture(7)
IMAGE = {"blob": name_of_blob(PICTURE), "media_type": "image/png", "width": 8, "height": 6}


def _ended(status: str) -> dict[str, Any]:
    error = ErrorRecord(
        owner="tool", kind="mcp_start", phase="setup", message="no server", retryable=True, traceback=None
    )
    return {
        "status": status,
        "stop": STATUSES[status],
        "error": error if status == "failed" else None,
        "reason": "budget" if status == "cancelled" else None,
    }


def _looked(name: str, **changes: Any) -> Rollout:
    """A rollout whose prompt and whose tool's result hold an image."""
    call = Call(id="c", name="look", arguments="{}")
    messages = (
        Message(role="user", content=[{"type": "text", "text": name}, IMAGE], origin="task"),
        Message(role="assistant", content="", origin="policy", turn=0, tool_calls=(call,)),
        Message(
            role="tool", content=[{"type": "text", "text": "seen"}, IMAGE], origin="tool", tool_call_id="c"
        ),
        Message(role="assistant", content="blue", origin="policy", turn=1),
    )
    ran = ToolCall(id="c", name="look", arguments={}, result=2, failed=False, started_at=0.0, seconds=0.1)
    turns = (
        make_turn(None, reads=((0, 1),), writes=1, tool_calls=(ran,)),
        make_turn(None, reads=((0, 3),), writes=3),
    )
    return said(name, messages=messages, turns=turns, **changes)


FORK = (((1, 2), (3, 4)), ((1, 2, 9), (5,)), ((1, 2, 3, 4, 6), (7, 8)))


def _every_kind() -> Iterator[Rollout]:
    """Rollouts of every status: without a turn or message, with text, tokens that fork, images; graded, ungraded, failed in grading."""
    for status, graded in itertools.product(STATUSES, ("graded", "none", "failed")):
        if graded != "none" and status in ("failed", "cancelled"):
            continue
        verdict: dict[str, Any] = {"reward": 1.0} if graded == "graded" else {"grade": graded}
        ended = {**_ended(status), **verdict}
        kind = f"{status} {graded}"
        yield said(f"bare {kind}", **ended, messages=(), turns=())
        opening = (Message(role="user", content="hello", origin="task"),)
        yield said(f"turnless {kind}", **ended, messages=opening, turns=())
        yield said(f"text {kind}", **ended)
        yield sampled(f"forked {kind}", FORK, **ended)
        yield _looked(f"image {kind}", **ended)


def _seats() -> Iterator[Rollout]:
    """A match of three: a seat that moved, one that never did, one that holds tokens."""
    moves = (said("match", reward=1.0), said("match", reward=0.0, messages=(), turns=()), sampled("match"))
    for seat, rollout in enumerate(moves):
        yield msgspec.structs.replace(rollout, id=f"seat{seat}", seat=seat, episode="e", seats=3)


def _group(rollout: Rollout) -> str:
    """The group as the manifest of `write_run` makes it: from its id a format tells the iteration."""
    task = rollout.task
    return group_id(
        source=task.source,
        split=task.split,
        digest=task.digest,
        occurrence=0,
        pass_=0,
        behaviour="behaviour",
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("every") / "run"
    indices: dict[str, int] = {}
    rollouts = [
        msgspec.structs.replace(
            rollout,
            group=_group(rollout),
            task=msgspec.structs.replace(
                rollout.task, index=indices.setdefault(rollout.task.digest, len(indices))
            ),
        )
        for rollout in (*_every_kind(), *_seats())
    ]
    write_run(path, rollouts)
    tasks = {rollout.task.digest: rollout.task for rollout in rollouts}
    lines = [{**msgspec.structs.asdict(task), "occurrence": 0} for task in tasks.values()]
    (path / "tasks.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    blob = path_of(path / FOLDER, IMAGE["blob"])
    blob.parent.mkdir(parents=True)
    blob.write_bytes(PICTURE)
    return path


@pytest.mark.parametrize("format", FORMATS)
def test_a_rollout_of_any_kind_is_a_row_or_is_counted_with_the_reason(
    format: str, run: Path, tmp_path: Path
) -> None:
    report = windrow.export(run, to=format, out=tmp_path / "out.jsonl")
    assert report.rows > 0
    assert report.invalid == {}
    assert report.exported + sum(report.left_out.values()) == report.rollouts == 43


def test_hud_has_a_line_for_each_of_them(run: Path, tmp_path: Path) -> None:
    report = windrow.export(run, to="hud", out=tmp_path / "hud.jsonl")
    assert (report.exported, report.left_out) == (report.rollouts, {})
    lines = [msgspec.json.decode(line) for line in (tmp_path / "hud.jsonl").read_bytes().splitlines()]
    assert {line["status"] for line in lines} == {"completed", "error", "cancelled"}
    assert [line["trace"] for line in lines if line["task_id"].startswith(("bare", "turnless"))] == [[]] * 16
