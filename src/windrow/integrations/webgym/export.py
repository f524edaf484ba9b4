"""`webgym`: the rollouts of one iteration as WebGym's trajectory file: plain data that `torch.load` reads with
`weights_only=True`; or, in a file called .jsonl, one trajectory per line and the metadata in a file beside it, which
needs no torch.

In a directory the file gets WebGym's own name. A .pt file is held in memory until it is written; JSON lines are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from windrow.errors import UsageError
from windrow.exports.base import Example, Exporter, JsonLines, Unfit, Writer
from windrow.integrations.webgym.iterations import file_name, rank_of
from windrow.integrations.webgym.trajectories import Trajectory, TrajectoryMaker, metadata_of
from windrow.records import Json
from windrow.registry import import_extra
from windrow.store.passes import Pass
from windrow.store.reader import RunReader

FORMS = ("pt", "jsonl")


class WebGym(Exporter):
    takes_failed = True  # as trajectories that crashed, which theirs keeps too

    def __init__(
        self,
        iteration: int | None = None,
        form: str | None = None,
        image_root: str = "",
    ) -> None:
        super().__init__()
        if form is not None and form not in FORMS:
            raise UsageError(f"exporter 'webgym': form={form!r}; it is one of {', '.join(FORMS)}")
        if iteration is not None and not _is_number(iteration):
            raise UsageError(f"exporter 'webgym': iteration={iteration!r}; it is a number from 0 on")
        self._wanted = iteration
        self._form = form
        self._image_root = str(image_root)
        self._metadata: dict[str, Json] = {}

    def place(self, out: Path, run: Path) -> Path:
        manifest = RunReader(run).manifest
        self._iteration = Pass(run, manifest, self._wanted)
        self._metadata = metadata_of(manifest, self._iteration.number, rank_of(manifest))
        self._written = TrajectoryMaker(manifest, image_root=self._image_root)
        by_name = "jsonl" if ".jsonl" in out.suffixes and not out.is_dir() else "pt"
        self._form = self._form or by_name
        return out / file_name(manifest, self._iteration.number, self._form) if out.is_dir() else out

    def open(self, file: BinaryIO) -> Writer:
        return JsonLines(file) if self._form == "jsonl" else _Pickled(file, self._metadata)

    def beside(self, out: Path) -> Sequence[Path]:
        return [out.with_name(f"{out.name}.metadata.json")] if self._form == "jsonl" else []

    def begin(self, run: Path, beside: Sequence[BinaryIO]) -> None:
        for file in beside:
            file.write(msgspec.json.format(msgspec.json.encode(self._metadata), indent=2) + b"\n")

    def rows(self, example: Example) -> list[Trajectory]:
        rollout = example.rollout
        if rollout not in self._iteration:
            raise Unfit("of another iteration")
        if rollout.status == "cancelled":
            raise Unfit("cancelled")
        if rollout.seat is not None:
            raise Unfit("seats of a match")
        if rollout.capture == "none":
            raise Unfit("recorded without their messages")
        steps = self._written.trajectory(rollout)
        if not steps:
            raise Unfit("without a step")
        return [steps]


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class _Pickled(Writer):
    """Collects the trajectories, and passes them to torch at the end."""

    def __init__(self, file: BinaryIO, metadata: dict[str, Json]) -> None:
        self._torch: Any = import_extra("torch", extra="torch", what="a .pt file (a .jsonl file does not)")
        self._file = file
        self._data: dict[str, Any] = {"trajectories": [], "metadata": metadata}

    def write(self, row: Any) -> None:
        self._data["trajectories"].append(row)

    def close(self) -> None:
        self._torch.save(self._data, self._file)
