"""RESULTS.md: a section a scenario, replaced when the scenario is run, kept when it is not.

A section is what one run measured: its command, its tables, and the day, commit and load they stand for. Numbers come
from measurements only; prose about them lives in the scenario.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from harness import HERE, Race, Side

LOAD_AT_START = os.getloadavg()[0]
LIBRARIES = ("windrow-rl", "aiohttp", "msgspec", "uvloop")
PREFACE = """\
# Results

Written by `make bench`; `python bench/all.py --only NAME` measures one section again and keeps the others. The machine is
small and shared: only ratios within a section mean anything. Sides take turns; of the repeats the least seconds and the
least CPU count, and the most memory. A whole command is timed, start-up included; of the peers only the run, without
their imports, which take them seconds. Below each table stands what was run, without `--base-url`, `--model` and `--out`.
"""


@dataclass(frozen=True)
class Section:
    title: str
    about: str
    body: Sequence[str]  # tables and sentences, in order
    commands: Sequence[str] = ()  # what the sides ran
    notes: Sequence[str] = ()

    def text(self, command: str, measured_on: str) -> str:
        parts = [f"## {self.title}", f"    {command}", self.about.strip(), *self.body]
        if self.commands:
            parts.append("\n".join(f"    {command}" for command in self.commands))
        parts += self.notes
        parts.append(measured_on)
        return "\n\n".join(parts) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def race_table(race: Race, *, bytes_too: bool = False) -> str:
    """Every side that was measured, beside the floor."""
    least = race.best("floor")
    header = ["", "rollouts", "rollouts/s", "of the floor", "CPU ms a rollout", "× the floor", "peak MB"]
    rows = []
    for name in race.samples:
        best = race.best(name)
        row = [
            name,
            f"{best.rollouts:,}",
            number(best.rollouts_per_s),
            f"{best.rollouts_per_s / least.rollouts_per_s:.3f}",
            f"{best.cpu_ms_per_rollout:.3f}",
            f"{best.cpu_ms_per_rollout / least.cpu_ms_per_rollout:.2f}",
            number(best.peak_rss_mb),
        ]
        rows.append([*row, number(best.bytes_per_rollout)] if bytes_too else row)
    return table([*header, "bytes a rollout"] if bytes_too else header, rows)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def commands_of(sides: Iterable[Side], stub: Sequence[str] = ()) -> list[str]:
    """What a reader would type, the server first."""
    return [" ".join(["python bench/stub_server.py", *stub]), *(side.command for side in sides)]


def update(path: Path, section: Section, command: str, order: Sequence[str]) -> None:
    """Put `section`, which `command` measured, into the file at its place; sections that the order does not know stay at the end."""
    sections = read_sections(path)
    sections[section.title] = section.text(command, measured_on())
    rank = {title: position for position, title in enumerate(order)}
    titles = sorted(sections, key=lambda title: rank.get(title, len(rank)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([PREFACE, machine(), *(sections[title] for title in titles)]), encoding="utf-8")


def read_sections(path: Path) -> dict[str, str]:
    """The sections of the file, by title, as they stand there."""
    if not path.exists():
        return {}
    _, *parts = path.read_text(encoding="utf-8").split("\n## ")
    return {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}


def machine() -> str:
    """Where this was measured, and with what."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES)
    return (
        f"{len(os.sched_getaffinity(0))} cores ({cpu_model()}), {memory_gb:.0f} GB, "
        f"{platform.system()} {platform.release().partition('-')[0]}, "
        f"Python {platform.python_version()}, {versions}.\n"
    )


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def measured_on() -> str:
    day = datetime.now(UTC).date().isoformat()
    return f"*{day}, {commit()}; load {LOAD_AT_START:.1f} when the run began.*"


def commit() -> str:
    """The commit that was measured; `+` when the tree has changes."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    said = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    return said.stdout.strip() or "no commit"
