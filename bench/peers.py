"""The peers, each in an environment of its own: they need different major versions of the same libraries.

Environments are made once, under `.bench/`, from whatever package index pip is set up to use. A peer that cannot be
installed is left out with a note.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path

from harness import HERE, Failed, Load, Sample, Side, progress, run_measured

CACHE = HERE.parent / ".bench"
INSTALL_TIMEOUT_S = 900


@dataclass(frozen=True)
class Peer:
    package: str
    wanted: str  # of the package's versions
    environment: str  # its directory; peers that want the same share one
    runner: str
    flags: tuple[str, ...] = ()
    variant: str = ""

    @property
    def requirements(self) -> tuple[str, ...]:
        return (self.package + self.wanted, "openai")


VERIFIERS = Peer("verifiers", ">=0.4,<0.5", "verifiers", "run_verifiers.py")
LEGACY = Peer("verifiers", "<0.4", "verifiers-legacy", "run_verifiers.py")
INSPECT = Peer("inspect-ai", "", "inspect", "run_inspect.py")
LEAN = Peer("inspect-ai", "", "inspect", "run_inspect.py", ("--lean",), ", lean")
PEERS = (VERIFIERS, LEGACY, INSPECT, LEAN)


@dataclass(frozen=True)
class Company:
    """The peers that are there, and a note for each that is not."""

    pythons: dict[str, Path]  # by environment
    notes: tuple[str, ...]

    def sides(self, load: Load, *flags: str, repeats: int = 2, only: tuple[Peer, ...] = PEERS) -> list[Side]:
        here = [peer for peer in only if peer.environment in self.pythons]
        return [side(peer, self.pythons[peer.environment], load, flags, repeats) for peer in here]


NOBODY = Company({}, ("The peers were not asked.",))


def gather() -> Company:
    """Make the environments that are missing; the first time takes minutes."""
    pythons, notes = {}, []
    for peer in {peer.environment: peer for peer in PEERS}.values():
        try:
            pythons[peer.environment] = environment(peer)
        except Failed as failure:
            progress(f"{peer.package}{peer.wanted}: {failure}")
            notes.append(f"{peer.package}{peer.wanted} could not be installed here and is left out.")
    return Company(pythons, tuple(notes))


def environment(peer: Peer) -> Path:
    """The Python of the peer's environment, made if it is not there or was made for other requirements."""
    folder = CACHE / peer.environment
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    wanted = "\n".join(peer.requirements) + "\n"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    progress(f"installing {' '.join(peer.requirements)} into {folder.relative_to(HERE.parent)}")
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        for command in ([sys.executable, "-m", "venv", str(folder)], [*pip, *peer.requirements]):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.CalledProcessError as failure:
        said = (failure.stderr or failure.stdout or "").strip().splitlines()[-3:]
        raise Failed("\n".join([f"cannot be installed (exit {failure.returncode})", *said])) from None
    except subprocess.TimeoutExpired:
        raise Failed(f"cannot be installed in {INSTALL_TIMEOUT_S} s") from None
    stamp.write_text(wanted)
    return python


def version(python: Path, peer: Peer) -> str:
    """The version that is installed, as its own environment says it."""
    code = f"from importlib.metadata import version; print(version({peer.package!r}))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def side(peer: Peer, python: Path, load: Load, flags: tuple[str, ...], repeats: int) -> Side:
    """The peer's runner. It measures itself, without its imports, and prints what it measured last."""
    options = ["--tasks", str(load.tasks), "--repeats", str(load.samples)]
    options += ["--concurrency", str(load.concurrency), *peer.flags, *flags]

    def measure(url: str, folder: Path) -> Sample:
        place = ["--base-url", url, "--out", str(folder / "run")]
        with (folder / "said").open("w+b") as out:
            run_measured([str(python), str(HERE / peer.runner), *options, *place], out=out)
            out.seek(0)
            said = json.loads(out.read().splitlines()[-1])
        if said["rollouts"] != load.rollouts:
            raise Failed(f"{said['rollouts']} rollouts where {load.rollouts} were asked for")
        return Sample(**{field.name: said[field.name] for field in fields(Sample) if field.name in said})

    name = f"{peer.package} {version(python, peer)}{peer.variant}"
    command = f".bench/{peer.environment}/bin/python bench/{peer.runner} {shlex.join(options)}"
    return Side(name, load, measure, command, repeats, optional=True)
