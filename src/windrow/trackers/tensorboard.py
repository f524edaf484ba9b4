"""TensorBoard: an event file, by TensorBoard's own writer; in the run directory unless another is named."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from windrow.trackers.base import COLUMN, TABLE, Report
from windrow.util.disk import Disk

DIRECTORY = "tensorboard"


class TensorboardTracker:
    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._step = 0

    def start(self, report: Report) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        directory = Path(self._directory) if self._directory else report.path / DIRECTORY
        self._step = report.rollouts
        Disk().make_directory(directory)  # as private as the run that it is in
        self._writer = EventFileWriter(str(directory))

    def metrics(self, numbers: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for name, value in numbers.items():
            self._add(Summary.Value(tag=name, simple_value=value), self._step)

    def rollouts(self, lines: Iterator[str]) -> None:
        """A text a rollout, under one tag, its step the number of the rollout."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto

        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        for number, line in enumerate(lines):
            text = TensorProto(dtype="DT_STRING", string_val=[line.encode()])
            tag = f"{TABLE}/{COLUMN}"
            self._add(Summary.Value(tag=tag, metadata=metadata, tensor=text), number)

    def finish(self) -> None:
        self._writer.close()

    def _add(self, value: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))
