"""`windrow import`: a run made of what another system has written, also of what it left half finished.

The run is opened as `collect` opens it, with the same options, so that its ids are those that `collect` computes and the same
command continues it. What stands there already is left alone: importing the same files again adds nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from windrow.collecting.collection import Collection, Summary, Warn
from windrow.collecting.opening import open_collection
from windrow.collecting.resolve import ResolvedRun
from windrow.engine.context import RunContext
from windrow.engine.episode import OwnScore, score
from windrow.engine.external_episode import record
from windrow.engine.recorder import Recorder
from windrow.envs import Episode
from windrow.envs.opening import opening
from windrow.errors import EnvError, UsageError
from windrow.integrations.nemo_gym.answers import JUDGE_FAILED, NEVER_JUDGED, finite, played_of
from windrow.integrations.nemo_gym.files import files_of
from windrow.integrations.nemo_gym.reading import Line, Problem, read_lines
from windrow.integrations.nemo_gym.results import REWARD, STATE, read_result, with_answer
from windrow.integrations.nemo_gym.rows import FAILURE_CLASS, agent_of, has_input, opening_of, params_of
from windrow.records import Json, PolicyRecord, Rollout, Score, Task
from windrow.tasks.plan import Slot
from windrow.util.freeze import Freezer

AT_A_TIME = 256  # attempts that share a write
SHOWN = 5


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What an import did. `skipped` attempts stand in the run already."""

    rollouts: int
    failures: int
    skipped: int
    summary: Summary


class Written(msgspec.Struct, frozen=True):
    """The files of a run of NeMo Gym."""

    rollouts: Path
    inputs: Path
    failures: Path | None

    @property
    def lines(self) -> list[Path]:
        """The files with attempts: what failed comes before what followed it."""
        return [path for path in (self.failures, self.rollouts) if path is not None]


def written_by_nemo_gym(rollouts: str, *, inputs: str | None = None, failures: str | None = None) -> Written:
    """Their files: those beside the rollouts, unless others are named. Inputs there must be."""
    path = Path(rollouts)
    beside = files_of(path)
    given = Path(inputs) if inputs is not None else beside.inputs
    failed = Path(failures) if failures is not None else beside.failures
    if not path.exists():
        raise UsageError(f"there is no file {path}; give the rollouts that NeMo Gym wrote")
    if not given.exists():
        raise UsageError(
            f"there is no file {given}; give the inputs of {path.name} with --inputs FILE: without them nobody knows "
            f"which rollouts are missing"
        )
    if failures is not None and not failed.exists():
        raise UsageError(f"there is no file {failed}; leave --failures out if nothing failed")
    return Written(path, given, failed if failed.exists() else None)


async def import_run(resolved: ResolvedRun, written: Written, on_warning: Warn | None = None) -> Imported:
    """Commit what is written into the slots of the run that `collect` would make of `resolved`.

    Raises UsageError before anything is written for what does not fit: the inputs, itself, or the run that is there.
    """
    if resolved.matches:
        raise UsageError("what another system has written has one seat; it cannot be imported as a match")
    places = _Places(resolved)
    survey = _Survey(written, places)
    survey.refuse()
    collection = open_collection(resolved, on_warning=on_warning)
    try:
        for message in survey.warnings():
            collection.warn(message)
        return await _imported(collection, written, _Work(collection, places, survey))
    finally:
        collection.close()


async def _imported(collection: Collection, written: Written, work: _Work) -> Imported:
    for path in written.lines:
        await work.take(path)
    if work.lost:
        collection.warn(f"left out, to be collected anew:\n{_listed(work.lost)}")
    if work.others:
        collection.warn(
            f"{_given_otherwise(work.others)}; the first is {work.first_other}. What was said is kept"
        )
    return Imported(
        rollouts=work.rollouts, failures=work.failures, skipped=work.skipped, summary=collection.save()
    )


class _Places:
    """Where the rollouts of a numbered task go."""

    def __init__(self, resolved: ResolvedRun) -> None:
        tasks = resolved.tasks
        self._positions = {tasks.index(position): position for position in range(len(tasks))}
        self._samples = resolved.run.samples

    def problem(self, line: Line) -> str | None:
        """Why there is no slot for a line."""
        if line.task not in self._positions:
            return "no input is for it"
        if line.rollout >= self._samples:
            return f"-k {self._samples} has no place for it; -k {line.rollout + 1} has"
        return None

    def number(self, line: Line) -> int:
        return self._positions[line.task] * self._samples + line.rollout


class _Survey:
    """A first reading of the files: which slots have a rollout, how often each has failed, and what is wrong."""

    def __init__(self, written: Written, places: _Places) -> None:
        self.done: dict[int, tuple[str, bytes]] = {}  # where it stands, and a hash of it
        self.failed: Counter[int] = Counter()
        self._lost: list[str] = []
        self._twice: list[str] = []
        self._strange: list[str] = []
        self._blank = self._repeated = 0
        self.sizes = {path: path.stat().st_size for path in written.lines}
        for path in written.lines:
            for line in read_lines(path, self.sizes[path]):
                if not isinstance(line, Line):
                    self._blank += line.blank
                    self._lost += [] if line.blank else [str(line)]
                elif (why := places.problem(line)) is not None:
                    self._strange.append(f"{line.where}: {line.name}: {why}")
                elif line.answer.get(FAILURE_CLASS) is not None:
                    self.failed[places.number(line)] += 1
                else:
                    self._found(places.number(line), line)

    def _found(self, number: int, line: Line) -> None:
        known, hashed = self.done.get(number), hashlib.sha256(line.raw).digest()
        if known is None:
            self.done[number] = (line.where, hashed)
        elif known[1] == hashed:
            self._repeated += 1
        else:
            self._twice.append(f"{line.where}: {line.name} is at {known[0]}, too, and says something else")

    def refuse(self) -> None:
        """Raise UsageError for what contradicts the inputs or itself."""
        if self._strange:
            raise UsageError(
                _listed(self._strange) + "\nGive the inputs that they were made from: --inputs FILE"
            )
        if self._twice:
            raise UsageError(_listed(self._twice) + "\nLeave one of each in the file")

    def warnings(self) -> Iterator[str]:
        """What is left out."""
        if self._lost:
            yield f"left out, to be collected anew:\n{_listed(self._lost)}"
        if self._blank:
            yield f"{self._blank:,} blank {'line is' if self._blank == 1 else 'lines are'} passed over"
        if self._repeated:
            what = "line stands" if self._repeated == 1 else "lines stand"
            yield f"{self._repeated:,} {what} there again, word for word: taken once"


class _Work:
    """One import under way."""

    def __init__(self, collection: Collection, places: _Places, survey: _Survey) -> None:
        self._collection = collection
        self._places = places
        self._survey = survey
        self._before: dict[int, int] = {}  # attempts that the run had of a slot; -1: it was done
        self._failed: Counter[int] = Counter()
        self._taken: set[int] = set()
        self.rollouts = self.failures = self.skipped = self.others = 0
        self.first_other = ""
        self.lost: list[str] = []

    async def take(self, path: Path) -> None:
        """Commit the lines of a file, some at a time."""
        for lines in batched(read_lines(path, self._survey.sizes[path])):
            await asyncio.gather(*(self._one(line) for line in lines if isinstance(line, Line)))

    async def _one(self, line: Line) -> None:
        number = self._places.number(line)
        before, failed = self._tries(number), line.answer.get(FAILURE_CLASS) is not None
        self._failed[number] += failed
        attempt = self._failed[number] if failed else max(before, self._survey.failed[number]) + 1
        if not failed:
            if number in self._taken:  # the same line again
                return
            self._taken.add(number)
        if before < 0 or (failed and attempt <= before):
            self.skipped += 1
            return
        slot = self._collection.plan.slot(number, attempt)
        self._compare(line, slot)
        last = number not in self._survey.done and attempt == self._survey.failed[number]
        try:
            rollout = await rollout_of(slot, self._collection.resolved.context, line.answer, unjudged=last)
        except (ValueError, RecursionError) as problem:
            self.lost.append(f"{line.where}: cannot be written down: {problem}")
            return
        none = not failed and rollout.status in ("failed", "cancelled")  # an answer that is none
        if none and before > self._survey.failed[number]:
            self.skipped += 1  # it is among the attempts already, and no more use the second time
            return
        await self._collection.add(slot, rollout)
        self.failures += failed or none
        self.rollouts += not (failed or none)

    def _tries(self, number: int) -> int:
        if number not in self._before:
            ledger = self._collection.ledger
            self._before[number] = -1 if ledger.is_done(number) else ledger.next_attempt(number) - 1
        return self._before[number]

    def _compare(self, line: Line, slot: Slot) -> None:
        said, given = params_of(line.answer).get("input"), params_of(slot.task.data or {}).get("input")
        if said and given and said != given:
            self.others += 1
            self.first_other = self.first_other or line.where


async def rollout_of(slot: Slot, context: RunContext, answer: dict[str, Json], *, unjudged: bool) -> Rollout:
    """An attempt as it would have been recorded, had the answer come just now.

    All that the file has is kept, whatever the run captures. The run's scorers judge it as any other; where there are none, the reward
    counts that was written. What no judge could judge stays unjudged (`unjudged`), or has failed.
    """
    said: dict[str, Json] = Freezer().value(finite(answer), "the line")
    setup = context.episode_setup(slot.task)
    recorder = Recorder(
        slot,
        env=setup.env_name,
        agent=setup.agent_name,
        policy=PolicyRecord(
            model=context.policy.model, sampling=context.sampling(slot.task), fingerprint=context.behaviour
        ),
        grading=context.grading,
        capture="tokens",
    )
    recorder.add(_opening(slot, context, said), "task")
    played = played_of(said, slot.task, recorder.messages, agent=agent_of(said) or setup.agent_name)
    if said.get(FAILURE_CLASS) == JUDGE_FAILED and played.error is None and not (unjudged and setup.scorers):
        problem = EnvError(played.state[STATE].get(NEVER_JUDGED) or JUDGE_FAILED, kind=JUDGE_FAILED)
        problem.owner = "scorer"
        played = msgspec.structs.replace(played, error=problem)
    record(recorder, played)
    if recorder.status in ("completed", "truncated"):
        await score(context, setup, recorder, None if setup.scorers else _told(said))
    return _dated(_whole(recorder.rollout(), said, slot.task), said)


def _told(said: dict[str, Json]) -> OwnScore:
    """The reward that was written, as the environment's own."""

    async def own(episode: Episode) -> Score:
        return Score({REWARD: (said[REWARD], 1.0)})

    return own


def _opening(slot: Slot, context: RunContext, said: dict[str, Json]) -> list[dict[str, Any]]:
    """What the model was shown first: by the answer's own word, else by the row."""
    if has_input(said):
        return opening_of(said)
    return opening(slot.task, context.prompt)


def _whole(rollout: Rollout, said: dict[str, Json], task: Task) -> Rollout:
    """With everything that has no other place in the record, compared with the record as it is: what the run asks of the
    sampling is written with its rows, and theirs may not have it."""
    if not rollout.policy.sampling:
        return rollout
    kept = rollout.state.get(STATE, {}) if isinstance(rollout.state, dict) else {}
    try:
        fields = read_result(said, task.data or {}).fields
    except ValueError:
        return rollout
    told = {key: value for key, value in kept.items() if key not in ("fields", "rest")}
    exact = with_answer(msgspec.structs.replace(rollout, task=task), said, fields)
    rest = exact.state[STATE] if exact.state else {}
    return msgspec.structs.replace(rollout, state=Freezer().value({STATE: {**rest, **told}}, "state"))


def _dated(rollout: Rollout, said: dict[str, Json]) -> Rollout:
    """It began when its response was made, as far as that says so."""
    response = said.get("response")
    components = response.get("created_at") if isinstance(response, dict) else None
    if isinstance(components, bool) or not isinstance(components, int | float):
        return rollout
    timing = msgspec.structs.replace(rollout.timing, started_at=float(components))
    return msgspec.structs.replace(rollout, timing=timing)


def batched(lines: Iterator[Line | Problem]) -> Iterator[list[Line | Problem]]:
    while batch := list(islice(lines, AT_A_TIME)):
        yield batch


def _given_otherwise(count: int) -> str:
    if count == 1:
        return "1 rollout says that it was given another input than its row has"
    return f"{count:,} rollouts say that they were given other inputs than their rows have"


def _listed(problems: Sequence[str]) -> str:
    more = [f"… and {len(problems) - SHOWN:,} more"] if len(problems) > SHOWN else []
    return "\n".join([*problems[:SHOWN], *more])
