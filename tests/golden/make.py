"""Make the golden runs, and write down what the present code says of them: `python -m tests.golden.make [KIND …]`.

Each run is made by the command lines of `kinds.yaml`, as a user would type them, in a folder of its own that holds what
is in `parts/`, `tasks/` and `configs/`. A run that is made again has other times, so other bytes: what is committed
stays as it is unless the format itself changes. `--expected` leaves the runs alone and writes only what is said of them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import windrow
from tests.golden import looking, servers


def main(arguments: list[str]) -> None:
    if not Path(windrow.__file__).is_relative_to(looking.HERE.parent.parent):
        raise SystemExit(f"{windrow.__file__} is not the code beside these tests; set PYTHONPATH")
    wanted = [name for name in arguments if not name.startswith("-")] or list(looking.KINDS)
    with tempfile.TemporaryDirectory() as folder:
        scratch = looking.furnish(Path(folder) / "scratch")
        if "--expected" not in arguments:
            for name in wanted:
                print(f"-- {name}", flush=True)
                make(looking.KINDS[name], scratch)
        for name in wanted:
            print(f"-- expected of {name}", flush=True)
            looking.write_expected(looking.KINDS[name], Path(folder))


def make(kind: looking.Kind, scratch: Path) -> None:
    """Run the commands of a kind, and keep the runs that they have made."""
    for run in (*kind.runs, *kind.merge):
        shutil.rmtree(scratch / "runs" / run, ignore_errors=True)
    for run in kind.merge:
        shutil.copytree(looking.RUNS / run, scratch / "runs" / run)
    with ExitStack() as stack:
        variables = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        if kind.server is not None:
            variables["GOLDEN_URL"] = stack.enter_context(servers.serving(servers.ANSWERS[kind.server]()))
        for command, code in kind.made:
            _run(command, code, scratch, variables)
    for name in kind.damage:
        for run in kind.runs:
            damage(scratch / "runs" / run / name)
    for run in kind.runs:
        shutil.rmtree(looking.RUNS / run, ignore_errors=True)
        # metrics.cache knows the files by their inodes and times, which no copy has.
        shutil.copytree(
            scratch / "runs" / run, looking.RUNS / run, ignore=shutil.ignore_patterns("metrics.cache")
        )


def damage(log: Path) -> None:
    """A line in the middle that is none, and after the last one the beginning of another."""
    lines = log.read_bytes().splitlines(keepends=True)
    middle = len(lines) // 2
    torn = lines[-1][: len(lines[-1]) // 2]
    log.write_bytes(b"".join([*lines[:middle], b'{"v":1,"id":"\x00\xff\n', *lines[middle:], torn]))


def _run(command: str, code: int, folder: Path, variables: dict[str, str]) -> None:
    changing = ("OPENAI_API_KEY", "RANK", "WORLD_SIZE", "SLURM_PROCID")
    environment = {name: value for name, value in os.environ.items() if name not in changing} | variables
    line = [sys.executable, "-m", "windrow", *shlex.split(command)]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    print(f"   windrow {command}\n{done.stderr.rstrip()}", flush=True)
    if done.returncode != code:
        raise SystemExit(f"exit code {done.returncode} in place of {code}:\n{done.stdout}\n{done.stderr}")


if __name__ == "__main__":
    main(sys.argv[1:])
