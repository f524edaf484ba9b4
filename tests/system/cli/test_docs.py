"""What the README and docs/ say is so: each command and script in them is run, each message quoted is said."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_process import Project
from tests.support.doc_pages import MODEL, PAGES, ROOT, Block, Desk, blocks
from tests.support.exact_token_policy import ExactPolicy
from tests.support.model_server import ModelServer
from tests.support.nemo_gym_servers import Gym, answer
from tests.support.scripted_envs import played, world
from windrow.policies.models import DEFAULT_MODEL, find_model, pull

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FORMAT = ROOT / "docs" / "file-format.md"


@pytest.fixture
def server(stub: Callable[..., ModelServer]) -> ModelServer:
    return stub("The answer is 42.", models=[MODEL])


@pytest.fixture
def gym() -> Iterator[Gym]:
    with Gym({"math_agent": lambda sent, n: answer(sent, "4")}) as made:
        yield made


@pytest.mark.parametrize("page", [page for page in PAGES if page != FORMAT], ids=lambda page: page.stem)
def test_what_a_page_tells_to_type_works(page: Path, tmp_path: Path, server: ModelServer, gym: Gym) -> None:
    pull(find_model(DEFAULT_MODEL))
    desk = Desk(tmp_path, server.url, gym.head)
    for block in blocks(page):
        desk.follow(block)


def test_a_command_that_fails_or_prints_something_else_is_noticed(
    tmp_path: Path, server: ModelServer
) -> None:
    desk = Desk(tmp_path, server.url)
    desk.follow(Block("console", None, "$ windrow tasks check tasks.jsonl\n…: 1 valid tasks\n"))
    for wrong in ("windrow tasks check nothing.jsonl", "windrow ls  # exit 2\nruns", "make nothing"):
        with pytest.raises(AssertionError):
            desk.follow(Block("console", None, f"$ {wrong}\n"))


# -- the log, read without windrow


def in_plain_python(run: Path) -> list[dict[str, Any]]:
    """What the reader in docs/file-format.md gives."""
    source = next(block.text for block in blocks(FORMAT) if "def read" in block.text)
    names: dict[str, Any] = {}
    exec(compile(source, str(FORMAT), "exec"), names)
    rollouts: list[dict[str, Any]] = names["read"](run)
    return rollouts


def test_the_reader_of_the_file_format_is_twenty_lines_and_needs_no_package() -> None:
    source = next(block.text for block in blocks(FORMAT) if "def read" in block.text)
    assert len([line for line in source.splitlines() if line.strip()]) <= 20
    assert re.findall(r"import (.*)", source) == ["json, pathlib"]


def test_twenty_lines_of_python_read_what_windrow_reads(
    project: Callable[..., Project],
) -> None:
    """A run with attempts that failed, one that was redone, a surplus one, a damaged line and a torn tail."""
    down = {"error": {"message": "down"}}
    own = project(lambda body, n: (503, {}, down) if n % 3 == 0 else "42")
    own.tasks({"prompt": f"What is {n} + 1?", "answer": n + 1} for n in range(38, 46))
    flags = ("-k", "2", "--call-retries", "0", "--retries", "1")
    own.collect(*flags)
    own.collect(*flags, "--redo", "reward=1")
    log = own.run / "rollouts.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    surplus = {**json.loads(lines[-1]), "attempt": 99, "status": "cancelled", "reason": "surplus"}
    damaged = lines[0][: len(lines[0]) // 2] + b"\n"
    log.write_bytes(b"".join([damaged, *lines, json.dumps(surplus).encode() + b"\n", lines[0][:40]]))
    with pytest.warns(UserWarning, match="left out"):
        expected = own.rollouts()
    found = in_plain_python(own.run)
    assert [(r["id"], r["attempt"]) for r in found] == [(r.id, r.attempt) for r in expected]
    assert [(r["status"], r["reward"], r["messages"][-1]["content"]) for r in found] == [
        (r.status, r.reward, r.messages[-1].content) for r in expected
    ]
    assert len({r["status"] for r in found}) > 1 or max(r["attempt"] for r in found) > 1


async def test_a_few_lines_of_numpy_read_the_tokens_of_a_rollout(tmp_path: Path) -> None:
    policy = ExactPolicy(lambda request: f"reply {request.turn}")
    await played(world([], turns=3), tmp_path / "run", policy=policy, capture="tokens")
    [rollout] = in_plain_python(tmp_path / "run")
    source = next(block.text for block in blocks(FORMAT) if "numpy" in block.text)
    names: dict[str, Any] = {}
    exec(compile(source, str(FORMAT), "exec"), names)
    expected = [prompt + output for prompt, output in zip(policy.prompts, policy.outputs, strict=True)]
    assert [ids.tolist() for ids in names["contexts"](rollout)] == expected
    logprobs = names["array"](rollout["turns"][1]["tokens"]["logprobs"], "<f4")
    assert logprobs.tolist() == [-0.5] * len(policy.outputs[1])
