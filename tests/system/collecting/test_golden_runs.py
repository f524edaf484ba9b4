"""Runs of every kind that an earlier Windrow has made (tests/golden) are read, resumed, judged, merged and exported as they were.

`tests/golden/kinds.yaml` says how each was made. Only public doors are used: the command, and the names of `windrow`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.golden import looking, servers
from tests.golden.looking import KIND_OF, KINDS, RUNS

ANEW = [kind.name for kind in KINDS.values() if kind.anew]
MERGED = [kind.name for kind in KINDS.values() if kind.merge]
RESCORED = [run for run, kind in KIND_OF.items() if kind.rescore]
CHANGING = ("OPENAI_API_KEY", "RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "GOLDEN_URL")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the commands are typed; what the runs name is importable from where it always is."""
    for name in CHANGING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(looking.HERE / "parts"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def connections(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Who has called the address at which the runs had their servers."""
    found: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def listen() -> None:
            while True:
                try:
                    connection, address = listening.accept()
                except OSError:
                    return
                found.append(address)
                connection.close()

        monkeypatch.setenv("GOLDEN_URL", f"http://127.0.0.1:{listening.getsockname()[1]}")
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield found
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def unlike(found: Any, run: str, name: str) -> list[str]:
    """Where what was found of a run differs from what is expected."""
    return list(looking.differences(found, looking.expected(run, name)))


@pytest.mark.parametrize("run", KIND_OF)
def test_a_golden_run_is_read_as_it_was(run: str, folder: Path) -> None:
    looking.furnish(folder, run)
    assert unlike(looking.read(run), run, "read") == []
    assert looking.logs(folder / "runs" / run) == looking.logs(RUNS / run)


@pytest.mark.parametrize("run", KIND_OF)
def test_a_golden_run_is_resumed_without_a_request(run: str, folder: Path, connections: list[Any]) -> None:
    kind = KIND_OF[run]
    looking.furnish(folder, run)
    found = looking.resumed(kind, run)
    assert unlike(found, run, "resumed") == []
    assert set(found["codes"]) == {kind.code}
    assert connections == []
    before, after = looking.logs(RUNS / run), looking.logs(folder / "runs" / run)
    assert set(found["changed"]) == {name for name, log in before.items() if log and not log.endswith(b"\n")}
    for name in found["changed"]:  # only what was torn is gone, and it is set aside
        whole, _, tail = before[name].rpartition(b"\n")
        assert after[name] == whole + b"\n"
        assert looking.hashed(tail) in found["torn"].values()


@pytest.mark.parametrize("name", ANEW)
def test_a_golden_run_that_is_made_anew_has_the_same_ids_fingerprints_and_records(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS[name]
    looking.furnish(folder)
    with ExitStack() as stack:
        if kind.server is not None:
            answer = servers.ANSWERS[kind.server]()
            monkeypatch.setenv("GOLDEN_URL", stack.enter_context(servers.serving(answer)))
        for command, code in kind.made:
            done = looking.typed(command)
            assert done.code == code, done.err
    for run in kind.runs:
        assert (
            list(looking.differences(looking.collected(folder / "runs" / run), looking.collected(RUNS / run)))
            == []
        )


@pytest.mark.parametrize("run", KIND_OF)
def test_a_golden_run_is_exported_to_the_same_bytes(run: str, folder: Path) -> None:
    looking.furnish(folder, run)
    found = looking.exported(run)
    expected = looking.expected(run, "exported")
    assert found.keys() == expected.keys()
    for name in found:
        assert found[name] == expected[name], name


@pytest.mark.parametrize("run", RESCORED)
def test_a_golden_run_is_judged_again_with_the_same_verdicts(
    run: str, folder: Path, connections: list[Any]
) -> None:
    looking.furnish(folder, run)
    assert unlike(looking.rescored(KIND_OF[run], run), run, "rescored") == []
    assert connections == []


@pytest.mark.parametrize("order", [1, -1], ids=["as-named", "reversed"])
@pytest.mark.parametrize("name", MERGED)
def test_golden_runs_are_merged_to_the_same_bytes(name: str, order: int, folder: Path) -> None:
    parts = KINDS[name].merge[::order]
    looking.furnish(folder, *parts)
    done = looking.typed(f"merge {' '.join(f'runs/{part}' for part in parts)} -o runs/{name} --quiet")
    assert done.code == 0, done.err
    assert looking.logs(folder / "runs" / name) == looking.logs(RUNS / name)
    assert looking.manifest(folder / "runs" / name) == looking.manifest(RUNS / name)


@pytest.mark.parametrize("run", KIND_OF)
def test_a_golden_run_holds_no_path_of_the_machine_that_made_it(run: str) -> None:
    for file in (file for file in (RUNS / run).rglob("*") if file.is_file()):
        text = file.read_bytes()
        assert not any(
            place in text for place in (b"/tmp/", b"/work/", b"/root", b"/home/", b"site-packages")
        ), file
