"""metrics.cache: the numbers of metrics.json but for the tasks, and the state of the files that they were made of.

While every log has the size, the inode and the time of change that it had, an unchanged run need not be read again. Whatever
writes to a log changes one of them: an append or a cut the size, an edit in place the time, a file in its place the inode.
Who sets that time back changes the inode itself, of which nobody can set the time: no inode may be changed later than the
cache's. A checksum would notice no more than that without reading the logs whole, which is what the cache is there to save.

The states are of one file system, so they stand here and not in metrics.json, which is a function of the run alone. A copy
of the run directory has others, and is measured again. A cache that is missing, damaged, stale or foreign is no cache.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from windrow.identity import fingerprint
from windrow.records import Json, encode
from windrow.stats.schema import FORMULAS, METRICS, SCHEMA, Metrics
from windrow.store.reader import RunReader
from windrow.store.segments import segments
from windrow.util.disk import Disk

CACHE = "metrics.cache"
MAX_BYTES = 16 << 20  # a cache has some kilobytes for each agent
TICK_NS = 10_000_000  # of the clock that file systems take a time of change from; most tick faster


class FileState(msgspec.Struct, frozen=True, array_like=True):
    size: int
    inode: int
    changed_ns: int


class _Cache(msgspec.Struct, frozen=True, kw_only=True):
    files: dict[str, FileState]
    metrics: Metrics


_decode = msgspec.json.Decoder(_Cache).decode

States = dict[str, FileState]


def log_states(run: Path) -> States:
    """The state of every log that metrics are made of, to be taken before they are read.

    A change within one tick of the clock would go unnoticed, so a log that was written just now is left to age first.
    """
    states = _states(run, _logs(run))
    newest = max((state.changed_ns for state in states.values()), default=0)
    young = newest + TICK_NS - time.time_ns()
    if not 0 < young <= TICK_NS:
        return states
    time.sleep(young / 1e9)
    return _states(run, _logs(run))


def settings_of(reader: RunReader) -> str:
    """A hash of all that metrics take from run.json, and of the run's name."""
    manifest = reader.manifest
    settings: Json = {
        "name": reader.path.resolve().name,
        "source": manifest.source,
        "split": manifest.split,
        "behaviour": manifest.behaviour.hash,
        "grading": msgspec.to_builtins(manifest.grading),
        "samples": manifest.config.get("samples"),
        "planned": manifest.counts.get("planned"),
        "agents": manifest.agents,
    }
    return fingerprint(settings)


def write_cache(run: Path, metrics: Metrics, logs: States, disk: Disk) -> None:
    """Keep `metrics`, which stand in metrics.json and were made of `logs`."""
    cache = _Cache(files={**logs, **_states(run, (METRICS,))}, metrics=metrics)
    disk.replace(run / CACHE, encode(cache) + b"\n")


def confirm_cache(run: Path) -> None:
    """The files that the cache of `run` was made of were renamed, and nothing else: it goes on to count."""
    with contextlib.suppress(OSError):
        os.utime(run / CACHE)


def read_cache(reader: RunReader, pass_reward: float) -> Metrics | None:
    """The metrics of the run as it is now, without the tasks; None where they have to be made."""
    run = reader.folder
    try:
        with (run / CACHE).open("rb") as file:
            cache = _decode(file.read(MAX_BYTES))
            written_ns = os.fstat(file.fileno()).st_ctime_ns
        now = {name: os.stat(run / name) for name in (*_logs(run), METRICS)}
        if cache.files != {name: _state(of) for name, of in now.items()}:
            return None
        if max(of.st_ctime_ns for of in now.values()) > written_ns:
            return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    stamp = cache.metrics.stamp
    key = (cache.metrics.schema, stamp.formulas, stamp.pass_reward, stamp.settings)
    return cache.metrics if key == (SCHEMA, FORMULAS, pass_reward, settings_of(reader)) else None


def _logs(run: Path) -> list[str]:
    return [*segments(run), *segments(run, "scores")]


def _states(run: Path, names: Iterable[str]) -> States:
    return {name: _state(os.stat(run / name)) for name in names}


def _state(of: os.stat_result) -> FileState:
    return FileState(of.st_size, of.st_ino, of.st_mtime_ns)
