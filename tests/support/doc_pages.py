"""The README and the pages of docs/ as something that can be run.

A fenced block is what its first word says:

    console             lines that begin with `$ ` are commands, run one after another by a shell; the other lines are
                        what the command before them prints, each somewhere in its output, `…` standing for anything
    python              run as a script
    ANY NAME            (`python my_scorers.py`, `jsonl tasks.jsonl`) a file of that name, made before what follows

A command exits with 0, unless it ends in `# exit N`. In commands and scripts the address http://127.0.0.1:8000/v1 is a
real server's, http://127.0.0.1:11000 is a head server of NeMo Gym, and ID is the first id of the run named before it. `make`, `git`, `pip` and `.` are not run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import windrow
from tests.support.command_process import PATIENCE_S

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8000/v1"
MODEL = "my-model"
HEAD = "http://127.0.0.1:11000"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.M | re.S)
_NOT_RUN = ("git", "make", "pip", ".")


class Block(NamedTuple):
    kind: str
    name: str | None
    text: str


class Command(NamedTuple):
    line: str
    code: int
    output: tuple[str, ...]


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall(page.read_text(encoding="utf-8"))]


def commands(block: Block) -> list[Command]:
    found: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            exit_code = re.search(r"  # exit (\d+)$", line)
            found.append(Command(line[2:], int(exit_code[1]) if exit_code else 0, ()))
        elif line.strip():
            assert found, f"{line!r} follows no command"
            found[-1] = found[-1]._replace(output=(*found[-1].output, line))
    return found


def as_pattern(text: str) -> re.Pattern[str]:
    """`text`, in which … stands for anything."""
    return re.compile(".*".join(map(re.escape, text.split("…"))), re.S)


class Desk:
    """A directory in which a page is followed, word for word, by someone who has the examples and an endpoint."""

    def __init__(self, path: Path, url: str, head: str = HEAD) -> None:
        self.path = path
        self._url = url
        self._head = head
        shutil.copytree(ROOT / "examples", path / "examples")
        (path / "tasks.jsonl").write_text('{"prompt": "What is 6 times 7?", "answer": 42}\n')

    def follow(self, block: Block) -> None:
        if block.name:
            file = self.path / block.name
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            done = self._run([sys.executable, "-c", block.text.replace(ADDRESS, self._url)])
            assert done.returncode == 0, done.stdout
            assert done.stdout, f"it prints nothing:\n{block.text}"
        elif block.kind == "console":
            for command in commands(block):
                self._type(command)

    def _type(self, command: Command) -> None:
        if shlex.split(command.line)[0] in _NOT_RUN:
            check_unrun(command.line)
            return
        line = command.line.replace(ADDRESS, self._url).replace(HEAD, self._head)
        done = self._run(["sh", "-c", re.sub(r"(\S+) ID\b", self._with_id, line)])
        assert done.returncode == command.code, f"$ {line}\n{done.stdout}"
        for shown in command.output:
            pattern = as_pattern(shown)
            assert any(pattern.fullmatch(said) for said in done.stdout.splitlines()), (
                f"$ {line}\ndoes not print {shown!r} but\n{done.stdout}"
            )

    def _with_id(self, found: re.Match[str]) -> str:
        return f"{found[1]} {next(windrow.load(self.path / found[1])).id[:8]}"

    def _run(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        """As in a shell whose virtual environment is active; the hub is not asked, and no key is set."""
        environment = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
        environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(self.path / ".hub"), "MODEL_URL": self._url}
        return subprocess.run(
            arguments,
            cwd=self.path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
        )


def check_unrun(line: str) -> None:
    """A command that is not run names what there is: a target of the Makefile, an extra of the package."""
    command, *arguments = shlex.split(line)
    if command == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(arguments) <= set(targets), line
    if command == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = [name for found in re.findall(r"\[(.*?)\]", line) for name in found.split(",")]
        assert set(extras) <= set(project["optional-dependencies"]), line
