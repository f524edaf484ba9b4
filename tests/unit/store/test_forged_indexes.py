"""A run from a stranger may bring an index that was made to mislead: its checksum and its keys are right, what it says is not."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.model_server import write_jsonl
from tests.support.run_builders import collect, open_run, rows
from windrow.collecting.opening import open_collection
from windrow.collecting.resolve import resolve
from windrow.config import load_config
from windrow.engine.components import Overrides
from windrow.errors import StoreError
from windrow.policies import Policy
from windrow.store import scan_index
from windrow.store.index_files import FOLDER, read_derived

pytestmark = pytest.mark.usefixtures("indexed")

ESCAPE = "\x1b]0;owned\x07"
HUGE = 2**63 - 1


def forge(run: Path, name: str, change: Callable[[Any], object]) -> None:
    """Rewrite what an index says, as somebody would who knows its form."""
    path = run / FOLDER / name
    made_by, _, rest = path.read_bytes().partition(b"\n")
    value = msgspec.msgpack.decode(rest[4:])
    change(value)
    payload = msgspec.msgpack.encode(value)
    path.write_bytes(made_by + b"\n" + zlib.crc32(payload).to_bytes(4, "big") + payload)


def setting(*path: int, to: Callable[[Any], Any] | Any) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        *way, last = path
        for step in way:
            value = value[step]
        value[last] = to(value[last]) if callable(to) else to

    return change


def found(run: Path) -> tuple[Any, ...]:
    """What a call finds: its counts, what it would run, and of what it warns."""
    collection = open_run(run)
    try:
        pending = [(slot.id, slot.attempt) for slot in collection.plan.pending(collection.ledger)]
        return collection.summary(), collection.ledger.retry_count, pending, collection.warnings
    finally:
        collection.close()


def cut(data: bytes) -> bytes:
    return data[:-3]


def only_tried(index: Any) -> None:
    """The first sample of a group was tried for ever."""
    index[2], index[3] = b"", [[index[2][:12].hex(), 0, [HUGE, True]]]


SEGMENT: dict[str, Callable[[Any], None]] = {
    "a row that is cut off": setting(2, to=cut),
    "fewer bytes than none": setting(0, 1, to=-5),
    "an attempt that no line may have": only_tried,
    "a problem that is no text": setting(7, to=[[1, ESCAPE]]),
}
LEDGER: dict[str, Callable[[Any], None]] = {
    "fewer slots": setting(1, 0, to=b""),
    "more slots": setting(1, 0, to=lambda done: done + b"\xff"),
    "a slot that is not in the plan": setting(1, 0, to=b"\xff"),
    "a try beyond the plan": setting(1, 1, to={10**9: 1}),
    "a try before the plan": setting(1, 1, to={-1: 1}),
    "an attempt that no line may have": setting(1, to=[b"\0", {0: HUGE}, []]),
    "a failure beyond the plan": setting(1, 2, to=[10**9]),
}


@pytest.mark.parametrize("lie", SEGMENT)
async def test_an_index_of_a_segment_that_cannot_be_is_none(tmp_path: Path, lie: str) -> None:
    await collect(tmp_path / "run")
    expected = found(tmp_path / "run")
    (tmp_path / "run" / FOLDER / "ledger.index").unlink()
    forge(tmp_path / "run", "rollouts.index", SEGMENT[lie])
    assert found(tmp_path / "run") == expected


@pytest.mark.parametrize("lie", LEDGER)
async def test_a_ledger_that_cannot_be_of_the_plan_is_none(tmp_path: Path, lie: str) -> None:
    await collect(tmp_path / "run")
    expected = found(tmp_path / "run")
    forge(tmp_path / "run", "ledger.index", LEDGER[lie])
    assert found(tmp_path / "run") == expected


async def test_nothing_in_an_index_of_verdicts_reaches_a_terminal(tmp_path: Path) -> None:
    await collect(tmp_path / "run")
    expected = found(tmp_path / "run")
    bad = {"segment": "scores.jsonl", "number": 1, "problem": ESCAPE}
    forge(tmp_path / "run", "scores.index", setting(2, 1, to=[bad]))
    assert found(tmp_path / "run") == expected


@pytest.mark.parametrize("offsets", [cut, lambda offsets: offsets[:8], lambda offsets: offsets * 2])
async def test_an_index_of_other_tasks_is_none(tmp_path: Path, offsets: Callable[[bytes], bytes]) -> None:
    await collect(tmp_path / "run")
    expected = found(tmp_path / "run")
    forge(tmp_path / "run", "tasks.index", setting(2, to=offsets))
    assert found(tmp_path / "run") == expected


@pytest.mark.parametrize("offset", [0, 7, 10**6, 2**64 - 1])
async def test_no_task_is_played_under_the_name_of_another(tmp_path: Path, offset: int) -> None:
    """Also where the index says that it stands there."""
    await collect(tmp_path / "run")
    forge(
        tmp_path / "run", "tasks.index", setting(2, to=lambda old: old[:8] + offset.to_bytes(8, "little") * 2)
    )
    collection = open_run(tmp_path / "run")
    try:
        assert collection.plan.tasks.task(0).key == collection.plan.tasks.identity(0)[0]
        with pytest.raises(StoreError, match=r"delete that and run the command again"):
            collection.plan.tasks.task(1)
    finally:
        collection.close()


SOURCE: dict[str, Callable[[Any], None]] = {
    "an offset that is cut off": setting(1, 0, to=cut),
    "fewer offsets": setting(1, 0, to=lambda offsets: offsets[:8]),
    "fewer numbers": setting(1, 1, to=lambda indexes: indexes[:8]),
    "a digest that is cut off": setting(1, 2, to=cut),
    "no rows": setting(1, to=lambda old: [b"", b"", b"", *old[3:]]),
    "rows that it does not have": setting(1, 3, to={10**9: 1}),
    "more rows that are alike than there are": setting(1, 3, to={0: 10**9}),
    "rows that are alike less than never": setting(1, 3, to={0: -1}),
    "a problem that is no text": setting(2, 2, to=[[[ESCAPE, ESCAPE]], 1]),
}


@pytest.mark.parametrize("lie", SOURCE)
def test_an_index_of_rows_that_cannot_be_is_none(
    tmp_path: Path, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_index, "MIN_ROWS", 0)
    write_jsonl(tmp_path / "tasks.jsonl", rows(3))
    options = {"tasks": str(tmp_path / "tasks.jsonl"), "out": str(tmp_path / "run")}

    def planned() -> list[tuple[str, int]]:
        collection = open_collection(resolve(load_config((), options), Overrides(policy=Policy())))
        try:
            return [collection.plan.tasks.identity(n) for n in range(len(collection.plan.tasks))]
        finally:
            collection.close()

    expected = planned()
    forge(tmp_path / "run", scan_index.NAME, SOURCE[lie])
    assert read_derived(tmp_path / "run", scan_index.NAME, scan_index.KeptScan) is None
    assert planned() == expected
