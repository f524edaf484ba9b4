"""Who may read a run: its user alone, unless it is shared. The umask here would let everybody."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.command_process import Project
from windrow.store.manifest import read_manifest

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def home(project: Callable[..., Project]) -> Project:
    made = project("42")
    made.path.chmod(0o755)
    made.tasks([{"id": f"t{n}", "prompt": f"p{n}", "answer": "42"} for n in range(4)])
    return made


def modes(path: Path) -> set[str]:
    """Each mode that occurs, of the directory and all below it."""
    found = [path, *path.rglob("*")]
    return {f"{'d' if one.is_dir() else 'f'}{stat.S_IMODE(one.stat().st_mode):o}" for one in found}


PRIVATE, OPEN = {"d700", "f600"}, {"d755", "f644"}
# A blob, workers' segments, scores, a service's log, TensorBoard's folder, an index: what makes files of its own.
PARTS = """
from windrow import Env, Observation, Step


class Picture(Env):
    version = 1

    async def reset(self, task):
        self.task = task
        name = await self.ctx.blobs.put(b"picture of " + task.key.encode())
        return Observation([{"role": "user", "content": f"{name}"}])

    async def step(self, reply, results):
        return Step(done=True)


def scorer(reply, answer):
    return 1.0
"""
SERVICE = """
services: {quiet: {command: [python3, -m, http.server, --bind, 127.0.0.1, "${PORT}"], health: /, env: {A: b}}}
"""


@pytest.mark.parametrize(
    ("flags", "expected"), [((), PRIVATE), (("--shared",), OPEN)], ids=["private", "shared"]
)
def test_all_files_of_a_new_run_have_the_modes_that_were_asked_for(
    home: Project, flags: tuple[str, ...], expected: set[str]
) -> None:
    home.module("parts", PARTS)
    (home.path / "config.yaml").write_text(SERVICE)
    config = ("--config", "config.yaml", "--env", "parts:Picture", "--scorer", "parts:scorer")
    done = home.collect(*config, "--workers", "2", *flags)
    assert done.code == 0, done.err
    made = {one.name for one in home.run.rglob("*")}
    assert {"run.json", "rollouts.w0.jsonl", "lock", "blobs", "quiet.log", "metrics.json"} <= made
    assert modes(home.run) == expected
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o755


def test_a_run_that_is_continued_keeps_its_modes(home: Project) -> None:
    assert home.collect("--limit", "2", "--shared").code == 0
    assert home.collect("--set", "shared=false").code == 0
    assert modes(home.run) == OPEN
    private = ("--out", "other")
    assert home.collect("--limit", "2", *private).code == 0
    assert home.collect("--shared", *private).code == 0
    assert modes(home.path / "other") == PRIVATE
    assert len(home.lines(run=home.path / "other")) == 4


def test_an_empty_directory_becomes_private_and_parents_do_not(home: Project) -> None:
    home.run.mkdir(0o755)
    assert home.collect().code == 0
    assert modes(home.run) == PRIVATE
    assert home.collect("--out", "new/deep").code == 0
    assert modes(home.path / "new" / "deep") == PRIVATE
    assert stat.S_IMODE((home.path / "new").stat().st_mode) == 0o755


def test_a_merged_run_is_as_private_as_its_parts_and_an_export_is_not(home: Project) -> None:
    for rank in ("0", "1"):
        ranks = ("--rank", rank, "--world-size", "2", "--out", "run.{rank}")
        assert home.collect(*ranks, *(("--shared",) if rank == "1" else ())).code == 0
    assert home.windrow("merge", "run.0", "run.1", "-o", "run").code == 0
    assert modes(home.run) == PRIVATE
    assert home.windrow("merge", "run.1", "-o", "again").code == 1  # one of two ranks
    assert modes(home.path / "again") == OPEN
    done = home.windrow("export", "run", "--to", "sft", "--out", "rows.jsonl")
    assert done.code == 0, done.err
    assert modes(home.path / "rows.jsonl") == {"f644"}


def test_behaviour_and_ids_do_not_depend_on_it(home: Project) -> None:
    assert home.collect("--shared").code == home.collect("--out", "other").code == 0
    first, second = (
        {rollout.id for rollout in home.rollouts(run=path)} for path in (home.run, home.path / "other")
    )
    assert first == second
    manifests = [read_manifest(path) for path in (home.run, home.path / "other")]
    assert len({manifest.behaviour.hash for manifest in manifests}) == 1
