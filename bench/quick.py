"""How close windrow comes to the floor, in under a minute.

Both sides ask the same stub server for the same number of single-turn rollouts, in turns, so that a noisy moment hits
both. The whole command is measured, start-up included: wall seconds, CPU seconds and peak memory of its process, and
the rollouts are counted in the file that it wrote. The best of the repeats is compared.

    make bench-quick
    python bench/quick.py --tasks 2000 --repeats 5
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMAND_TIMEOUT_S = 120


@dataclass(frozen=True)
class Sample:
    rollouts: int
    seconds: float
    cpu_seconds: float
    peak_rss_mb: float

    @property
    def rollouts_per_s(self) -> float:
        return self.rollouts / self.seconds

    @property
    def cpu_ms_per_rollout(self) -> float:
        return 1000 * self.cpu_seconds / self.rollouts


@contextmanager
def stub_server() -> Iterator[str]:
    """The base URL of a stub server that runs as long as the block does."""
    command = [sys.executable, str(HERE / "stub_server.py"), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()  # ends at once if the server dies
        if not line.startswith("READY "):
            raise SystemExit(f"the stub server did not start: {line.strip() or 'it ended'}")
        yield line.split()[1]
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def write_tasks(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for index in range(count):
            row = {"id": f"task-{index}", "prompt": f"What is {index} + 1?", "answer": "42"}
            file.write(json.dumps(row) + "\n")


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def run_measured(command: list[str], out: Path, expected: int) -> Sample:
    """Run `command`, which writes `expected` rollouts to `out`; anything else ends the benchmark."""
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        overdue = threading.Timer(COMMAND_TIMEOUT_S, process.kill)
        overdue.start()
        try:
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            overdue.cancel()
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)  # wait4 reaped it, so Popen cannot
        if process.returncode != 0:
            output.seek(0)
            said = output.read()[-2000:].decode(errors="replace")
            raise SystemExit(f"exit {process.returncode}: {' '.join(command)}\n{said}")
    rollouts = count_lines(out / "rollouts.jsonl")
    if rollouts != expected:
        raise SystemExit(f"{rollouts} rollouts where {expected} were asked for: {' '.join(command)}")
    return Sample(rollouts, seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def floor_command(url: str, tasks: Path, out: Path, options: argparse.Namespace) -> list[str]:
    return [
        *(sys.executable, str(HERE / "bare_client.py"), "--base-url", url),
        *("--tasks", str(options.tasks), "--repeats", str(options.samples)),
        *("--concurrency", str(options.concurrency), "--out", str(out)),
    ]


def windrow_command(url: str, tasks: Path, out: Path, options: argparse.Namespace) -> list[str]:
    return [
        *(sys.executable, "-m", "windrow", "collect", str(tasks), "--model", "stub", "--base-url", url),
        *("-k", str(options.samples), "--concurrency", str(options.concurrency)),
        *("--out", str(out), "--quiet", "--scorer", "number"),
    ]


COMMANDS = {"floor": floor_command, "windrow": windrow_command}


def measure(options: argparse.Namespace) -> dict[str, list[Sample]]:
    """All samples, by side. The sides take turns; every run writes to a directory of its own."""
    samples: dict[str, list[Sample]] = {side: [] for side in options.sides}
    with tempfile.TemporaryDirectory(prefix="windrow-bench-") as scratch, stub_server() as url:
        tasks = Path(scratch) / "tasks.jsonl"
        write_tasks(tasks, options.tasks)
        for repeat in range(options.repeats):
            for side in options.sides:
                out = Path(scratch) / f"{side}-{repeat}"
                command = COMMANDS[side](url, tasks, out, options)
                samples[side].append(run_measured(command, out, options.tasks * options.samples))
    return samples


def report(samples: dict[str, list[Sample]]) -> None:
    print(
        f"{'':9}{'rollouts':>9}{'seconds':>9}{'rollouts/s':>12}{'CPU s':>8}{'CPU ms each':>13}{'peak MB':>9}"
    )
    best: dict[str, Sample] = {}
    for side, runs in samples.items():
        for run in runs:
            print(
                f"{side:9}{run.rollouts:9,}{run.seconds:9.2f}{run.rollouts_per_s:12,.0f}"
                f"{run.cpu_seconds:8.2f}{run.cpu_ms_per_rollout:13.3f}{run.peak_rss_mb:9.1f}"
            )
        best[side] = max(runs, key=lambda run: run.rollouts_per_s)
    if {"windrow", "floor"} <= best.keys():
        windrow, floor = best["windrow"], best["floor"]
        cpu = {side: min(run.cpu_ms_per_rollout for run in samples[side]) for side in ("windrow", "floor")}
        print(
            f"\nbest of {len(samples['windrow'])}: windrow reaches"
            f" {windrow.rollouts_per_s / floor.rollouts_per_s:.2f} of the floor's rollouts/s"
            f" ({windrow.rollouts_per_s:,.0f} / {floor.rollouts_per_s:,.0f})"
            f" at {cpu['windrow'] / cpu['floor']:.2f} times its CPU a rollout"
            f" ({cpu['windrow']:.3f} / {cpu['floor']:.3f} ms)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=8, help="rollouts a task (k)")
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    options = parser.parse_args()
    # A TERM has to unwind the blocks that stop the server, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report(measure(options))


if __name__ == "__main__":
    main()
