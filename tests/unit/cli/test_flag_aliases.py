"""Flags under the names that other collectors give them: taken where one flag means the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

ALIASES = [
    ("--max-steps 7", "--max-turns 7"),
    ("--max-concurrent 3", "--concurrency 3"),
    ("--num-samples-in-parallel 3", "--concurrency 3"),
    ("--num-repeats 2", "--samples 2"),
    ("--allowed-tools add,mul*", "--allow-tool add --allow-tool mul*"),
    ("--disallowed-tools add --disallowed-tools mul", "--deny-tool add --deny-tool mul"),
]


@pytest.mark.parametrize(("theirs", "ours"), ALIASES)
def test_a_flag_of_another_name_does_the_same(
    theirs: str, ours: str, in_process_project: Callable[..., Any]
) -> None:
    project = in_process_project()
    rows = [{"prompt": "hello"}, {"prompt": "there"}]
    (project.folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tool = ["--tool", "operator:add"] if "tool" in ours else []
    outputs = []
    for flags in (theirs, ours, ""):
        done = project.run("collect", "tasks.jsonl", "--model", "m", "--dry-run", *flags.split())
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] != outputs[2]
