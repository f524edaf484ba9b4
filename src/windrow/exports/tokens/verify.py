"""Verifying: whether a run's tokens are fit to be trained on, and its lines whole, before anything is exported.

A fatal finding means that a training row would be wrong or missing; a warning, that someone should look.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from windrow.errors import StoreError
from windrow.exports.tokens.arrays import floats_of, ids_of
from windrow.exports.tokens.linking import STRICT, Merging
from windrow.exports.tokens.sequences import TrainingSequence, training_sequences
from windrow.exports.tokens.top import top_of
from windrow.records import Rollout, Tokens, Turn, decode_rollout
from windrow.store.blobs import FOLDER, read_blob
from windrow.store.changed_lines import changed_lines
from windrow.store.reader import RunReader
from windrow.store.task_file import TASKS, read_tasks
from windrow.util.blobs import blobs_in
from windrow.util.hash_index import DuplicateFinder
from windrow.util.token_contexts import ID_BYTES, BrokenContext, context_ids

Level = Literal["fatal", "warning"]
PLACEHOLDER = -9999.0  # servers write this, or the lowest float, where they have no logprob
MOST_EXAMPLES = 3

CHECKS: dict[str, tuple[Level, str]] = {
    "bad_line": ("fatal", "lines that cannot be read"),
    "checksum": ("fatal", "lines that have changed since they were written"),
    "duplicate": ("fatal", "lines with an (id, attempt) that another line has"),
    "task_missing": ("fatal", "rollouts whose task is not in tasks.jsonl"),
    "blob": ("fatal", "rollouts that name a blob which is missing or damaged"),
    "capture": ("fatal", "rollouts that say more than they hold"),
    "prefix": ("fatal", "rollouts whose prompts cannot be rebuilt"),
    "length": ("fatal", "rollouts with other numbers of ids and logprobs"),
    "logprob": ("fatal", "rollouts with a logprob that is not finite or above 0"),
    "ids": ("fatal", "rollouts with an id below 0"),
    "top": ("fatal", "rollouts whose likeliest tokens do not fit what was sampled"),
    "mask": ("fatal", "rollouts whose training mask is not on what was sampled"),
    "placeholder": ("warning", "rollouts with a logprob that stands for none"),
    "versions": ("warning", "rollouts whose policy versions do not fit their output"),
    "usage": ("warning", "rollouts whose server counted other numbers of tokens"),
}


class Problem(NamedTuple):
    check: str
    detail: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found, in how many places; `examples` say where."""

    check: str
    level: Level
    what: str
    count: int
    examples: tuple[str, ...]


class TokenCheck(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    attempts: int
    exact: int
    trained_tokens: int
    findings: tuple[Finding, ...]

    @property
    def fatal(self) -> int:
        return sum(finding.count for finding in self.findings if finding.level == "fatal")

    @property
    def warnings(self) -> int:
        return sum(finding.count for finding in self.findings if finding.level == "warning")


class _Tally:
    def __init__(self) -> None:
        self._found: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}

    def add(self, check: str, example: str, count: int = 1) -> None:
        self._counts[check] = self._counts.get(check, 0) + count
        examples = self._found.setdefault(check, [])
        if len(examples) < MOST_EXAMPLES:
            examples.append(example)

    def findings(self) -> tuple[Finding, ...]:
        return tuple(
            Finding(
                check=check,
                level=level,
                what=what,
                count=self._counts[check],
                examples=tuple(self._found[check]),
            )
            for check, (level, what) in CHECKS.items()
            if check in self._counts
        )


def verify_run(path: str | Path, merging: Merging = STRICT) -> TokenCheck:
    """Look at every line of a run; nothing is changed."""
    tally = _Tally()
    attempts = exact = trained = 0
    names = DuplicateFinder()
    with RunReader(path) as reader:
        tasks = _known_tasks(reader.folder)
        for _, rollout in reader.lines(decode_rollout):
            attempts += 1
            exact += rollout.capture == "tokens"
            names.add((rollout.id, rollout.attempt))
            where = f"{rollout.id}.{rollout.attempt}"
            has_task = rollout.task.data is not None if tasks is None else rollout.task.digest in tasks
            if not has_task:
                tally.add("task_missing", where)
            problems, tokens = examined(rollout, merging)
            problems += _blobs(reader.path, rollout)
            trained += tokens
            for check, detail in _first_of_each(problems):
                tally.add(check, f"{where}: {detail}")
        for bad in reader.bad_lines:
            tally.add("bad_line", f"{bad.segment}:{bad.number}: {bad.problem}")
        for changed in changed_lines(reader):
            tally.add("checksum", f"{changed.segment}:{changed.number}: {changed.problem}")
        _count_duplicates(reader, names, tally)
    return TokenCheck(
        run=str(path), attempts=attempts, exact=exact, trained_tokens=trained, findings=tally.findings()
    )


def _blobs(run: Path, rollout: Rollout) -> Iterator[Problem]:
    for name in dict.fromkeys(blobs_in(rollout.messages)):
        try:
            read_blob(run / FOLDER, name)
        except StoreError as problem:
            yield Problem("blob", str(problem))


def problems(rollout: Rollout, merging: Merging = STRICT) -> list[Problem]:
    """What is wrong with the tokens of a rollout."""
    return examined(rollout, merging)[0]


def examined(rollout: Rollout, merging: Merging = STRICT) -> tuple[list[Problem], int]:
    """What is wrong with the tokens of a rollout, and how many are trained of them."""
    problems_found = list(_stamp(rollout))
    for number, turn in enumerate(rollout.turns):
        if turn.tokens is not None:
            problems_found += _turn(rollout, number, turn)
    if rollout.capture != "tokens" or any(CHECKS[check][0] == "fatal" for check, _ in problems_found):
        return problems_found, 0
    sequences = training_sequences(rollout, merging)
    return [*problems_found, *_masks(rollout, sequences, merging)], sum(
        int(s.loss_mask.sum()) for s in sequences
    )


def _stamp(rollout: Rollout) -> Iterator[Problem]:
    """`capture: tokens` means ids and logprobs of every reply; `logprobs`, its logprobs."""
    if rollout.capture not in ("tokens", "logprobs"):
        return
    for number, turn in enumerate(rollout.turns):
        if turn.writes is None:
            continue  # the call failed: nothing was said
        tokens = turn.tokens
        if tokens is None or tokens.logprobs is None:
            yield Problem("capture", f"turn {number} has no {rollout.capture}")
        elif rollout.capture == "tokens" and not (tokens.output and (tokens.prefix or tokens.prompt_new)):
            has_reply = turn.usage is None or turn.usage.completion_tokens > 0
            if has_reply or not (tokens.prefix or tokens.prompt_new):
                yield Problem("capture", f"turn {number} has no ids")


def _turn(rollout: Rollout, number: int, turn: Turn) -> Iterator[Problem]:
    tokens = turn.tokens
    assert tokens is not None
    try:
        output, logprobs = ids_of(tokens.output), floats_of(tokens.logprobs or b"")
        new = ids_of(tokens.prompt_new)
    except BrokenContext as problem:
        yield Problem("length", f"turn {number}: {problem}")
        return
    if rollout.capture == "tokens" and len(output) != len(logprobs):
        yield Problem("length", f"turn {number} has {len(output)} sampled ids and {len(logprobs)} logprobs")
    if not np.isfinite(logprobs).all() or (logprobs > 0).any():
        wrong = logprobs[~np.isfinite(logprobs) | (logprobs > 0)]
        yield Problem("logprob", f"turn {number} has {float(wrong[0]):g} among its logprobs")
    elif (logprobs <= PLACEHOLDER).any():
        yield Problem("placeholder", f"turn {number} has {int((logprobs <= PLACEHOLDER).sum())} of them")
    if (output < 0).any() or (new < 0).any():
        yield Problem("ids", f"turn {number}")
    yield from _top(number, tokens)
    yield from _prompt(rollout, number, turn)
    offsets = [offset for offset, _ in turn.versions]
    if offsets and (offsets[0] != 0 or offsets != sorted(set(offsets)) or offsets[-1] > len(output)):
        yield Problem("versions", f"turn {number} has them at {offsets}, and {len(output)} sampled ids")


def _top(number: int, tokens: Tokens) -> Iterator[Problem]:
    """The likeliest tokens: as many places as were sampled, each from the likeliest down."""
    try:
        top = top_of(tokens)
    except BrokenContext as problem:
        yield Problem("top", f"turn {number}: {problem}")
        return
    if top is None:
        return
    wrong = np.isnan(top.logprobs) | (top.logprobs > 0)
    if wrong.any() or (top.logprobs[:, 1:] > top.logprobs[:, :-1]).any():
        yield Problem("top", f"turn {number} has them in another order, or above 0")


def _prompt(rollout: Rollout, number: int, turn: Turn) -> Iterator[Problem]:
    """Whether the prompt can be rebuilt, and has the length that the server counted."""
    tokens = turn.tokens
    assert tokens is not None
    before = tokens.continues
    if tokens.prefix or before is not None:
        source = rollout.turns[before].tokens if before is not None and 0 <= before < number else None
        held = 0 if source is None else source.prefix + len(source.prompt_new + source.output) // ID_BYTES
        if not 0 <= tokens.prefix <= held:
            yield Problem(
                "prefix", f"turn {number} takes {tokens.prefix} ids of turn {before}, which has {held}"
            )
            return
    if rollout.capture == "tokens" and turn.usage is not None:
        ids = (tokens.prefix + len(tokens.prompt_new) // ID_BYTES, len(tokens.output) // ID_BYTES)
        counted = (turn.usage.prompt_tokens, turn.usage.completion_tokens)
        if ids != counted:
            yield Problem(
                "usage",
                f"turn {number} has {ids[0]} + {ids[1]} ids, the server counted {counted[0]} + {counted[1]}",
            )


def _masks(rollout: Rollout, sequences: list[TrainingSequence], merging: Merging) -> Iterator[Problem]:
    """The rows against the record: the ids as the model saw them, the mask on each sampled id once."""
    seen: set[int] = set()
    for sequence in sequences:
        mask = np.zeros(len(sequence), np.bool_)
        for span in sequence.spans:
            tokens = rollout.turns[span.turn].tokens
            assert tokens is not None
            if sequence.input_ids[span.start : span.stop].tobytes() != tokens.output:
                yield Problem("mask", f"sequence {sequence.segment} alters what turn {span.turn} sampled")
            if span.trained == (span.turn in seen):
                yield Problem("mask", f"turn {span.turn} is trained twice, or never")
            mask[span.start : span.stop] = span.trained
            seen.add(span.turn)
        if not np.array_equal(mask, sequence.loss_mask) or sequence.logprobs[~sequence.loss_mask].any():
            yield Problem("mask", f"sequence {sequence.segment} trains other ids than were sampled")
        leaf = sequence.spans[-1].turn
        if not merging.tolerant and sequence.input_ids.tobytes() != context_ids(rollout.turns, leaf):
            yield Problem("mask", f"sequence {sequence.segment} is not what the model saw in turn {leaf}")
    sampled = {
        number
        for number, turn in enumerate(rollout.turns)
        if turn.tokens is not None and turn.tokens.output and turn.role in merging.roles
    }
    if seen != sampled:
        yield Problem("mask", f"turns {sorted(sampled - seen)} are in no sequence")


def _known_tasks(run: Path) -> dict[str, int] | None:
    tasks = run / TASKS
    return read_tasks(tasks) if tasks.exists() else None


def _first_of_each(problems: Iterable[Problem]) -> list[Problem]:
    """One of each kind: a rollout counts once."""
    return list({problem.check: problem for problem in reversed(list(problems))}.values())[::-1]


def _count_duplicates(reader: RunReader, names: DuplicateFinder, tally: _Tally) -> None:
    """Lines are counted that say an (id, attempt) again; the log is read twice only where there seem to be some."""
    twice = names.duplicates()
    if not twice:
        return
    seen: set[tuple[str, int]] = set()
    for position, head in reader.heads():
        name = (head.id, head.attempt)
        if name in twice:
            if name in seen:
                tally.add("duplicate", f"{head.id}.{head.attempt} in {position.segment}")
            seen.add(name)
