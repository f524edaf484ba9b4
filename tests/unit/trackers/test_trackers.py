"""Trackers: what they are sent, under which names; and that nothing they do loses a run or changes an exit code."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import answering, collected
from tests.support.fake_tracker import FakeRun, FakeWandb
from tests.support.run_builders import collect, make_rollout, open_run, write_run
from windrow.cli.main import main
from windrow.collecting.running import run_collection
from windrow.engine.control import Control
from windrow.records import RecordedScore
from windrow.stats.metrics import measure
from windrow.store.lock import Lock
from windrow.trackers import reporting
from windrow.trackers.mlflow import metric_name
from windrow.trackers.names import Named
from windrow.trackers.reporting import Capped, track

pytestmark = pytest.mark.slow

ROWS = [{"prompt": "one", "answer": "1"}, {"prompt": "two", "answer": "2"}]

Install = Callable[..., FakeWandb]


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Install:
    """A module in the place of wandb, which does what it is told to."""

    def install(**script: Callable[[], None]) -> FakeWandb:
        module = FakeWandb(**script)
        monkeypatch.setitem(sys.modules, "wandb", module)
        return module

    return install


def raising(problem: BaseException) -> Callable[[], None]:
    def call() -> None:
        raise problem

    return call


async def tracked(run: Path, **options: Any) -> list[str]:
    """Collect the rows, half of them right; the warnings."""
    warnings: list[str] = []
    options = {"policy": answering("1"), "samples": 2, "scorers": ["number"], **options}
    await collected(ROWS, out=str(run), on_warning=warnings.append, **options)
    return warnings


def only(module: FakeWandb) -> FakeRun:
    [run] = module.runs
    return run


# -- what is sent


async def test_metrics_are_named_by_agent_and_rollouts_are_a_table(tmp_path: Path, wandb: Install) -> None:
    module = wandb()
    assert await tracked(tmp_path / "run", track=["wandb:mine"]) == []
    run = only(module)
    assert (run.options["project"], run.options["name"], run.finished) == ("mine", "run", 1)
    assert run.table is not None
    assert run.table.columns == ["Rollout"]
    assert [(r["task"]["data"]["prompt"], r["sample"], r["reward"]) for r in run.rollouts] == [
        ("one", 0, 1.0),
        ("one", 1, 1.0),
        ("two", 0, 0.0),
        ("two", 1, 0.0),
    ]
    [entry] = measure(tmp_path / "run").agents
    wanted = {f"key_metrics/chat/{name}": value for name, value in entry.key_metrics.items()}
    assert {name: value for name, value in run.metrics.items() if name.startswith("key_metrics/")} == wanted
    assert run.metrics["chat/mean/reward"] == run.metrics["key_metrics/chat/mean/reward"] == 0.5
    assert run.metrics["chat/mean/score/number"] == 0.5
    assert run.metrics["chat/rate/status/completed"] == 1.0
    assert run.metrics["chat/majority@2"] == 0.5


async def test_only_finite_numbers_are_sent(tmp_path: Path, wandb: Install) -> None:
    module = wandb()
    await tracked(tmp_path / "run", track="wandb", samples=1)
    values = only(module).metrics.values()
    assert {type(value) for value in values} <= {int, float}
    assert all(math.isfinite(value) for value in values)


async def test_each_agent_has_names_of_its_own(tmp_path: Path, wandb: Install) -> None:
    module = wandb()
    score = {"judge": RecordedScore(value=1.0, weight=1.0, scorer="judge")}
    rollouts = [
        make_rollout("a", grade="graded", reward=1.0, scores=score, agent="chat"),
        make_rollout("b", index=1, grade="graded", reward=0.0, agent="pkg:Other"),
    ]
    run = write_run(tmp_path / "run", rollouts)
    await track(run, [Named("wandb", None)], warn=pytest.fail)
    metrics = only(module).metrics
    assert (metrics["chat/mean/reward"], metrics["pkg:Other/mean/reward"]) == (1.0, 0.0)
    assert (metrics["chat/mean/score/judge"], "pkg:Other/mean/score/judge" in metrics) == (1.0, False)


async def test_an_open_run_of_the_process_is_used_unasked_and_left_open(
    tmp_path: Path, wandb: Install
) -> None:
    module = wandb()
    module.run = mine = FakeRun(module)
    await tracked(tmp_path / "run")
    assert (module.runs, mine.finished, len(mine.rollouts)) == ([], 0, 4)
    assert mine.metrics["key_metrics/chat/pass@1"] == 0.5
    await tracked(tmp_path / "named", track=["wandb:other"])
    assert (module.runs, len(mine.logged)) == ([], 4)


async def test_without_a_tracker_nothing_is_sent(tmp_path: Path, wandb: Install) -> None:
    module = wandb()
    await tracked(tmp_path / "run")
    assert module.runs == []


async def test_rollouts_are_kept_back_when_asked(tmp_path: Path, wandb: Install) -> None:
    module = wandb()
    await tracked(tmp_path / "run", track=["wandb"], upload_rollouts=False)
    assert only(module).table is None
    assert "chat/mean/reward" in only(module).metrics


async def test_of_very_many_rollouts_the_first_are_sent_and_that_is_said(
    tmp_path: Path, wandb: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = wandb()
    monkeypatch.setattr(Capped.__init__, "__defaults__", (3, reporting.MAX_BYTES))
    [warning] = await tracked(tmp_path / "run", track=["wandb"])
    assert len(only(module).rollouts) == 3
    assert "--track wandb: the first 3 of 4 rollouts were sent" in warning


def test_texts_are_capped_by_number_and_by_size() -> None:
    texts = ["aa", "bb", "cc"]
    for most, size, given in ((2, 100, 2), (9, 4, 2), (9, 6, 3), (3, 100, 3)):
        capped = Capped(iter(texts), most, size)
        assert list(capped) == texts[:given]
        assert (capped.given, capped.cut) == (given, given < 3)


async def test_nothing_from_the_environment_is_sent(
    tmp_path: Path, wandb: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what a configuration names by its variable, nor the key that lets us in, quoted by the policy or not."""
    monkeypatch.setenv("WANDB_API_KEY", "key-of-the-tracker")
    monkeypatch.setenv("NAME_OF_THE_SOURCE", "value-of-a-variable")
    module = wandb()
    said = answering("your key is key-of-the-tracker; 1")
    sets = ["tasks.source=${NAME_OF_THE_SOURCE}"]
    await tracked(tmp_path / "run", track=["wandb"], policy=said, sets=sets)
    sent = only(module).everything()
    assert "your key is [redacted]" in sent
    assert "key-of-the-tracker" not in sent
    assert only(module).config["windrow"]["tasks"]["source"] == "${NAME_OF_THE_SOURCE}"
    assert "value-of-a-variable" not in json.dumps(only(module).config)


async def test_a_run_that_is_made_here_is_sent_without_code_or_terminal(
    tmp_path: Path, wandb: Install
) -> None:
    module = wandb()
    await tracked(tmp_path / "run", track=["wandb"])
    settings = only(module).options["settings"].given  # those that this version knows
    assert settings == {"console": "off", "silent": True, "disable_git": True}


# -- what fails


@pytest.mark.parametrize(
    ("call", "lost"),
    [
        ("init", "nothing was sent"),
        ("metrics", "the metrics were not sent"),
        ("rollouts", "the rollouts were not sent"),
        ("finish", "its run was not closed"),
    ],
)
@pytest.mark.parametrize(
    "problem",
    [
        ConnectionError("no route to host"),
        OSError(errno.ENOSPC, "No space left on device"),
        SystemExit(3),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_a_tracker_that_fails_is_a_warning_and_the_run_is_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wandb: Install,
    call: str,
    lost: str,
    problem: BaseException,
) -> None:
    monkeypatch.chdir(tmp_path)
    module = wandb(**{call: raising(problem)})
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "replies.yaml").write_text("replies: [{reply: '1'}]\n")
    command = ["collect", "tasks.jsonl", "--model", "scripted:replies.yaml", "--out", "run", "--quiet"]
    assert main([*command, "--track", "wandb:mine"]) == 0
    err = capsys.readouterr().err
    assert f"warning: --track wandb: {lost}: {type(problem).__name__}" in err
    assert "the run is whole on disk: windrow stats run --track wandb:mine" in err
    assert json.loads(Path("run/metrics.json").read_text())["coverage"]["done"] == 2
    for run in module.runs:
        assert run.finished == 1
        assert (run.table is None) == (call == "rollouts")
        assert (not run.metrics) == (call == "metrics")


async def test_a_package_that_cannot_be_imported_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text("raise RuntimeError('built for another machine')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    [warning] = await tracked(tmp_path / "run", track=["wandb"])
    assert "--track wandb: nothing was sent: RuntimeError: built for another machine" in warning


async def test_a_package_that_is_missing_is_said_before_the_run_and_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("wandb", "mlflow", "tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
        warnings = await tracked(tmp_path / name, track=[name])
        said = f"--track {name} needs the extra '{name}'; type: pip install 'windrow-rl[{name}]'"
        assert warnings == [said, f"{said} (nothing was sent)"]
        assert (tmp_path / name / "metrics.json").exists()


async def test_a_tracker_that_hangs_is_left_at_its_deadline(tmp_path: Path, wandb: Install) -> None:
    release = threading.Event()
    wandb(init=lambda: release.wait(60) and None)
    run = tmp_path / "run"
    await collect(run)
    warnings: list[str] = []
    try:
        await track(run, [Named("wandb", None)], warn=warnings.append, deadline_s=0.05)
    finally:
        release.set()
    [warning] = warnings
    assert "--track wandb took more than 0.05 s and was left" in warning


async def test_cancelling_ends_the_wait_for_a_tracker(tmp_path: Path, wandb: Install) -> None:
    release, control = threading.Event(), Control()
    loop = asyncio.get_running_loop()

    def hang() -> None:
        loop.call_soon_threadsafe(control.cancel)
        release.wait(60)

    wandb(init=hang)
    try:
        summary = await run_collection(open_run(tmp_path / "run", track=["wandb"]), control=control)
    finally:
        release.set()
    assert summary.complete


async def test_the_run_is_not_locked_while_it_is_sent(tmp_path: Path, wandb: Install) -> None:
    locked: list[bool] = []

    def look() -> None:
        Lock(tmp_path / "run" / "lock").release()
        locked.append(False)

    wandb(init=look)
    assert await tracked(tmp_path / "run", track=["wandb"]) == []
    assert locked == [False]


async def test_a_run_that_was_stopped_is_not_sent(tmp_path: Path, wandb: Install) -> None:
    module, control = wandb(), Control()
    control.stop()
    await run_collection(open_run(tmp_path / "run", track=["wandb"]), control=control)
    assert module.runs == []


def test_a_tracker_that_nobody_knows_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["collect", "tasks.jsonl", "--model", "m", "--out", str(tmp_path / "run"), "--track"]
    for name, more in (("wanbd", "; did you mean 'wandb'?"), ("wandb:", "")):
        assert main([*command, name]) == 2
        said = f"--track {name!r}: expected wandb[:PROJECT], mlflow[:EXPERIMENT] or tensorboard[:DIR]{more}"
        assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_is_sent_later_with_stats(
    tmp_path: Path, wandb: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    asyncio.run(tracked(run))
    module = wandb()
    assert main(["stats", str(run), "--track", "wandb:late"]) == 0
    assert (only(module).options["project"], len(only(module).rollouts)) == ("late", 4)
    assert main(["stats", str(run), "--track", "wandb", "--no-upload-rollouts"]) == 0
    assert module.runs[1].table is None
    module = wandb(init=raising(ConnectionError("no route")))
    assert main(["stats", str(run), "--track", "wandb"]) == 0
    assert "warning: --track wandb: nothing was sent: ConnectionError" in capsys.readouterr().err
    assert main(["stats", str(run), "--track", "nobody"]) == 2


def test_names_are_written_as_mlflow_allows_them() -> None:
    assert metric_name("key_metrics/pkg:Other/pass@4") == "key_metrics/pkg:Other/pass_at_4"
    assert metric_name("chat/mean/score/a b (c)%") == "chat/mean/score/a b _c__"
