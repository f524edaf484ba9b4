"""docs/troubleshooting.md quotes errors: here each of them is provoked, and says what the page quotes."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.doc_pages import ROOT, as_pattern
from tests.support.model_server import ModelServer, chat_reply, write_jsonl
from windrow.cli.main import main
from windrow.store.lock import Lock

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SCRIPT = ("--model", "scripted:script.yaml", "--out", "run")
UNASKED = ("--model", "m", "--base-url", "http://127.0.0.1:9/v1")


def column(title: str) -> list[str]:
    """What stands in code in the first column of the tables with this title."""
    tables = re.findall(rf"^\| {re.escape(title)} \|.*\n\|.*\n((?:\|.*\n)+)", PAGE, re.M)
    cells = [row.split(" | ")[0] for table in tables for row in table.splitlines()]
    return [quoted for cell in cells for quoted in re.findall(r"`(.+?)`", cell)]


class Scene:
    """A directory, the commands typed in it, and the servers that they ask."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch, serve: Callable[..., ModelServer]) -> None:
        self.path = path
        self.patch = patch
        self.serve = serve
        self.cleanup = ExitStack()
        patch.chdir(path)
        patch.delenv("OPENAI_API_KEY", raising=False)
        self.file("tasks.jsonl", '{"prompt": "2 + 2?", "answer": 4}\n')
        self.file("script.yaml", "replies: [{reply: '4'}]\n")

    def file(self, name: str, text: str | bytes) -> str:
        (self.path / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return name

    def tasks(self, *rows: Any) -> list[str]:
        return ["collect", write_jsonl(self.path / "bad.jsonl", rows).name, *UNASKED]

    def collect(self, *flags: str) -> list[str]:
        return ["collect", "tasks.jsonl", *flags]

    def after(self, *flags: str) -> list[str]:
        """`collect` with these flags, into a run that was collected without them."""
        assert main(self.collect(*SCRIPT, "--quiet")) == 0
        return self.collect(*SCRIPT, *flags)

    def ask(
        self, reply: Any = "4", model: str = "stub", flags: tuple[str, ...] = (), **options: Any
    ) -> list[str]:
        server = self.serve(reply, **options)
        return self.collect("--model", model, "--base-url", server.url, *flags)

    def faulty(self, kind: str, *flags: str) -> list[str]:
        self.file("script.yaml", f"replies: [{{reply: '4', fault: {{kind: {kind}, first: 9}}}}]\n")
        return self.collect(*SCRIPT, "--call-retries", "0", "--retries", "0", *flags)

    def without_model(self) -> list[str]:
        self.patch.setenv("WINDROW_CACHE", str(self.path / "cache"))
        return self.collect("--model", "local")

    def without_extra(self) -> list[str]:
        self.patch.setitem(sys.modules, "pyarrow.parquet", None)
        return ["tasks", "check", self.file("tasks.parquet", b"")]

    def with_key(self) -> list[str]:
        self.patch.setenv("OPENAI_API_KEY", "not-the-right-one")
        return self.ask(api_key="the-right-one")

    def locked(self) -> list[str]:
        command = self.after()
        self.cleanup.callback(Lock(self.path / "run" / "lock").release)
        return command

    def another_rank(self) -> list[str]:
        """A rank that goes by other numbers than one that is collecting."""
        command = self.collect(*SCRIPT, "--quiet", "--world-size", "2", "--rank", "0")
        assert main(command) == 0
        self.cleanup.callback(Lock(self.path / "run" / "lock.rank-0").release)
        return [*command, "--world-size", "3", "--rank", "1"]

    def refused(self) -> list[str]:
        port = self.cleanup.enter_context(socket.socket())
        port.bind(("127.0.0.1", 0))  # taken, and not listened to
        return self.collect("--model", "m", "--base-url", f"http://127.0.0.1:{port.getsockname()[1]}/v1")

    def down(self) -> list[str]:
        """An endpoint that is gone after it was asked for its models."""
        failing = (500, {}, {"error": "out of order"})
        flags = ("--max-outage", "0", "-k", "3", "--retries", "0", "--set", "policy.backoff_s=0")
        return self.ask((lambda body, n: failing), flags=flags)

    def untold(self) -> list[str]:
        """An endpoint that gives logprobs, and tells of no other tokens."""

        def reply(body: dict[str, Any], n: int) -> dict[str, Any]:
            answer = chat_reply(body, "4", n)
            answer["choices"][0]["logprobs"] = {"content": [{"token": "4", "logprob": -0.5}]}
            return answer

        return self.ask(reply, flags=("--top-logprobs", "2"))

    def judged(self, *flags: str) -> list[str]:
        """A rollout to be graded by criteria, with a judge that says nothing but 4."""
        self.file(
            "tasks.jsonl", '{"prompt": "2 + 2?", "rubric": [{"criterion": "Right?", "scale": [0, 9]}]}\n'
        )
        return self.collect(*SCRIPT, "--env", "rubric", *flags)

    def disagreeing(self) -> list[str]:
        for verdict in "12":
            self.file(f"judge{verdict}.yaml", f"replies: [{{reply: <score>{verdict}</score>}}]\n")
        judges = "[{model: 'scripted:judge1.yaml'}, {model: 'scripted:judge2.yaml'}]"
        settings = f"env.settings={{agreement: all, judges: {judges}}}"
        return self.judged("--set", settings)

    def merging(self, *flags: str) -> list[str]:
        """A run, and another that was collected with these flags."""
        self.after()
        assert main(self.collect("--model", "scripted:script.yaml", "--out", "run2", *flags, "--quiet")) == 0
        return ["merge", "run", "run2", "-o", "out"]

    def elsewhere(self) -> list[str]:
        (self.path / "run").mkdir()
        self.file("run/mine.txt", "")
        return self.collect(*SCRIPT)


# A part of each message, and the command that says it.
SAID: dict[str, Callable[[Scene], list[str]]] = {
    "cannot read the task file": lambda scene: ["collect", "missing.jsonl", *UNASKED],
    "is empty": lambda scene: ["collect", scene.file("bad.jsonl", ""), *UNASKED],
    "is a directory": lambda scene: ["collect", ".", *UNASKED],
    "is a binary file": lambda scene: ["collect", scene.file("bad.jsonl", b"\x7fELF\0\0"), *UNASKED],
    "longer than": lambda scene: ["tasks", "check", scene.file("bad.jsonl", b'"' + b"x" * (65 << 20) + b'"')],
    "already used": lambda scene: scene.tasks({"id": 1, "prompt": "a"}, {"id": 1, "prompt": "b"}),
    "NaN": lambda scene: scene.tasks({"prompt": "a", "answer": float("nan")}),
    "not valid JSON": lambda scene: ["tasks", "check", scene.file("bad.jsonl", '{"prompt": "a"')],
    "expected a JSON object": lambda scene: scene.tasks(["a"]),
    "neither 'prompt'": lambda scene: scene.tasks({"question": "a"}),
    "would import the module": lambda scene: scene.tasks({"prompt": "a", "env": "other:Env"}),
    "unknown env": lambda scene: scene.tasks({"prompt": "a", "env": "probelm"}),
    "some rows have": lambda scene: scene.tasks({"prompt": "a", "answer": 1}, {"prompt": "b"}),
    "cannot reach": Scene.refused,
    "no key was sent": lambda scene: scene.ask(api_key="the-right-one"),
    "check the key": Scene.with_key,
    "is not known at": lambda scene: scene.ask(
        (lambda body, n: (404, {}, {"error": "no such model"})), "other"
    ),
    "answered HTML": lambda scene: scene.ask((lambda body, n: (200, {}, "<html></html>")), "other"),
    "did not answer within": lambda scene: scene.ask(
        model="other", latency_s=60, flags=("--set", "policy.probe_timeout_s=0.2")
    ),
    "does not give them as": Scene.untold,
    "Collect with --capture": lambda scene: scene.ask(flags=("--capture", "tokens")),
    "no model:": lambda scene: scene.collect(),
    "asks a judge": Scene.judged,
    "is not here yet": Scene.without_model,
    "needs the extra": Scene.without_extra,
    "policy would ignore": lambda scene: scene.collect(*SCRIPT, "--base-url", "http://127.0.0.1:9/v1"),
    "it takes": lambda scene: scene.collect(*SCRIPT, "--temperature", "1"),
    "unknown flag": lambda scene: scene.collect("--modle", "m"),
    "unknown key": lambda scene: ["config", "show", "--set", "limits.max_turn=5"],
    "what shapes the rollouts has changed": lambda scene: scene.after("--max-turns", "3"),
    "only the grading": lambda scene: scene.after("--scorer", "exact"),
    "this run is of source": lambda scene: scene.after("--source", "other"),
    "is being written by": Scene.locked,
    "is collecting here": Scene.another_rank,
    "holds other files": Scene.elsewhere,
    "are not parts of one run": lambda scene: scene.merging("--max-turns", "3"),
    "of gradings is not the same": lambda scene: scene.merging("--scorer", "exact"),
    "is not a run directory": lambda scene: ["stats", "nowhere"],
}
FAILED: dict[str, Callable[[Scene], list[str]]] = {
    "infra/call_timeout": lambda scene: scene.faulty("hang", "--call-timeout", "0.2"),
    "infra/http_429": lambda scene: scene.faulty("http_429"),
    "infra/http_503": lambda scene: scene.faulty("http_503"),
    "infra/transport": lambda scene: scene.faulty("transport"),
    "infra/outage": Scene.down,
    "policy/http_400": lambda scene: scene.faulty("http_400"),
    "policy/bad_reply": lambda scene: scene.ask(lambda body, n: (200, {}, "<html></html>")),
    "scorer/unreadable_judgement": lambda scene: scene.judged("--judge", "scripted:script.yaml"),
    "scorer/judges_disagree": Scene.disagreeing,
}


@pytest.fixture
def scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stub: Callable[..., ModelServer]
) -> Iterator[Scene]:
    made = Scene(tmp_path, monkeypatch, stub)
    with made.cleanup:
        yield made


@pytest.mark.parametrize("message", column("it says"))
def test_an_error_says_what_the_page_quotes(
    message: str, scene: Scene, capfd: pytest.CaptureFixture[str]
) -> None:
    (provoke,) = [provoke for part, provoke in SAID.items() if part in message]
    command = provoke(scene)
    capfd.readouterr()
    code = main(command)
    said = capfd.readouterr().err
    assert as_pattern(message).search(" ".join(said.split())), said
    from_endpoint = message in PAGE[PAGE.index("## Endpoint") : PAGE.index("## Model and settings")]
    assert code == (1 if from_endpoint else 2)


@pytest.mark.parametrize("error", column("`error`"))
def test_a_rollout_fails_with_the_error_that_the_page_names(
    error: str, scene: Scene, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(FAILED[error](scene)) == 1
    assert f"failed: {error} " in capfd.readouterr().err


def test_the_page_has_every_error_that_is_provoked_here() -> None:
    assert [part for part in SAID if not any(part in message for message in column("it says"))] == []
    assert column("`error`") == list(FAILED)
