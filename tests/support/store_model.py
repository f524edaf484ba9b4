"""A plain model of the store: the lines written so far, and the state that follows from them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from windrow.engine.control import Control
from windrow.errors import InfraError, PolicyError
from windrow.policies.base import Request
from windrow.records import Rollout, Task

DONE = ("right", "wrong")
SCORERS = {"judged": ("judge",), "both": ("contains", "judge")}  # in the order in which they are expected
REDOS = ["status=completed", "status=failed", "sample=0", "reward<0.5", "attempt=1", "grade=failed"]

Slot = tuple[int, int]  # (task, sample)
Key = tuple[str, int]  # (rollout id, attempt)


class Line(NamedTuple):
    slot: Slot
    attempt: int
    end: str  # right | wrong | busy | refused | cancelled
    inline: float | None  # what `contains` said in the line itself
    grading: str | None  # the scorers of that call


class Verdict(NamedTuple):
    key: Key
    scorer: str
    grading: str
    value: float | None  # None: the scorer failed


class Redo(NamedTuple):
    where: str
    before: frozenset[Key]  # the attempts there were when it was asked for


class Model:
    """What is written, and what follows from it."""

    def __init__(self) -> None:
        self.ids: dict[Slot, str] = {}
        self.lines: dict[Key, Line] = {}
        self.verdicts: list[Verdict] = []
        self.redo: Redo | None = None

    def plan(self, tasks: int, samples: int) -> list[Slot]:
        return [(task, sample) for task in range(tasks) for sample in range(samples)]

    def of(self, slot: Slot, among: Iterable[Key] | None = None) -> list[Line]:
        keys = self.lines if among is None else among
        return [self.lines[key] for key in keys if self.lines[key].slot == slot]

    def is_done(self, slot: Slot) -> bool:
        return any(line.end in DONE for line in self.of(slot))

    def pending(self, plan: list[Slot], grading: str) -> list[Key]:
        """What is to be run, in order, with the attempt numbers to come."""
        chosen = self.to_redo(grading)
        found = []
        for slot in plan:
            lines = sorted(self.of(slot), key=lambda line: line.attempt)
            last = lines[-1] if lines else None
            open_ = not self.is_done(slot) and (last is None or last.end in ("busy", "cancelled"))
            if slot in chosen or open_:
                found.append((self.ids[slot], last.attempt + 1 if last else 1))
        return found

    def refused(self, plan: list[Slot], grading: str) -> list[Slot]:
        """What failed for good."""
        waiting = {id for id, _ in self.pending(plan, grading)}
        return [slot for slot in plan if not self.is_done(slot) and self.ids[slot] not in waiting]

    def to_grade(self, plan: list[Slot], grading: str) -> list[Key]:
        waiting = {id for id, _ in self.pending(plan, grading)}
        finals = [self.final(slot) for slot in plan if self.is_done(slot) and self.ids[slot] not in waiting]
        return [
            (self.ids[line.slot], line.attempt)
            for line in finals
            if line and None in self.scores(line, grading)
        ]

    def final(self, slot: Slot, among: Iterable[Key] | None = None) -> Line | None:
        lines = self.of(slot, among)
        return max(lines, key=lambda line: (line.end in DONE, line.attempt), default=None)

    def scores(self, line: Line, grading: str) -> list[float | None]:
        """What counts of each expected scorer."""
        return [self._score(line, scorer, grading) for scorer in SCORERS[grading]]

    def _score(self, line: Line, scorer: str, grading: str) -> float | None:
        key = (self.ids[line.slot], line.attempt)
        values = [v.value for v in self.verdicts if (v.key, v.scorer, v.grading) == (key, scorer, grading)]
        given = [value for value in values if value is not None]
        if given:
            return given[-1]
        return line.inline if scorer == "contains" and line.grading == grading else None

    def grade(self, line: Line, grading: str) -> tuple[str, float | None]:
        if line.end not in DONE:
            return "none", None
        key = (self.ids[line.slot], line.attempt)
        for scorer, score in zip(SCORERS[grading], self.scores(line, grading), strict=True):
            if score is None:
                failed = any((v.key, v.scorer, v.grading) == (key, scorer, grading) for v in self.verdicts)
                return ("failed" if failed else "pending"), None
        return "graded", sum(score or 0.0 for score in self.scores(line, grading))

    def to_redo(self, grading: str) -> set[Slot]:
        if self.redo is None:
            return set()
        finals = [self.final(slot, self.redo.before) for slot in self.ids]
        chosen = {line.slot for line in finals if line and self._matches(line, self.redo.where, grading)}
        since = [line for key, line in self.lines.items() if key not in self.redo.before]
        return chosen - {line.slot for line in since if line.end in DONE}

    def _matches(self, line: Line, where: str, grading: str) -> bool:
        grade, reward = self.grade(line, grading)
        return {
            "status=completed": line.end in DONE,
            "status=failed": line.end in ("busy", "refused"),
            "sample=0": line.slot[1] == 0,
            "reward<0.5": reward is not None and reward < 0.5,
            "attempt=1": line.attempt == 1,
            "grade=failed": grade == "failed",
        }[where]


class Call:
    """One call of the command: how its policy and its judge are scripted, and what they were asked."""

    def __init__(self, ends: list[str], verdicts: list[float | None], stop_after: int | None = None) -> None:
        self.control = Control()
        self.offered: dict[Key, str] = {}
        self.judged: list[tuple[Key, float | None]] = []
        self.reported: list[Rollout] = []
        self._ends = ends
        self._verdicts = verdicts
        self._stop_after = stop_after

    async def answer(self, request: Request) -> str:
        end = self._ends[len(self.offered) % len(self._ends)]
        key = (request.id, request.attempt)
        assert key not in self.offered, "asked twice"
        self.offered[key] = end
        if len(self.offered) == self._stop_after:
            self.control.stop()
        if end == "busy":
            raise InfraError("busy")
        if end == "refused":
            raise PolicyError("refused")
        if end == "cancelled":
            self.control.cancel()
            await asyncio.sleep(3600)
        return f"{end} {request.id} {request.attempt}"

    def judge(self) -> Any:
        async def judge(task: Task, reply: str) -> float:
            value = self._verdicts[len(self.judged) % len(self._verdicts)]
            id, attempt = reply.split()[1:]
            self.judged.append(((id, int(attempt)), value))
            if value is None:
                raise ValueError("no verdict")
            return value

        judge.after_commit, judge.version = True, 1  # type: ignore[attr-defined]
        return judge
