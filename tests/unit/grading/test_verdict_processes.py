"""Processes that give verdicts: limits begin with the work, slow ones do not hold up the rest, and what is no verdict is said."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.fake_clock import LIMIT_S, time_passes
from windrow.engine.episode_scoring import within
from windrow.errors import ScorerError
from windrow.grading import verdict_processes
from windrow.grading.verdict_processes import MOST_SLOW, Processes, decoded
from windrow.util.forked_calls import ForkServer

ROOT = Path(__file__).parents[3]


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Processes]:
    """One process at a time; each may read what is in `tmp_path`."""
    path = [str(ROOT), str(tmp_path), *(path for path in sys.path if path)]
    server = ForkServer("tests.support.confined_calls", path=path)
    yield Processes(server, who="scorer 'one'", at_once=1)
    server.stop()


def waiting(asked: Processes, file: Path) -> asyncio.Future[bytes | None]:
    """A verdict that is given once the file is there."""
    return asyncio.ensure_future(asked.ask_bytes(f"waits_for({str(file)!r})".encode(), cpu_s=100))


async def test_time_that_is_spent_waiting_for_a_process_is_no_scoring_time(
    asked: Processes, tmp_path: Path
) -> None:
    assert await asked.ask_bytes(b"1", cpu_s=5) == b"1"
    slow = waiting(asked, tmp_path / "go")
    right = [
        asyncio.ensure_future(within(LIMIT_S, asked.ask_bytes(b"1 + 1", cpu_s=5), "one")) for _ in range(3)
    ]
    for _ in range(3):
        await asyncio.sleep(0)
    time_passes()
    for _ in range(3):
        await asyncio.sleep(0)
    (tmp_path / "go").touch()
    assert await asyncio.gather(*right, slow) == [b"2", b"2", b"2", b"done"]


async def test_the_limit_still_ends_work_that_has_begun(asked: Processes, tmp_path: Path) -> None:
    assert await asked.ask_bytes(b"1", cpu_s=5) == b"1"
    work = asyncio.ensure_future(within(LIMIT_S, waiting(asked, tmp_path / "never"), "one"))
    await asyncio.sleep(0)
    time_passes()
    with pytest.raises(ScorerError, match="scorer 'one' did not finish within 100 s"):
        await work


async def test_slow_verdicts_make_room_for_the_rest(
    asked: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict_processes, "SLOW_S", 0.01)
    slow = [waiting(asked, tmp_path / "go") for _ in range(MOST_SLOW)]
    assert await asked.ask_bytes(b"1 + 1", cpu_s=5) == b"2"
    assert not any(verdict.done() for verdict in slow)
    (tmp_path / "go").touch()
    assert await asyncio.gather(*slow) == [b"done"] * MOST_SLOW


async def test_only_so_many_run_at_a_time(asked: Processes, tmp_path: Path) -> None:
    slow = waiting(asked, tmp_path / "go")
    after = asyncio.ensure_future(asked.ask_bytes(b"1", cpu_s=5))
    await asyncio.sleep(0.05)
    assert not after.done()
    (tmp_path / "go").touch()
    assert await asyncio.gather(slow, after) == [b"done", b"1"]


async def test_a_process_that_ends_is_an_error_and_one_that_runs_out_of_time_no_verdict(
    asked: Processes,
) -> None:
    with pytest.raises(ScorerError, match="scorer 'one': its process ended with 7 and gave no answer"):
        await asked.ask_bytes(b"os._exit(7)", cpu_s=5)
    assert await asked.ask_bytes(b"[0 for _ in iter(int, 1)]", cpu_s=1) is None
    assert await asked.ask({"a": 1}, cpu_s=5) == b"{'a': 1}"


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"value": "1"}', b"\xff", b"[" * 100_000])
def test_an_answer_in_another_form_is_no_verdict(answer: bytes) -> None:
    class Wanted(msgspec.Struct):
        value: float

    with pytest.raises(ScorerError, match="gave no verdict that can be read"):
        decoded(answer, Wanted, "scorer 'one'")
