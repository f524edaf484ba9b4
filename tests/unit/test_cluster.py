"""Parent and workers: how work is shared, and who waits for whom."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.cluster.workers import divided, shares_of
from windrow.config import PolicyConfig, RunConfig
from windrow.construct import Recipe
from windrow.errors import UsageError
from windrow.store import locks
from windrow.store.directory import RunDirectory
from windrow.store.lock import Lock

HOLD = """
import sys
from pathlib import Path
from windrow.store.lock import Lock
held = Lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
"""


@given(st.integers(1, 1000), st.integers(1, 50))
def test_shares_are_even_and_nothing_is_dropped(total: int, count: int) -> None:
    shares = shares_of(total, count)
    assert (sum(shares), len(shares)) == (total, count)
    assert max(shares) - min(shares) <= 1


def test_the_rates_of_an_endpoint_are_divided() -> None:
    policy = PolicyConfig(model="m", requests_per_minute=90.0)
    recipe = Recipe(run=RunConfig(policy=policy), origins={}, scorers=[], behaviour="b", grading=None)
    shared = divided(recipe, 3).run.policy
    assert (shared.requests_per_minute, shared.tokens_per_minute) == (30.0, None)
    assert msgspec.structs.replace(shared, requests_per_minute=90.0) == policy


@pytest.fixture
def worker(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock of a worker's segment until it is told to go."""
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run" / "lock.w0")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_next_parent_waits_for_workers_that_are_still_writing(
    tmp_path: Path, worker: subprocess.Popen[str]
) -> None:
    opened = threading.Event()

    def open_it() -> None:
        RunDirectory(tmp_path / "run").close()
        opened.set()

    opening = threading.Thread(target=open_it)
    opening.start()
    assert not opened.wait(0.3)
    worker.communicate("go\n", timeout=30)
    opening.join(30)
    assert opened.is_set()


def test_a_worker_that_does_not_go_is_named(
    tmp_path: Path, worker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "WORKERS_GONE_S", 0.05)
    with pytest.raises(UsageError, match=f"is being written by process {worker.pid}"):
        RunDirectory(tmp_path / "run")
    worker.communicate("go\n", timeout=30)
    Lock(tmp_path / "run" / "lock").release()
