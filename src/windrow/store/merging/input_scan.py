"""Scanning the inputs: every line is read once, and remembered by a hash of its subject and by its position."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from windrow.records import AttemptId, Lamport
from windrow.store.judgements import decode_judge_reply
from windrow.store.line_heads import NOT_A_LINE, MemberHead, check, decode_member, follows, is_last_seat
from windrow.store.manifest import Manifest, generations_of
from windrow.store.merging.conflicts import Conflict, decode_conflict
from windrow.store.merging.inputs import Input, InputLine, OpenFiles, Segment, lines_of
from windrow.store.merging.versions import ASIDE, NOT_WHOLE, NUMBERED, UNGROUNDED, ByteRange, Versions, hashed
from windrow.store.task_file import decode_known
from windrow.util.hash_index import HashIndex

NONE = 2**64 - 1
MOST = 2**32 - 1
REPORT_BYTES = 1 << 18

_ROLLOUT_ORDER = struct.Struct(">Q8sII")
_GRADING_ORDER = struct.Struct(">H?H19x")
_TASK_ORDER = struct.Struct(">Q16s")
_NUMBER, _TIME = struct.Struct(">Q"), struct.Struct(">d")


class UnreadableLine(msgspec.Struct, frozen=True):
    """A line that cannot be read, and the reason."""

    path: Path
    number: int
    offset: int
    size: int
    problem: str


class _GradingHead(msgspec.Struct, gc=False):
    unit: str
    members: tuple[AttemptId, ...]
    scorer: str
    fingerprint: str
    generation: int
    error: msgspec.Raw = msgspec.Raw(b"null")
    graded_at: float = 0.0
    lamport: Lamport = 0


class _Unit(msgspec.Struct):
    """The consecutive lines of one attempt: one line, or one per seat."""

    heads: list[MemberHead]
    texts: list[bytes]
    offset: int
    size: int


_decode_grading = msgspec.json.Decoder(_GradingHead).decode


class Scan:
    """The versions of all rollouts, tasks, judgements and verdicts in the inputs."""

    def __init__(
        self, files: OpenFiles, joined: Manifest, read: Callable[[int], None], *, verdicts: bool = True
    ) -> None:
        """`joined` is the manifest of the merged run; `read` is called with the number of bytes read since the last call.

        Without `verdicts` in any input, the attempts need not be found again.
        """
        self.files = files
        self.rollouts, self.scores, self.judgements, self.tasks = (Versions() for _ in range(4))
        self.bad: list[UnreadableLine] = []
        self.agents: set[str] = set()
        self.seats = False
        self._read = read
        self._verdicts = verdicts
        self._runs = 0
        # By run and attempt: the number of the version that counts in that run.
        self._attempts = HashIndex("I")
        # The attempts that each verdict is about, as version numbers, verdict after verdict.
        self._bases = array("Q")
        self._starts = array("Q")  # by verdict: the index in `_bases` at which its attempts begin
        # By verdict: the attempts it is about that its run lacks.
        self._strangers: dict[int, list[AttemptId]] = {}
        self._scorers = {
            (generation.hash, generation.generation): {
                entry["name"]: position for position, entry in enumerate(generation.of.get("scorers") or ())
            }
            for generation in generations_of(joined)
        }

    def take(self, input: Input) -> None:
        run = self._runs
        self._runs += 1
        for segment in input.rollouts:
            file = self.files.add(segment.path)
            for unit in self._units(segment):
                byte_range = ByteRange(file, unit.offset, unit.size)
                number = self._rollout(run, unit.heads, unit.texts, byte_range, 0)
                for head in unit.heads if self._verdicts and _is_whole(unit.heads) else ():
                    if self._attempts.get((run, head.id, head.attempt)) is None:
                        self._attempts.set((run, head.id, head.attempt), number)
        for log in ("tasks", "judgements", "scores"):
            for segment in getattr(input, log):
                file = self.files.add(segment.path)
                for line in self._lines(segment):
                    self._tried(
                        segment, line, self._adder(log), run, ByteRange(file, line.offset, line.size), 0
                    )
        for segment in input.conflicts:
            file = self.files.add(segment.path)
            for line in self._lines(segment):
                self._tried(segment, line, self._conflict, run, ByteRange(file, line.offset, line.size), 0)

    def is_grounded(self, number: int, stands: array[int]) -> bool:
        """Whether every attempt that a verdict is about is in the merged log, in the version that was graded."""
        if any(version != NONE and stands[version] == NONE for version in self._basis(number)):
            return False
        strangers = self._strangers.get(number, ())
        return not any(
            self._attempts.get((run, *stranger)) is not None
            for stranger in strangers
            for run in range(self._runs)
        )

    def first_member(self, number: int) -> int:
        """The version of the first attempt that a verdict is about."""
        return next(iter(self._basis(number)), NONE)

    def _basis(self, number: int) -> array[int]:
        end = self._starts[number + 1] if number + 1 < len(self._starts) else len(self._bases)
        return self._bases[self._starts[number] : end]

    # -- lines

    def _lines(self, segment: Segment) -> Iterator[InputLine]:
        unreported = 0
        for line in lines_of(segment):
            unreported += line.size
            if unreported >= REPORT_BYTES:
                self._read(unreported)
                unreported = 0
            yield line
        self._read(unreported)

    def _tried(
        self,
        segment: Segment,
        line: InputLine,
        add: Callable[[int, bytes, ByteRange, int], None],
        run: int,
        byte_range: ByteRange,
        flags: int,
    ) -> None:
        try:
            check(line.text)
            add(run, line.text, byte_range, flags)
        except NOT_A_LINE as problem:
            self.bad.append(_bad(segment, line, problem))

    def _units(self, segment: Segment) -> Iterator[_Unit]:
        """The attempts of a segment, each with all its seats. An attempt that lacks seats is a unit of its own."""
        open_unit: _Unit | None = None
        for line in self._lines(segment):
            try:
                check(line.text)
                head = decode_member(line.text)
            except NOT_A_LINE as problem:
                self.bad.append(_bad(segment, line, problem))
                head = None
            if open_unit is None and head is not None and head.seat is None:  # the common case
                yield _Unit([head], [line.text], line.offset, line.size)
                continue
            if open_unit is not None and head is not None and follows(head, open_unit.heads[-1]):
                open_unit.heads.append(head)
                open_unit.texts.append(line.text)
                open_unit.size = line.offset + line.size - open_unit.offset
            else:
                if open_unit is not None:
                    yield open_unit
                open_unit = None if head is None else _Unit([head], [line.text], line.offset, line.size)
            if open_unit is not None and is_last_seat(open_unit.heads[-1]):
                yield open_unit
                open_unit = None
        if open_unit is not None:
            yield open_unit

    # -- the subject of a line

    def _adder(self, log: str) -> Callable[[int, bytes, ByteRange, int], None]:
        return {"tasks": self._task, "judgements": self._judgement, "scores": self._grading}[log]

    def _conflict(self, run: int, text: bytes, byte_range: ByteRange, flags: int) -> None:
        conflict: Conflict = decode_conflict(text)
        texts = [bytes(line) for line in conflict.lines]
        if not texts:
            raise msgspec.ValidationError("it has no lines")
        if conflict.log == "rollouts":
            self._rollout(run, [decode_member(line) for line in texts], texts, byte_range, ASIDE)
        elif conflict.log in ("tasks", "judgements", "scores"):
            self._adder(conflict.log)(run, texts[0], byte_range, ASIDE | conflict.flags)
        else:
            raise msgspec.ValidationError(f"it is of a log that is not known: {conflict.log}")

    def _rollout(
        self, run: int, heads: list[MemberHead], texts: list[bytes], byte_range: ByteRange, flags: int
    ) -> int:
        first = heads[0]
        self.agents.update([head.agent for head in heads])
        if first.seat is None:
            key = hashed(first.id.encode(), b"%d" % first.attempt)
        else:  # also if seats are missing: the rest must not be taken for a part of another episode
            self.seats = True
            key = hashed(first.group.encode(), b"%d" % first.sample, b"%d" % first.attempt)
        ended = all(head.status in ("completed", "truncated") for head in heads)
        done = ended or all(head.done for head in heads)
        return self.rollouts.add(
            key=key,
            sort_key=bytes((not ended, not done)) if _is_whole(heads) else NOT_WHOLE,
            lines=texts,
            order=_ROLLOUT_ORDER.pack(
                first.task.index, first.group.encode()[:8], min(first.sample, MOST), min(first.attempt, MOST)
            ),
            flags=flags,
            run=run,
            byte_range=byte_range,
        )

    def _grading(self, run: int, text: bytes, byte_range: ByteRange, flags: int) -> None:
        head = _decode_grading(text)
        scorer_order = self._scorers.get((head.fingerprint, head.generation), {})
        together = any(id != head.unit for id, _ in head.members)
        number = self.scores.add(
            key=hashed(msgspec.json.encode((head.members, head.scorer, head.fingerprint, head.generation))),
            sort_key=_latest_first(head),
            lines=[text],
            order=_GRADING_ORDER.pack(
                max(0, min(head.generation, 0xFFFF)), together, scorer_order.get(head.scorer, 0xFFFF)
            ),
            flags=flags,
            run=run,
            byte_range=byte_range,
        )
        self._starts.append(len(self._bases))
        if flags & UNGROUNDED:
            return
        for member in head.members:
            version = self._attempts.get((run, *member))
            self._bases.append(NONE if version is None else version)
            if version is None:
                self._strangers.setdefault(number, []).append(member)

    def _judgement(self, run: int, text: bytes, byte_range: ByteRange, flags: int) -> None:
        key = hashed(decode_judge_reply(text).key.encode())
        self.judgements.add(
            key=key,
            sort_key=b"",
            lines=[text],
            order=key + bytes(8),
            flags=flags,
            run=run,
            byte_range=byte_range,
        )

    def _task(self, run: int, text: bytes, byte_range: ByteRange, flags: int) -> None:
        task = decode_known(text)
        if not bytes(task.data).startswith(b"{"):
            raise msgspec.ValidationError("its row is no object")
        index = max(0, min(task.index, NONE))
        key = hashed(task.source.encode(), task.digest.encode(), str(task.occurrence).encode())
        self.tasks.add(
            key=key,
            sort_key=b"\0" + index.to_bytes(8, "big"),
            lines=[text],
            order=_TASK_ORDER.pack(index, key),
            flags=flags,
            run=run,
            byte_range=byte_range,
        )


def _latest_first(head: _GradingHead) -> bytes:
    """The sort key of a verdict: by Lamport number, of the same number one without an error; then verdicts of older
    versions, those without an error first, by time."""
    failed = bytes(head.error) != b"null"
    if head.lamport:
        return bytes([NUMBERED]) + _inverted(_NUMBER.pack(head.lamport << 1 | (not failed)))
    return bytes([NUMBERED + 1 + failed]) + _inverted(_TIME.pack(max(0.0, head.graded_at)))


def _inverted(data: bytes) -> bytes:
    return bytes(255 - byte for byte in data)


def _is_whole(heads: list[MemberHead]) -> bool:
    """Whether the lines hold all seats of the episode."""
    return not heads[0].seat and is_last_seat(heads[-1])


def _bad(segment: Segment, line: InputLine, problem: Exception) -> UnreadableLine:
    return UnreadableLine(segment.path, line.number, line.offset, line.size, str(problem))
