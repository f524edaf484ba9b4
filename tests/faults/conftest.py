"""What the tests of faults share."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.command_process import Outcome, Project
from tests.support.model_server import ModelServer, write_jsonl
from tests.support.raw_server import Deed, Handler, WireRequest, WireServer, completion, http, wired
from windrow.cli.main import main

ROWS = [{"id": f"q{n}", "prompt": f"what is {n}", "answer": "42"} for n in range(6)]
STRUCK = "what is 3"  # the prompt whose calls meet the fault
MODELS = http(200, {"data": [{"id": "stub"}]})
GOOD = http(200, completion("42"))


class Bench:
    """A directory, and the command typed in it: what it says, its exit code, and the lines that it leaves."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self.run = path / "run"
        self.url = ""
        self._capsys = capsys
        write_jsonl(path / "tasks.jsonl", ROWS)

    def collect(self, *flags: str) -> Outcome:
        self._capsys.readouterr()
        usual = ["--model", "stub", "--base-url", self.url, "--out", "run", "--concurrency", "4"]
        usual += ["--set", "policy.backoff_s=0.01", "--call-retries", "1", "--retries", "0"]
        code = main(["collect", "tasks.jsonl", *usual, *flags])
        said = self._capsys.readouterr()
        assert not any(word in said.err for word in ("Traceback", "internal error", "never retrieved")), (
            said.err
        )
        return Outcome(code, said.out, said.err)

    @property
    def log(self) -> bytes:
        return (self.run / "rollouts.jsonl").read_bytes()

    def lines(self) -> list[dict[str, Any]]:
        """The lines of the log. Each attempt stands there once, and every line is whole."""
        assert not self.log or self.log.endswith(b"\n")
        found = [json.loads(line) for line in self.log.splitlines()]
        assert max(Counter((line["id"], line["attempt"]) for line in found).values(), default=1) == 1
        return found

    def finals(self) -> dict[str, windrow.Rollout]:
        return {rollout.task.key: rollout for rollout in windrow.load(self.run)}


class Door:
    """Answers 42; calls for the struck prompt meet `fault` as long as there is one."""

    def __init__(self, fault: bytes | Deed | None) -> None:
        self.fault = fault

    def __call__(self, request: WireRequest) -> bytes | Deed:
        if request.method == "GET":
            return MODELS
        struck = request.json["messages"][0]["content"] == STRUCK
        return self.fault if struck and self.fault is not None else GOOD


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return Bench(tmp_path, capsys)


@pytest.fixture
def served(bench: Bench) -> Iterator[Callable[..., WireServer]]:
    """Puts a server of raw bytes behind the bench; it is stopped after the test."""
    with ExitStack() as stack:

        def serve(handler: Handler, **options: Any) -> WireServer:
            server = stack.enter_context(wired(handler, **options))
            bench.url = server.url
            return server

        yield serve


@pytest.fixture
def project(tmp_path: Path, stub: Callable[..., ModelServer]) -> Iterator[Callable[..., Project]]:
    """A factory of projects for the command as a process, as tests/system has it."""
    projects: list[Project] = []

    def make(reply: Any = "42", **options: Any) -> Project:
        path = tmp_path / f"project-{len(projects)}"
        path.mkdir()
        os.chmod(path, 0o777)
        projects.append(Project(path, stub(reply, **options)))
        projects[-1].tasks(ROWS)
        return projects[-1]

    yield make
    for made in projects:
        made.close()
