"""Memory that others could fill: replies in flight, rows and packed files are bounded, and whatever goes beyond costs itself alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from tests.support.collect_helpers import answering, collected
from tests.support.model_server import write_jsonl
from tests.support.raw_server import completion, http, serving, wire
from windrow.cli.main import main
from windrow.errors import UsageError
from windrow.util.byte_budget import FREE_BYTES, REPLIES, ByteBudget, HeldBytes

MIB = 1 << 20


class Together:
    """Answers with `size` bytes each, and begins with no reply before `waiting` requests are there."""

    def __init__(self, size: int, waiting: int) -> None:
        self._answer = http(200, completion("x" * size))
        self._waiting = waiting
        self._arrived = asyncio.Event()
        self.requests = 0

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        self.requests += 1
        if self.requests >= self._waiting:
            self._arrived.set()
        await self._arrived.wait()
        writer.write(self._answer)
        await writer.drain()


@pytest.fixture(autouse=True)
def _same_budget_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REPLIES, "max_bytes", REPLIES.max_bytes)


async def test_replies_in_flight_share_a_budget_and_one_that_goes_beyond_fails_alone(tmp_path: Path) -> None:
    together = Together(3 * MIB, waiting=6)
    async with wire(serving(together)) as server:
        rollouts = await collected(
            [{"prompt": f"q{number}", "answer": "x"} for number in range(6)],
            model="m",
            base_url=server.url,
            out=str(tmp_path / "run"),
            scorers=["contains"],
            concurrency=6,
            call_retries=0,
            retries=0,
            sets=["limits.replies_in_flight_mb=10", "policy.probe=false", "policy.dialect=openai"],
        )
    failed = [rollout for rollout in rollouts if rollout.error is not None]
    assert together.requests == 6
    assert 0 < len(failed) < 6
    assert {rollout.status for rollout in rollouts if rollout not in failed} == {"completed"}
    for rollout in failed:
        assert rollout.error is not None
        assert (rollout.error.kind, rollout.reward) == ("replies_too_large", None)
        assert "limits.replies_in_flight_mb allows more" in rollout.error.message


def test_a_budget_is_given_back_when_its_holder_goes_and_small_replies_are_free() -> None:
    budget = ByteBudget(2 * MIB)
    first, second = HeldBytes(budget), HeldBytes(budget)
    assert second.cover(FREE_BYTES)
    assert budget.held_bytes == 0
    assert first.cover(2 * MIB)
    assert not second.cover(FREE_BYTES + 1)
    del first
    assert second.cover(FREE_BYTES + 1)
    del second
    assert budget.held_bytes == 0


def test_a_row_over_the_limit_is_refused_by_line_and_the_limit_can_be_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": "a"}, {"prompt": "b" * (17 * MIB)}])
    assert main(["tasks", "check", str(tasks)]) == 2
    said = capsys.readouterr().err
    assert "tasks.jsonl:2: the row is longer than 16 MiB" in said
    assert "--set tasks.max_row_mb=N allows up to 64" in said
    assert main(["tasks", "check", str(tasks), "--skip-invalid"]) == 0


async def test_the_limit_of_a_row_is_a_setting(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "tasks.jsonl", [{"prompt": "b" * (2 * MIB)}])
    options: dict[str, Any] = {"policy": answering("x"), "out": str(tmp_path / "run")}
    with pytest.raises(UsageError, match="the row is longer than 1 MiB"):
        await collected(str(rows), **options, sets=["tasks.max_row_mb=1"])
    assert len(await collected(str(rows), **options)) == 1


def test_a_parquet_file_that_unfolds_out_of_all_proportion_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 2000, "int32"), ["x" * MIB])
    path = tmp_path / "tasks.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": text}), path, compression="zstd")
    assert path.stat().st_size < 100_000
    assert main(["tasks", "check", str(path)]) == 2
    assert "unfolds to more than 256 MiB" in capsys.readouterr().err


def test_an_ordinary_parquet_file_that_repeats_itself_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tasks.parquet"
    table = pyarrow.table({"prompt": [f"q{n}" for n in range(3000)], "system": ["Be brief. " * 50] * 3000})
    pyarrow.parquet.write_table(table, path)
    assert main(["tasks", "check", str(path)]) == 0
    assert "3,000 valid tasks" in capsys.readouterr().out
