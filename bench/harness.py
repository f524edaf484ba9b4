"""Sides that do the same work in turns, each a process that is measured from outside.

A side is a command that writes rollouts. Each measurement has a stub server and a directory of its own, and covers the
whole command, start-up included: wall seconds, CPU seconds, peak memory, bytes written. The rollouts are counted in the
files, so that a side cannot be quick by doing less.
"""

from __future__ import annotations

import compileall
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from _measure import tree_bytes, watched, write_tasks

HERE = Path(__file__).resolve().parent


class Failed(Exception):
    """A command that did not do what was asked; says which, and what it said last."""


@dataclass(frozen=True)
class Usage:
    seconds: float
    cpu_seconds: float
    peak_rss_mb: float
    parent_cpu_seconds: float = 0.0  # of the command's own process, while it had children


@dataclass(frozen=True)
class Sample:
    """One measurement of a side, or the best of several."""

    rollouts: int
    seconds: float
    cpu_seconds: float
    peak_rss_mb: float
    size_bytes: int
    parent_cpu_seconds: float = 0.0

    @property
    def rollouts_per_s(self) -> float:
        return self.rollouts / self.seconds

    @property
    def cpu_ms_per_rollout(self) -> float:
        return 1000 * self.cpu_seconds / self.rollouts

    @property
    def parent_cpu_ms_per_rollout(self) -> float:
        return 1000 * self.parent_cpu_seconds / self.rollouts

    @property
    def bytes_per_rollout(self) -> float:
        return self.size_bytes / self.rollouts


@dataclass(frozen=True)
class Load:
    """How much is asked for: `tasks` × `samples` rollouts, `concurrency` of them in flight."""

    tasks: int
    samples: int
    concurrency: int

    @property
    def rollouts(self) -> int:
        return self.tasks * self.samples


@dataclass(frozen=True)
class Side:
    """Who takes part. `measure` gets a base URL and an empty directory."""

    name: str
    load: Load
    measure: Callable[[str, Path], Sample]
    command: str  # as a reader would type it
    repeats: int = 1000  # at most: slow sides are measured less often
    optional: bool = False  # its failure is noted and the others go on


@dataclass
class Race:
    """What came out: the samples by side, and why a side has none."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def best(self, name: str) -> Sample:
        """The least seconds and the least CPU of the repeats; of memory the most."""
        runs = self.samples[name]
        return Sample(
            rollouts=runs[0].rollouts,
            seconds=min(run.seconds for run in runs),
            cpu_seconds=min(run.cpu_seconds for run in runs),
            peak_rss_mb=max(run.peak_rss_mb for run in runs),
            size_bytes=runs[0].size_bytes,
            parent_cpu_seconds=min(run.parent_cpu_seconds for run in runs),
        )


def race(sides: Sequence[Side], *, repeats: int = 1, stub: Sequence[str] = ()) -> Race:
    """Measure the sides in turns, so that a noisy moment does not hit one of them alone."""
    result = Race()
    out_of_it: set[str] = set()
    for repeat in range(repeats):
        for side in sides:
            if repeat >= side.repeats or side.name in out_of_it:
                continue
            try:
                with scratch() as folder, stub_server(*stub) as url:
                    sample = side.measure(url, folder)
            except Failed as failure:
                if not side.optional:
                    raise
                out_of_it.add(side.name)
                progress(f"    {side.name}: {failure}")
                result.notes.append(f"{side.name} failed here and is left out.")
                continue
            result.samples.setdefault(side.name, []).append(sample)
            progress(f"    {side.name:24} {describe(sample)}")
    return result


def describe(sample: Sample) -> str:
    return (
        f"{sample.rollouts:9,} rollouts {sample.seconds:8.2f} s {sample.rollouts_per_s:8,.0f}/s"
        f" {sample.cpu_ms_per_rollout:9.3f} CPU ms each {sample.peak_rss_mb:7.0f} MB"
    )


def floor(load: Load, *flags: str) -> Side:
    """The least that any collector must do through aiohttp: `bare_client.py`, the yardstick, which does not change."""
    return _floor("floor", "bare_client.py", load, *flags)


def lean_floor(load: Load, *flags: str) -> Side:
    """The same work through windrow's own HTTP client: `lean_client.py`."""
    return _floor("lean floor", "lean_client.py", load, *flags)


def _floor(name: str, script: str, load: Load, *flags: str) -> Side:
    options = ["--tasks", str(load.tasks), "--repeats", str(load.samples)]
    options += ["--concurrency", str(load.concurrency), *flags]

    def measure(url: str, folder: Path) -> Sample:
        client, out = HERE / script, folder / "run"
        return ours([sys.executable, str(client), "--base-url", url, "--out", str(out), *options], out, load)

    return Side(name, load, measure, f"python bench/{script} {shlex.join(options)}")


def windrow(load: Load, *flags: str, name: str = "windrow") -> Side:
    """`windrow collect` as a user would type it, without its display."""
    options = ["--quiet", "-k", str(load.samples), "--concurrency", str(load.concurrency), *flags]
    tasks_name = f"{load.tasks}-tasks.jsonl"

    def measure(url: str, folder: Path) -> Sample:
        tasks, out = folder / tasks_name, folder / "run"
        write_tasks(tasks, load.tasks)
        words = [sys.executable, "-m", "windrow", "collect", str(tasks), "--model", "stub", "--base-url", url]
        return ours([*words, "--out", str(out), *options], out, load)

    return Side(name, load, measure, f"windrow collect {tasks_name} {shlex.join(options)}")


def ours(command: list[str], out: Path, load: Load) -> Sample:
    """Run a command that writes `load.rollouts` lines to `out`; anything else has failed."""
    usage = run_measured(command)
    rollouts = sum(count_lines(path) for path in out.glob("rollouts*.jsonl"))
    if rollouts != load.rollouts:
        raise Failed(f"{rollouts} rollouts where {load.rollouts} were asked for: {shlex.join(command)}")
    return Sample(
        rollouts,
        usage.seconds,
        usage.cpu_seconds,
        usage.peak_rss_mb,
        tree_bytes(out),
        usage.parent_cpu_seconds,
    )


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


@cache
def compile_windrow() -> None:
    """Compile windrow to bytecode, as pip compiled aiohttp when it was installed. An editable install is not compiled,
    and PYTHONDONTWRITEBYTECODE would have every command compile it anew."""
    package = Path(find_spec("windrow").origin).parent
    compileall.compile_dir(package, quiet=2)


def run_measured(command: list[str], *, out: BinaryIO | None = None, timeout_s: float = 600) -> Usage:
    """Run `command` to its end, its output to `out`. Its descendants count if it has waited for them."""
    compile_windrow()
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=out or output, stderr=output, cwd=HERE)
        overdue = threading.Timer(timeout_s, process.kill)
        overdue.start()
        try:
            with watched(process.pid) as watch:
                _, status, used = os.wait4(process.pid, 0)
                seconds = time.perf_counter() - started
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            overdue.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)  # wait4 reaped it, so Popen cannot
        if process.returncode != 0:
            output.seek(0)
            said = output.read()[-2000:].decode(errors="replace")
            raise Failed(f"exit {process.returncode}: {shlex.join(command)}\n{said}")
    cpu_seconds = used.ru_utime + used.ru_stime
    return Usage(seconds, cpu_seconds, watch.rss_bytes / 2**20, watch.parent_cpu_s)


@contextmanager
def stub_server(*flags: str) -> Iterator[str]:
    """The base URL of a stub server that runs as long as the block does."""
    command = [sys.executable, str(HERE / "stub_server.py"), "--port", "0", *flags]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()  # ends at once if the server dies
        if not line.startswith("READY "):
            raise Failed(f"the stub server did not start: {line.strip() or 'it ended'}")
        yield line.split()[1]
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="windrow-bench-") as folder:
        yield Path(folder)


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def unwind_on_term() -> None:
    """A TERM has to leave the blocks that stop servers, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
