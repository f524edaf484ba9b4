"""Writing the merged logs: each winning line once, in an order that depends only on the lines."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import msgspec

from windrow.store.line_heads import decode_head
from windrow.store.merging.conflicts import CONFLICTS, LOGS, encode_conflict
from windrow.store.merging.input_scan import NONE, Scan
from windrow.store.merging.versions import (
    UNGROUNDED,
    Choice,
    Output,
    OutputLine,
    Resolution,
    Version,
    Versions,
    keep_last,
    keep_lowest_rank,
)
from windrow.util.disk import Disk

WRITE_BYTES = 1 << 20
MOST_EXAMPLES = 5
ROLLOUTS = "rollouts.jsonl"


class Counts(msgspec.Struct, frozen=True):
    """How many attempts, tasks and verdicts the merged run has, and how many lines were set aside, by log."""

    attempts: int
    tasks: int
    gradings: int
    conflicts: dict[str, int]


class MergedWriter:
    """Writes the logs of one merge; `wrote` is called with the number of bytes of each piece."""

    def __init__(self, scan: Scan, disk: Disk, wrote: Callable[[int], None]) -> None:
        self._scan = scan
        self._disk = disk
        self._wrote = wrote
        self._aside = Output(52)
        self._conflicts: Counter[str] = Counter()
        self._examples: list[tuple[Version, Version]] = []
        has_verdicts = bool(scan.scores.count)
        # By version of an attempt: the winner with the same bytes; and the position of that winner in the log.
        self._stands = array("Q", [NONE]) * (scan.rollouts.count if has_verdicts else 0)
        self._positions = array("Q", self._stands)

    def write(self, folder: Path) -> Counts:
        """Write each log durably. Verdicts follow the attempts, since only verdicts on winning attempts are written."""
        attempts = self._write_rollouts(folder)
        tasks = self._write_chosen(folder, "tasks", self._scan.tasks, keep_lowest_rank, 10)
        self._write_chosen(folder, "judgements", self._scan.judgements, keep_last, 52)
        gradings = self._write_scores(folder)
        self._write_log(folder / CONFLICTS, self._conflict_lines())
        return Counts(
            attempts, tasks, gradings, {log: self._conflicts[log] for log in LOGS if self._conflicts[log]}
        )

    def examples(self) -> Iterator[str]:
        """Messages about some attempts that had several versions."""
        for winner, loser in self._examples:
            head = decode_head(self._scan.files.lines(winner.byte_range, winner.digest)[0])
            winner_path, loser_path = (
                self._scan.files.path(version.byte_range.file) for version in (winner, loser)
            )
            yield (
                f"task {head.task.index}, sample {head.sample}, attempt {head.attempt} ({head.id}): {winner_path} has what is kept, "
                f"{loser_path} something else"
            )

    # -- choosing the winners

    def _write_rollouts(self, folder: Path) -> int:
        output = Output(10)
        for versions in self._scan.rollouts.of_each():
            resolution = keep_lowest_rank(versions)
            winner = resolution.winner
            if self._stands and winner is not None:
                for version in versions:
                    if version.digest == winner.digest:
                        self._stands[version.number] = winner.number
            self._add(output, "rollouts", resolution)

        def lines() -> Iterator[bytes]:
            for position, line in enumerate(output.in_order()):
                if self._positions:
                    self._positions[line.number] = position
                yield from self._texts(line)

        self._write_log(folder / ROLLOUTS, lines())
        return output.count

    def _write_chosen(self, folder: Path, log: str, versions: Versions, choose: Choice, piece: int) -> int:
        output = Output(piece)
        for each in versions.of_each():
            self._add(output, log, choose(each))
        self._write_log(folder / f"{log}.jsonl", self._lines(output))
        return output.count

    def _write_scores(self, folder: Path) -> int:
        """Write the verdicts on winning attempts, in the order of the attempts and of the scorers of their generation."""
        output = Output(12)
        for versions in self._scan.scores.of_each():
            grounded = [
                version
                for version in versions
                if not version.flags & UNGROUNDED and self._scan.is_grounded(version.number, self._stands)
            ]
            if grounded:
                self._add(output, "scores", keep_last(grounded), self._verdict_order)
            digests = {version.digest for version in grounded}
            for version in versions:
                if version.digest not in digests:
                    digests.add(version.digest)
                    self._put_aside("scores", version, UNGROUNDED)
        self._write_log(folder / "scores.jsonl", self._lines(output))
        return output.count

    def _verdict_order(self, version: Version) -> bytes:
        first = self._scan.first_member(version.number)
        position = self._positions[self._stands[first]] if first != NONE else NONE
        generation_and_unit, scorer = version.order[:3], version.order[3:5]
        return (generation_and_unit + min(position, 2**40 - 1).to_bytes(5, "big") + scorer).ljust(24, b"\0")

    def _add(
        self,
        output: Output,
        log: str,
        resolution: Resolution,
        order: Callable[[Version], bytes] | None = None,
    ) -> None:
        winner = resolution.winner
        for version in resolution.written:
            placed = version.order if order is None else order(version)
            output.add(placed, version, winner=version is winner)
        for version, flags in resolution.aside:
            self._put_aside(log, version, flags)
            if log == "rollouts" and winner is not None and len(self._examples) < MOST_EXAMPLES:
                self._examples.append((winner, version))

    def _put_aside(self, log: str, version: Version, flags: int) -> None:
        order = bytes([LOGS.index(log)]) + version.key + bytes(6) + bytes([flags])
        self._aside.add(order, version, winner=False)
        self._conflicts[log] += 1

    # -- files

    def _lines(self, output: Output) -> Iterator[bytes]:
        for placed in output.in_order():
            yield from self._texts(placed)

    def _conflict_lines(self) -> Iterator[bytes]:
        for placed in self._aside.in_order():
            yield encode_conflict(LOGS[placed.order[0]], placed.order[-1], self._texts(placed))

    def _texts(self, placed: OutputLine) -> list[bytes]:
        return self._scan.files.lines(placed.byte_range, placed.digest)

    def _write_log(self, path: Path, lines: Iterator[bytes]) -> None:
        """Write no file for a log without lines, except for the rollouts."""
        first = next(lines, None)
        if first is not None:
            self._disk.replace(path, self._pieces(chain((first,), lines)))
        elif path.name == ROLLOUTS:
            self._disk.replace(path, b"")

    def _pieces(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        piece = bytearray()
        for line in lines:
            piece += line + b"\n"
            if len(piece) >= WRITE_BYTES:
                yield bytes(piece)
                self._wrote(len(piece))
                piece.clear()
        yield bytes(piece)
