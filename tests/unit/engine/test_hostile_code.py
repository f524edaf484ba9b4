"""User code that does its worst: it fails its own rollout, and neither ends the run nor keeps it from ending."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support import collect_helpers
from tests.support.collect_helpers import answering
from tests.support.model_server import write_jsonl
from tests.support.scripted_envs import world
from windrow.policies.scripted import CallablePolicy
from windrow.stats.summary import summarise


class Panic(BaseException):
    """As a library written in another language raises it."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it cannot say")


class Plain(windrow.Env):
    async def reset(self, task: Any) -> windrow.Observation:
        return windrow.Observation(messages=[{"role": "user", "content": "go"}])

    async def step(self, reply: Any, results: Any) -> windrow.Step:
        return windrow.Step(done=True)


class Exits(Plain):
    async def step(self, reply: Any, results: Any) -> windrow.Step:
        sys.exit(3)


class Panics(Plain):
    async def reset(self, task: Any) -> windrow.Observation:
        raise Panic


class Counts(Plain):
    async def step(self, reply: Any, results: Any) -> windrow.Step:
        return windrow.Step(done=True, state={"n": 10**5000})


class ExitsLate(Plain):
    async def close(self) -> None:
        sys.exit(3)


class Lingers(Plain):
    async def close(self) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


class CancelsItsReset(Plain):
    async def reset(self, task: Any) -> windrow.Observation:
        await cancel_itself()
        return await super().reset(task)


class CancelsItsStep(Plain):
    async def step(self, reply: Any, results: Any) -> windrow.Step:
        await cancel_itself()
        return windrow.Step(done=True)


class CancelsWithItsLastBreath(Plain):
    async def score(self, episode: Any) -> windrow.Score:
        cancelling = cancel_itself()
        cancelling.send(None)  # as far as the cancellation, which no await of this class meets
        cancelling.close()
        return windrow.Score(1.0)


async def cancels(task: Any, reply: Any) -> float:
    await cancel_itself()
    return 1.0


async def exits(task: Any, reply: Any) -> float:
    sys.exit(3)


async def panics(task: Any, reply: Any) -> float:
    raise Panic


def mute(task: Any, reply: Any) -> float:
    raise Mute


def collected(folder: Path, **options: Any) -> list[windrow.Rollout]:
    tasks = write_jsonl(folder / "tasks.jsonl", [{"prompt": f"{n}?"} for n in range(2)])

    async def main() -> list[windrow.Rollout]:
        return [
            rollout
            async for rollout in windrow.collect(
                str(tasks),
                policy=CallablePolicy(lambda request: "yes", name="yes"),
                out=str(folder / "run"),
                retries=0,
                **options,
            )
        ]

    asyncio.run(main())
    return list(windrow.load(folder / "run"))


@pytest.mark.parametrize(("env", "kind"), [(Exits, "SystemExit"), (Panics, "Panic"), (Counts, "ValueError")])
def test_an_env_that_exits_or_panics_fails_its_rollouts_and_not_the_run(tmp_path, env, kind) -> None:
    rollouts = collected(tmp_path, env=env)
    assert [(r.status, r.error and (r.error.owner, r.error.kind)) for r in rollouts] == [
        ("failed", ("env", kind))
    ] * 2


@pytest.mark.parametrize(("scorer", "kind"), [(exits, "SystemExit"), (panics, "Panic"), (mute, "Mute")])
@pytest.mark.parametrize("after_commit", [False, True])
def test_a_scorer_that_exits_or_panics_fails_the_grading_alone(tmp_path, scorer, kind, after_commit) -> None:
    scorer.after_commit = after_commit
    rollouts = collected(tmp_path, scorers=[scorer])
    assert [(r.status, r.grade, r.reward, r.error and r.error.kind) for r in rollouts] == [
        ("completed", "failed", None, kind)
    ] * 2


@pytest.mark.parametrize("env", [CancelsItsReset, CancelsItsStep])
def test_an_env_that_cancels_its_own_task_fails_its_rollouts_and_every_slot_is_run(tmp_path, env) -> None:
    rollouts = collected(tmp_path, env=env, concurrency=1)
    assert [(r.status, r.error and (r.error.owner, r.error.kind)) for r in rollouts] == [
        ("failed", ("env", "CancelledError"))
    ] * 2


def test_a_task_that_is_cancelled_by_its_last_step_takes_no_rollout_with_it(tmp_path) -> None:
    rollouts = collected(tmp_path, env=CancelsWithItsLastBreath, concurrency=1)
    assert [(r.status, r.reward) for r in rollouts] == [("completed", 1.0)] * 2


@pytest.mark.parametrize("after_commit", [False, True])
def test_a_scorer_that_cancels_its_own_task_leaves_the_grading_to_the_next_call(
    tmp_path, after_commit
) -> None:
    cancels.after_commit = after_commit  # type: ignore[attr-defined]
    rollouts = collected(tmp_path, scorers=[cancels], concurrency=1)
    assert [(r.status, r.grade, r.reward) for r in rollouts] == [("completed", "pending", None)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("env", [ExitsLate, Lingers])
def test_a_close_that_exits_or_never_ends_keeps_neither_the_run_nor_the_loop_from_ending(
    tmp_path, env
) -> None:
    rollouts = collected(tmp_path, env=env, sets=["limits.close_timeout_s=0.1"])
    assert [(r.status, r.metrics.get("close_failed")) for r in rollouts] == [("completed", 1.0)] * 2


def test_an_attempt_that_stands_in_the_log_twice_counts_once(tmp_path) -> None:
    once = collected(tmp_path)
    log = tmp_path / "run" / "rollouts.jsonl"
    log.write_bytes(log.read_bytes() * 2)
    assert list(windrow.load(tmp_path / "run")) == once
    assert summarise(tmp_path / "run").status["completed"] == 2


async def test_what_episodes_shared_is_closed_once_after_the_last_of_them(tmp_path: Path) -> None:
    log: list[str] = []

    class Sharing(world(log)):  # type: ignore[misc]
        version = 1

        @classmethod
        async def finish(cls, settings: Any) -> None:
            log.append(f"finish {settings}")

    rows = [{"prompt": "one"}, {"prompt": "two"}]
    await collect_helpers.collected(
        rows, env=Sharing, sets=["env.settings.a=1"], policy=answering("ok"), out=str(tmp_path / "run")
    )
    assert log.count("close") == 2
    assert [at for at, what in enumerate(log) if what.startswith("finish")] == [len(log) - 1]
    assert log[-1] == "finish {'a': 1}"
