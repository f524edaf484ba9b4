"""The head of a line: the fields that resuming and ordering need, and which line of a slot is the final attempt."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from windrow.records import SCHEMA_VERSION, Rollout, is_done
from windrow.store.log import whole_bytes
from windrow.util.hash_index import DuplicateFinder, DuplicateNames

NOT_A_LINE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Precedence = tuple[bool, int]
BestAttempts = dict[bytes, Precedence]  # the precedence to beat, by rollout id


class LogLine(NamedTuple):
    """A whole line of a log and its position."""

    segment: str
    number: int
    offset: int
    text: bytes


class BadLine(msgspec.Struct, frozen=True):
    """A whole line of a log that cannot be read."""

    segment: str
    number: int
    problem: str


class _Error(msgspec.Struct, gc=False):
    retryable: bool
    owner: str = "infra"


class _Task(msgspec.Struct, gc=False):
    index: Count


class Head(msgspec.Struct, gc=False):
    """The part of a rollout's line that resuming and ordering need; the rest of the line is not decoded."""

    id: str
    attempt: Count
    group: str
    sample: Count
    status: str
    reason: str | None
    grade: str
    grading: str | None
    error: _Error | None
    task: _Task
    seat: Count | None = None
    seats: Count | None = None

    @property
    def done(self) -> bool:
        return is_done(self.status, self.reason)


H = TypeVar("H", bound=Head | Rollout)  # the head of a line, or all of it


class MemberHead(Head, gc=False, kw_only=True):
    """A head with the agent that played: an opponent is no member of a group."""

    agent: str


class _Version(msgspec.Struct):
    v: int = SCHEMA_VERSION


decode_head = msgspec.json.Decoder(Head).decode
decode_member = msgspec.json.Decoder(MemberHead).decode
_decode_version = msgspec.json.Decoder(_Version).decode
_OWN_VERSION = b'{"v":%d,' % SCHEMA_VERSION  # how every line begins that this version writes
_has_no_seat = re.compile(
    rb'\{"v":%d,"id":"[^"\\]+","attempt":\d+,"group":"[^"\\]+","sample":\d+,"(?:seed"|episode":null,"seat":null)'
    % SCHEMA_VERSION
).match  # how every line begins that has none
_plain = re.compile(
    rb'\{"v":%d,"id":"([^"\\]+)","attempt":(\d+),"group":"[^"\\]+","sample":\d+,"(?:seed"|episode":null,"seat":null)'
    % SCHEMA_VERSION
).match  # the same, and what it says first
_first_attempt = re.compile(rb'\{"v":%d,"id":"([^"\\]+)","attempt":1,' % SCHEMA_VERSION).match


def check(line: bytes) -> None:
    """Raise one of NOT_A_LINE for what a partial decode would not notice: another version, text that is not UTF-8."""
    if not line.startswith(_OWN_VERSION):
        version = _decode_version(line).v
        if version > SCHEMA_VERSION:
            raise msgspec.ValidationError(
                f"written by a newer windrow (schema {version}): upgrade to read it"
            )
    if not line.isascii():
        line.decode()


def attempts_of(heads: Iterable[H]) -> Iterator[tuple[H, bool]]:
    """Each attempt by the last of its lines, and whether it is whole.

    The seats of an episode stand together in the log, in their order. One that lacks a line is an attempt that is lost.
    """
    before: H | None = None  # of an episode with seats
    sound = True
    for head in heads:
        joins = before is not None and head.seat is not None and follows(head, before)
        if before is not None and not joins:
            yield before, sound and is_last_seat(before)
            before = None
        if head.seat is None:
            yield head, True
        else:
            sound = (sound and joins) or head.seat == 0
            before = head
    if before is not None:
        yield before, sound and is_last_seat(before)


def without_lost_episodes(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """The lines but those of episodes that lack seats, which are no attempts: a seat that is left is never taken for
    final beside seats of another attempt."""
    seats: list[LogLine] = []
    before: Head | None = None
    for line in lines:
        head = None if _has_no_seat(line.text) else _head(line.text)
        if head is None or head.seat is None:
            before, seats = None, []
            yield line
            continue
        joins = before is not None and seats[0].segment == line.segment and follows(head, before)
        if not joins and head.seat != 0:
            before, seats = None, []
            continue
        if joins:
            seats.append(line)
        else:
            seats = [line]
        before = head
        if is_last_seat(head):
            yield from seats
            before, seats = None, []


def _head(line: bytes) -> Head | None:
    try:
        return decode_head(line)
    except NOT_A_LINE:
        return None


def is_last_seat(head: Head | Rollout) -> bool:
    """Whether an episode ends with this line: it has one seat, or this is the last."""
    return head.seat is None or head.seats is None or head.seat == head.seats - 1


def whole_episodes(descriptor: int) -> int:
    """The length of a log of rollouts up to its last whole episode: whole lines, and none of a last one that lacks seats.

    Seats are one write; only a power cut, or reading while it is made, shows some of them.
    """
    end = whole_bytes(descriptor)
    start, last = _line_before(descriptor, end)
    if last is None or is_last_seat(last):
        return end
    while last.seat:  # back to its first seat
        before, earlier = _line_before(descriptor, start)
        if earlier is None or not follows(last, earlier):
            break
        start, last = before, earlier
    return start


def _line_before(descriptor: int, end: int) -> tuple[int, Head | None]:
    """Where the line that ends at `end` begins, and its head; None where it is no rollout's."""
    start = whole_bytes(descriptor, max(0, end - 1))
    return start, _head(os.pread(descriptor, end - start, start))


def follows(head: Head | Rollout, before: Head | Rollout) -> bool:
    """Whether a line is of the next seat of the same attempt."""
    if before.seat is None or head.seat != before.seat + 1:
        return False
    return (head.group, head.sample, head.attempt) == (before.group, before.sample, before.attempt)


def precedence(status: str, attempt: int) -> Precedence:
    """The final attempt of a slot is the one of the highest precedence: the highest that ended well, else the highest.

    A surplus attempt settles its slot too, but is cancelled: it never takes the place of one that ended.
    """
    return (status in ("completed", "truncated"), attempt)


def best_attempts(lines: Callable[[], Iterator[bytes]]) -> BestAttempts:
    """The precedence to beat in every slot that more than one of the lines claims: a later attempt than the first, or two
    first ones (writers without a lock). The other slots cost four bytes each.

    Nearly all lines are first attempts, which their first bytes show; only the others are decoded.
    """
    best: BestAttempts = {}
    firsts = DuplicateFinder()
    for line in lines():
        first = _first_attempt(line)
        if first is None or first[1] in best:
            _enter(best, line, firsts)
        else:
            firsts.add(first[1])
    _enter_repeated(best, firsts, lines())
    return best


def best_attempts_plain(batches: Callable[[], Iterator[list[bytes]]]) -> BestAttempts | None:
    """The same for lines that come many at a time and all begin as those of episodes without seats do; None where one
    does not."""
    best: BestAttempts = {}
    firsts = DuplicateFinder()
    for lines in batches():
        names: list[bytes] = []
        for line in lines:
            match = _plain(line)
            if match is None:
                return None
            if match[2] == b"1" and match[1] not in best:
                names.append(match[1])
            else:
                _enter(best, line, firsts)
        firsts.update(names)
    _enter_repeated(best, firsts, chain.from_iterable(batches()))
    return best


def _enter_repeated(best: BestAttempts, firsts: DuplicateFinder, lines: Iterable[bytes]) -> None:
    """Enter the first attempts that several lines claim. The lines are read again only if there are any."""
    if twice := firsts.duplicates():
        for line in lines:
            first = _first_attempt(line)
            if first is None or first[1] in twice:
                _enter(best, line, twice)


def _enter(best: BestAttempts, line: bytes, firsts: DuplicateFinder | DuplicateNames) -> None:
    """Enter a line. A first attempt that no other line repeats needs no entry."""
    try:
        check(line)
        head = decode_head(line)
    except NOT_A_LINE:
        return
    id = head.id.encode()
    if head.attempt > 1 or id in best or (isinstance(firsts, DuplicateNames) and id in firsts):
        best[id] = max(precedence(head.status, head.attempt), best.get(id, (False, 0)))
    elif isinstance(firsts, DuplicateFinder):
        firsts.add(id)
