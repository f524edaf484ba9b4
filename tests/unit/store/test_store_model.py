"""Any interleaving of calls, crashes, torn tails, bad lines, gradings, redos and extensions equals a simple model; with indexes
that are lost, spoilt or older than the log.

The model is told what is on disk, after it was checked that nothing is missing there that had been counted on, and
nothing is there that was never written. Windrow must agree with it each time a run is opened and each time it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.fake_disks import CrashDisk
from tests.support.run_builders import folder_in_memory, open_run
from tests.support.store_model import REDOS, Call, Key, Line, Model, Redo, Verdict
from windrow.collecting.collection import Collection, Summary
from windrow.collecting.running import run_collection
from windrow.errors import StoreError
from windrow.store.reader import load

TASKS = [{"prompt": f"task {number}", "answer": "right"} for number in range(3)]
ENDS = ["right", "right", "wrong", "busy", "refused", "cancelled"]
LOGS = st.sampled_from(["rollouts.jsonl", "scores.jsonl", "tasks.jsonl"])


LUCK = st.none() | st.integers(0, 1000)


class Command(NamedTuple):
    tasks: int
    samples: int
    retries: int
    redo: str | None
    grading: str


class Script(NamedTuple):
    """How the episodes end, what the judge says, in turn; and at which of them the run is stopped."""

    ends: list[str]
    verdicts: list[float | None]
    stop_after: int | None


class CrashPlan(NamedTuple):
    at: int
    power_cut: bool
    luck: int | None


COMMANDS = st.builds(
    Command,
    st.integers(1, len(TASKS)),
    st.integers(1, 3),
    st.integers(0, 2),
    st.none() | st.sampled_from(REDOS),
    st.sampled_from(["judged", "both"]),
)
SCRIPTS = st.builds(
    Script,
    st.lists(st.sampled_from(ENDS), min_size=1, max_size=6),
    st.lists(st.sampled_from([0.0, 0.25, 1.0, None]), min_size=1, max_size=4),
    st.none() | st.integers(1, 4),
)
CRASHES = st.none() | st.builds(CrashPlan, st.integers(1, 40), st.booleans(), LUCK)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._stack = contextlib.ExitStack()
        self._folder = self._stack.enter_context(folder_in_memory())
        self._runner = self._stack.enter_context(asyncio.Runner())
        self._model = Model()
        self._command: Command | None = None
        self._grading = "judged"
        self._fingerprints: dict[str, str] = {}
        self._firm: set[Key] = set()  # what was reported or counted, and so may not be lost
        self._firm_verdicts: Counter[Verdict] = Counter()
        self._bad_lines = 0
        self._roots = 0
        self._segments = 0
        self._old_indexes: dict[str, bytes] = {}
        self._root = self._folder / "0"
        self._root.mkdir()
        self._disk = CrashDisk(self._root)

    def teardown(self) -> None:
        self._disk.close()
        self._stack.close()

    @property
    def _run(self) -> Path:
        return self._root / "run"

    # -- what may happen

    @rule(command=COMMANDS, script=SCRIPTS, crash=CRASHES)
    def call(self, command: Command, script: Script, crash: CrashPlan | None) -> None:
        """A command is given; it ends, is stopped, or crashes on the way."""
        self._call(command, script, crash)

    @precondition(lambda self: self._command is not None)
    @rule(script=SCRIPTS, crash=CRASHES)
    def same_command(self, script: Script, crash: CrashPlan | None) -> None:
        assert self._command is not None
        self._call(self._command, script, crash)

    @precondition(lambda self: self._run.exists())
    @rule(luck=LUCK)
    def power_cut(self, luck: int | None) -> None:
        """The power fails while nothing is being collected."""
        self._cut_power(luck)
        self._look(Call([], []), self._grading, whole=False)

    @precondition(lambda self: self._manifest() is not None)
    @rule(log=LOGS, tail=st.sampled_from([b"{", b'{"v":1,"id":"', b"\0\0\0", b"\xff"]))
    def tear(self, log: str, tail: bytes) -> None:
        self._append(log, tail)

    @precondition(lambda self: self._manifest() is not None)
    @rule(log=LOGS, line=st.sampled_from([b"?\n", b"{}\n", b'{"id":1}\n', b"\xff\xfe\n"]))
    def damage(self, log: str, line: bytes) -> None:
        self._bad_lines += self._append(log, line)

    @precondition(lambda self: self._model.redo is None and self._model.lines)
    @rule()
    def another_writer(self) -> None:
        """What was collected so far is the segment of another writer."""
        log = self._run / "rollouts.jsonl"
        if log.exists() and log.read_bytes().endswith(b"\n"):
            self._segments += 1
            log.rename(self._run / f"rollouts.w{self._segments}.jsonl")
            self._settle()

    @precondition(lambda self: (self._run / "index").exists())
    @rule(how=st.sampled_from(["lost", "spoilt", "old"]), at=st.integers(0, 10_000))
    def change_indexes(self, how: str, at: int) -> None:
        """Indexes are lost, damaged, or put back as they once were."""
        now = {path.name: path.read_bytes() for path in (self._run / "index").iterdir()}
        for name, kept in now.items():
            path = self._run / "index" / name
            if how == "lost":
                path.unlink()
            elif how == "spoilt" and kept:
                at %= len(kept)
                path.write_bytes(kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :])
            elif how == "old":
                path.write_bytes(self._old_indexes.get(name, b""))
        self._old_indexes = now
        self._settle()

    def _call(self, command: Command, script: Script, crash: CrashPlan | None) -> None:
        self._command = command
        call = Call(*script)
        redo_before, asked = self._model.redo, self._redo(command.redo)
        self._disk.restart(crash.at if crash else None)
        summary: Summary | None = None
        try:
            collection = open_run(
                self._run,
                tasks=TASKS,
                limit=command.tasks,
                samples=command.samples,
                answer=call.answer,
                scorers=("contains", call.judge()) if command.grading == "both" else (call.judge(),),
                redo=command.redo,
                regrade=True,
                retries=command.retries,
                concurrency=1,
                disk=self._disk,
            )
            self._model.redo = asked
            self._check_opened(collection, self._model.plan(command.tasks, command.samples), command.grading)
            summary = self._runner.run(
                run_collection(collection, control=call.control, on_commit=call.reported.append)
            )
        except StoreError:
            assert self._disk.crashed
        if crash and crash.power_cut and self._disk.crashed:
            self._cut_power(crash.luck)
        self._look(call, command.grading, whole=not self._disk.crashed)
        self._agree_on_redo(redo_before, asked, summary)

    # -- what must hold

    @invariant()
    def what_is_read_is_what_the_model_says(self) -> None:
        if not (self._run / "run.json").exists():
            assert not self._firm
            return
        lines = sorted(self._model.lines.values(), key=lambda line: (line.slot, line.attempt))
        finals = [line for line in lines if self._model.final(line.slot) == line]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for attempts, expected in (("all", lines), ("final", finals)):
                found = [
                    ((rollout.task.index, rollout.sample), rollout.attempt, rollout.grade, rollout.reward)
                    for rollout in load(self._run, attempts=attempts)
                ]
                assert found == [
                    (line.slot, line.attempt, *self._model.grade(line, self._grading)) for line in expected
                ]

    def _check_opened(self, collection: Collection, plan: list[tuple[int, int]], grading: str) -> None:
        """What a call finds to do is what is to be done; and what it counts may not be lost from here on."""
        model = self._model
        for number, slot in enumerate(plan):
            id = collection.plan.slot(number).id
            assert model.ids.setdefault(slot, id) == id
        pending = model.pending(plan, grading)
        assert [(slot.id, slot.attempt) for slot in collection.plan.pending(collection.ledger)] == pending
        settled = [slot for slot in plan if model.is_done(slot) and model.ids[slot] not in dict(pending)]
        finals = [line for slot in settled if (line := model.final(slot)) is not None]
        assert collection.summary() == Summary(
            planned=len(plan),
            done=len(settled),
            failed=len(plan) - len(settled) - len(pending),
            pending=len(pending),
            ungraded=sum(model.grade(line, grading)[0] in ("pending", "failed") for line in finals),
            attempts=0,
        )
        assert collection.to_grade == sum(None in model.scores(line, grading) for line in finals)
        assert sum("is left out" in warning for warning in collection.warnings) == self._bad_lines
        self._firm = set(model.lines)
        self._firm_verdicts = Counter(model.verdicts)

    def _look(self, call: Call, grading: str, *, whole: bool) -> None:
        """Compare what is on disk with what was there and what this call wrote; then believe it."""
        manifest = self._manifest()
        if manifest is not None:
            self._grading = self._fingerprints.setdefault(manifest["grading"]["hash"], grading)
        model = self._model
        old, old_verdicts = dict(model.lines), Counter(model.verdicts)
        model.lines = dict(self._lines())
        model.verdicts = list(self._verdicts())
        for rollout in call.reported:
            self._firm.add((rollout.id, rollout.attempt))
        assert self._firm <= set(model.lines), "lost"
        assert {
            key: line.end for key, line in model.lines.items() if key not in old
        }.items() <= call.offered.items()
        verdicts = Counter(model.verdicts)
        assert self._firm_verdicts <= verdicts, "a verdict is lost"
        fresh = (verdicts - old_verdicts).elements()
        judged = Counter((verdict.key, verdict.value) for verdict in fresh if verdict.scorer == "judge")
        assert judged <= Counter(call.judged)
        if whole:
            assert {*old, *call.offered} == set(model.lines)
            assert judged == Counter(call.judged)
            self._firm, self._firm_verdicts = set(model.lines), verdicts

    def _agree_on_redo(self, before: Redo | None, asked: Redo | None, summary: Summary | None) -> None:
        """A redo goes on until it is done, another call is made, or the call that asked for it never wrote so."""
        manifest = self._manifest()
        under_way = manifest["redo"]["where"] if manifest and manifest["redo"] else None
        if summary is not None and not self._disk.crashed:
            assert (under_way is None) == (asked is None or summary.pending == 0)
        if under_way is None:
            self._model.redo = None
        elif before is not None and before.where == under_way:
            self._model.redo = before
        else:
            assert asked is not None
            assert asked.where == under_way
            self._model.redo = asked

    # -- the disk

    def _redo(self, where: str | None) -> Redo | None:
        if where is None:
            return None
        before = self._model.redo
        return before if before and before.where == where else Redo(where, frozenset(self._model.lines))

    def _cut_power(self, luck: int | None) -> None:
        self._roots += 1
        root = self._folder / str(self._roots)
        self._disk.survivors(root, None if luck is None else random.Random(luck))
        crashed = self._disk.crashed
        self._root = root
        self._settle()
        self._disk.crashed = crashed

    def _settle(self) -> None:
        """Everything that is there now is durable."""
        self._disk.close()
        self._disk = CrashDisk(self._root)

    def _append(self, log: str, data: bytes) -> bool:
        path = self._run / log
        if not path.exists():
            return False
        with path.open("ab") as file:
            file.write(data)
        self._settle()
        return True

    def _manifest(self) -> dict[str, Any] | None:
        path = self._run / "run.json"
        return json.loads(path.read_bytes()) if path.exists() else None

    def _records(self, name: str) -> Iterator[dict[str, Any]]:
        for path in sorted(self._run.glob(f"{name}*.jsonl")):
            for line in path.read_bytes().splitlines(keepends=True):
                with contextlib.suppress(ValueError):
                    record = json.loads(line)
                    if line.endswith(b"\n") and "v" in record:
                        yield record

    def _lines(self) -> Iterator[tuple[Key, Line]]:
        for record in self._records("rollouts"):
            key = (record["id"], record["attempt"])
            slot = (record["task"]["index"], record["sample"])
            inline = record["scores"].get("contains", {}).get("value")
            yield key, Line(slot, key[1], _end(record), inline, self._fingerprints.get(record["grading"]))

    def _verdicts(self) -> Iterator[Verdict]:
        for record in self._records("scores"):
            [(id, attempt)] = record["members"]
            scorer = "contains" if record["scorer"] == "contains" else "judge"
            score = record["scores"][0].get(record["scorer"])
            value = None if record["error"] else score["value"]
            yield Verdict((id, attempt), scorer, self._fingerprints[record["fingerprint"]], value)


def _end(record: dict[str, Any]) -> str:
    if record["status"] == "cancelled":
        return "cancelled"
    if record["status"] == "failed":
        return {"infra": "busy", "policy": "refused"}[record["error"]["owner"]]
    return str(record["messages"][-1]["content"].split()[0])


TestStore = pytest.mark.usefixtures("indexed")(pytest.mark.slow(StoreMachine.TestCase))
TestStore.settings = settings(max_examples=max(25, settings().max_examples // 4), stateful_step_count=16)
