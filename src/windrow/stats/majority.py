"""majority@k: how often the answer passes that most of k samples of a task give.

The vote is by answer: one answer that was judged both ways is one candidate, and its value is the share of its samples
that pass. Candidates that share the lead share the win. A sample without an answer votes for nobody; where nobody has a
vote the value is 0. The k samples are drawn from all of a task's, without replacement: the value is the mean over every
such draw, so that the order of the samples does not matter.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from windrow.stats.estimate import table_ks
from windrow.stats.final_attempts import FinalAttempt
from windrow.util.hash_index import HashIndex

NAMED_TASKS = 20
MOST_DRAWN = 64  # samples of a task up to which every draw is counted; beyond, only draws of one and of all

Vote = tuple[tuple[int, int], ...]  # of each answer: how many samples gave it, and how many of those pass


class Majority(msgspec.Struct, frozen=True, kw_only=True):
    """`at` is by k, over `tasks`, the same for every k: those with the most graded samples whose answers were read.

    `no_answer` of `samples` graded samples have none. `unread` tasks have samples of which no scorer read an answer: they are
    in no majority; `unread_tasks` are the first of them by name.
    """

    at: dict[str, float]
    tasks: int
    samples: int
    no_answer: int
    unread: int
    unread_tasks: list[str]


class Votes:
    """The answers of each row's samples, by how many gave them: tens of bytes for each answer of a row."""

    def __init__(self) -> None:
        self._known = HashIndex("I")
        self._given = array("I")  # of a candidate: how many samples
        self._passed = array("I")
        self._before = array("I")  # the row's candidate before this one, counted from 1; 0: there is none
        self._last = array("I")  # of a row
        self._samples = array("I")
        self._silent = array("I")
        self._unread = bytearray()
        self._unread_tasks: list[str] = []

    def add(self, rows: Sequence[int], lines: Sequence[FinalAttempt], *, pass_from: float) -> None:
        """Count the graded ones among the lines."""
        self._make_room(max(rows, default=-1) + 1)
        pairs = zip(rows, lines, strict=True)
        graded = [(row, line, line.reward) for row, line in pairs if line.reward is not None]
        votes = Counter([(row, line.answer, reward >= pass_from) for row, line, reward in graded])
        for (row, answer, passes), count in votes.items():
            if answer is msgspec.UNSET:
                self._leave_out(row, next(line for of, line, _ in graded if of == row))
                continue
            self._samples[row] += count
            if answer is None:
                self._silent[row] += count
            else:
                candidate = self._candidate(row, answer)
                self._given[candidate] += count
                self._passed[candidate] += count * passes

    def majority(self) -> Majority | None:
        """None where no scorer read answers."""
        if not any(self._samples):
            return None
        read = [row for row in range(len(self._samples)) if self._samples[row] and not self._unread[row]]
        most = max((self._samples[row] for row in read), default=0)
        full = [row for row in read if self._samples[row] == most]
        alike = Counter(self._vote(row) for row in full)
        ks = [k for k in table_ks(most) if most <= MOST_DRAWN or k in (1, most)]
        sums = dict.fromkeys(ks, 0.0)
        for vote, count in alike.items():
            for k, value in majority_at(vote, most, tuple(ks)).items():
                sums[k] += count * value
        return Majority(
            at={str(k): value / len(full) for k, value in sums.items()},
            tasks=len(full),
            samples=sum(self._samples),
            no_answer=sum(self._silent),
            unread=sum(self._unread),
            unread_tasks=list(self._unread_tasks),
        )

    def _make_room(self, rows: int) -> None:
        missing = rows - len(self._unread)
        if missing > 0:
            for numbers in (self._last, self._samples, self._silent):
                numbers.frombytes(bytes(numbers.itemsize * missing))
            self._unread += bytes(missing)

    def _leave_out(self, row: int, line: FinalAttempt) -> None:
        if not self._unread[row]:
            self._unread[row] = 1
            if len(self._unread_tasks) < NAMED_TASKS:
                self._unread_tasks.append(line.task.key)

    def _candidate(self, row: int, answer: str) -> int:
        candidate = self._known.get((row, answer))
        if candidate is None:
            candidate = len(self._given)
            self._known.set((row, answer), candidate)
            self._given.append(0)
            self._passed.append(0)
            self._before.append(self._last[row])
            self._last[row] = candidate + 1
        return candidate

    def _vote(self, row: int) -> Vote:
        return tuple(
            sorted((self._given[candidate], self._passed[candidate]) for candidate in self._candidates(row))
        )

    def _candidates(self, row: int) -> Iterator[int]:
        following = self._last[row]
        while following:
            yield following - 1
            following = self._before[following - 1]


def majority_at(vote: Vote, samples: int, ks: tuple[int, ...]) -> dict[int, float]:
    """By k: the mean, over all draws of k of the samples, of the share of passes of the answer that leads."""
    counts = tuple(sorted(count for count, _ in vote))
    shares = _shares(counts, samples, ks)
    return {k: sum(shares[k][count] * (passed / count) for count, passed in vote) for k in ks}


@lru_cache(maxsize=4096)
def _shares(counts: tuple[int, ...], samples: int, ks: tuple[int, ...]) -> dict[int, dict[int, float]]:
    """By k and by how many samples gave an answer: the chance that it wins a draw of k, shared where it ties.

    The two ends need no counting: a draw of one has its answer, and there is one draw of all.
    """
    lead = max(counts, default=0)
    shares: dict[int, dict[int, float]] = {}
    for k in ks:
        if k == 1:
            shares[k] = {count: count / samples for count in set(counts)}
        elif k == samples:
            shares[k] = {count: (count == lead) / counts.count(lead) for count in set(counts)}
    if between := [k for k in ks if k not in shares]:
        shares |= _counted(counts, samples, between)
    return shares


def _counted(counts: tuple[int, ...], samples: int, ks: Sequence[int]) -> dict[int, dict[int, float]]:
    """The same by counting draws. For each number of votes to win with, the draws in which no answer has more are a
    product of polynomials, one an answer: z counts samples, u answers that tie. A polynomial is one whole number, its
    coefficients in fields wide enough for the number of all draws, and multiplies as such."""
    z = samples + 1  # bits of a field
    u = z * (samples + 1)
    field = (1 << z) - 1
    wins = {k: dict.fromkeys(counts, 0.0) for k in ks}
    for votes in range(1, max(counts, default=0) + 1):
        rivals = Counter(count for count in counts if count >= votes)
        factors = {count: _polynomial(count, votes - 1, z) for count in rivals}
        ties = {count: math.comb(count, votes) << z * votes for count in rivals}
        # Samples that cannot reach as many, or that vote for nobody.
        free = samples - sum(count * many for count, many in rivals.items())
        draws = _polynomial(free, free, z)
        for count, many in rivals.items():
            draws *= (factors[count] + (ties[count] << u)) ** many
        for count in rivals:
            others = draws // (factors[count] + (ties[count] << u)) * ties[count]
            for tied in range(rivals.total()):
                for k in ks:
                    wins[k][count] += (others >> u * tied + z * k & field) / (tied + 1)
    return {k: {count: won / math.comb(samples, k) for count, won in of.items()} for k, of in wins.items()}


def _polynomial(count: int, most: int, z: int) -> int:
    """Σ C(count, y) z^y for y up to `most`."""
    return sum(math.comb(count, y) << z * y for y in range(most + 1))
