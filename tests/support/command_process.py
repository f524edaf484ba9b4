"""The real command in a directory of its own: as a process, or in the process of the test where that is enough.

    project.tasks([{"prompt": "2 + 2?", "answer": "4"}])
    done = project.collect("-k", "4")
    assert done.code == 0, done.err

Nothing here knows how the command works inside: arguments in; exit code, output and files out.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO, Any, NamedTuple
from unittest.mock import patch

import windrow
from tests.support.model_server import ModelServer, write_jsonl
from windrow.cli.main import main

PATIENCE_S = 240.0  # before a test is given up as hanging; nothing is measured with it


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


class Running:
    """A command under way. What it says goes to files, so that it never waits for a reader."""

    def __init__(self, arguments: list[str], cwd: Path, **options: Any) -> None:
        number = sum(1 for _ in cwd.glob(".stderr.*"))
        self._out, self._err = cwd / f".stdout.{number}", cwd / f".stderr.{number}"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            options = {"stdout": out, "stderr": err, **options}
            self.process = subprocess.Popen([sys.executable, "-m", "windrow", *arguments], cwd=cwd, **options)
        self.pid = self.process.pid

    @property
    def err(self) -> str:
        return self._err.read_text(encoding="utf-8")

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Return once `condition` holds. It is a failure if the command ends first."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None or condition(), f"ended before {what}:\n{self.err}"
            assert time.monotonic() < deadline, f"waited in vain for {what}:\n{self.err}"
            time.sleep(0.002)

    def until_said(self, text: str) -> None:
        self.until(lambda: text in self.err, f"{text!r} was said")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> Outcome:
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.stop()
            raise AssertionError(f"the command hangs:\n{self.err}") from None
        return Outcome(code, self._out.read_text(encoding="utf-8"), self.err)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Project:
    """A directory with task files and modules in it, and the run that `collect` makes there."""

    def __init__(self, path: Path, server: ModelServer | None = None) -> None:
        self.path = path
        self.run = path / "run"
        self.server = server
        self._started: list[Running] = []

    def tasks(self, rows: Iterable[Any], name: str = "tasks.jsonl") -> None:
        write_jsonl(self.path / name, rows)

    def module(self, name: str, source: str) -> None:
        (self.path / f"{name}.py").write_text(source, encoding="utf-8")

    def start(
        self,
        *arguments: str,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        variables: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Running:
        """`variables` are added to the environment."""
        environment = _environment() | dict(variables or {})
        running = Running(list(arguments), self.path, stdin=stdin, env=environment, **options)
        self._started.append(running)
        return running

    def windrow(self, *arguments: str, **options: Any) -> Outcome:
        return self.start(*arguments, **options).wait()

    def start_collect(self, *flags: str, tasks: str = "tasks.jsonl", **options: Any) -> Running:
        """`collect` against the project's server; a flag given here wins over the usual ones."""
        return self.start(*self._collect_arguments(flags, tasks), **options)

    def collect(self, *flags: str, **options: Any) -> Outcome:
        return self.start_collect(*flags, **options).wait()

    def lines(self, name: str = "rollouts.jsonl", run: Path | None = None) -> list[dict[str, Any]]:
        """The lines of a log of the run, as they stand there."""
        return [json.loads(line) for line in ((run or self.run) / name).read_bytes().splitlines()]

    def rollouts(self, attempts: str = "final", run: Path | None = None) -> list[windrow.Rollout]:
        return list(windrow.load(run or self.run, attempts=attempts))

    def close(self) -> None:
        for running in self._started:
            running.stop()

    def _collect_arguments(self, flags: Iterable[str], tasks: str) -> list[str]:
        assert self.server is not None
        usual = ["--model", "stub", "--base-url", self.server.url, "--out", "run", "--concurrency", "8"]
        return ["collect", tasks, *usual, "--set", "policy.backoff_s=0.01", *flags]


class InProcessProject(Project):
    """A project whose commands run in the process of the test, which saves the start of an interpreter each.

    It is for promises about what a command does and says. One about processes, signals, locks or standard input needs
    `Project`; `start` and options for the process (`stdin`, `variables`) give a process here too.
    """

    def windrow(self, *arguments: str, **options: Any) -> Outcome:
        if options:
            return super().windrow(*arguments, **options)
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        path, modules = list(sys.path), set(sys.modules)
        with ExitStack() as stack:
            stack.enter_context(chdir(self.path))
            stack.enter_context(patch.dict(os.environ, _environment(), clear=True))
            stack.enter_context(redirect_stdout(out))
            stack.enter_context(redirect_stderr(err))
            try:
                code = main(arguments)
            finally:
                sys.path[:] = path
                self._forget_modules(set(sys.modules) - modules)
        return Outcome(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))

    def collect(self, *flags: str, tasks: str = "tasks.jsonl", **options: Any) -> Outcome:
        return self.windrow(*self._collect_arguments(flags, tasks), **options)

    def _forget_modules(self, imported: set[str]) -> None:
        """The next command reads the project's own modules anew, as a new process would."""
        for name in imported:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(self.path):
                del sys.modules[name]


def prompt_of(body: dict[str, Any]) -> str:
    """The task's prompt in a completion request."""
    return str(body["messages"][0]["content"])


def _environment() -> dict[str, str]:
    """The test's own, without what would change the command: keys, and what launchers say."""
    changing = ("OPENAI_API_KEY", "RANK", "WORLD_SIZE", "SLURM_PROCID")
    return {name: value for name, value in os.environ.items() if name not in changing}
