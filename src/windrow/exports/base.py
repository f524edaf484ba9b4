"""What an exporter is: rows from a rollout, and how rows are laid out in a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from windrow.records import Rollout

_encode = msgspec.json.Encoder().encode


class Unfit(Exception):
    """Raised by `Exporter.rows` for a rollout that its format cannot hold; the message says why, in few words
    and the same for all alike. It is left out and counted."""


class Invalid(Unfit):
    """The rollout's record contradicts itself. It is left out and counted, and the export ends with exit code 1."""


class Example(msgspec.Struct, frozen=True):
    """A rollout to export; `rewards` are those of its whole group, for an exporter that `needs_groups`."""

    rollout: Rollout
    rewards: tuple[float, ...] = ()


class Writer:
    """Lays rows out in a file, which is opened and closed by others. In the end one of `close` and `discard` is called."""

    def write(self, row: Any) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Write what is still held back."""

    def discard(self) -> None:
        """Let go of what is held: the file will be deleted."""


class JsonLines(Writer):
    """One JSON object a line."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, row: Any) -> None:
        self._file.write(_encode(row) + b"\n")


class Exporter:
    """One format. Its settings are the keyword arguments of its constructor.

    The order of calls: `place` once, `open` once, `begin` once, then `rows` of each rollout in the order of the run, `rest` once.
    Nothing of a rollout may be kept once its rows are given, so that memory does not grow with the run.
    """

    needs_groups = False  # whether Example.rewards is wanted: then a whole group is held at a time
    takes_failed = False  # whether failed and cancelled rollouts are wanted, too
    every_attempt = False  # whether all attempts are wanted, also failed ones and those that another follows

    def __init__(self) -> None:
        self.notes: Counter[str] = Counter()  # what a row does not say of its rollout, and of how many

    def rows(self, example: Example) -> Iterable[Any]:
        """The rollout in this format: any number of rows. Raises Unfit or Invalid."""
        raise NotImplementedError

    def open(self, file: BinaryIO) -> Writer:
        return JsonLines(file)

    def place(self, out: Path, run: Path) -> Path:
        """The file that is written: `out`, unless the format has names of its own for the rollouts of `run`."""
        return out

    def beside(self, out: Path) -> Sequence[Path]:
        """Files that are written together with `out`: all appear at the end, or none. `out` comes last, and is missing
        while older ones are replaced."""
        return ()

    def begin(self, run: Path, beside: Sequence[BinaryIO]) -> None:
        """The rollouts of `run` follow. `beside` are the files of that name, in their order."""

    def rest(self) -> Iterable[Any]:
        """Rows that were held back; nothing follows."""
        return ()
