"""Flags under the names that other collectors give them are taken where one flag means the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.command_process import Project

TOOLS = "--env tool --tool sums:add --tool sums:mul"
SUMS = '''
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def mul(a: int, b: int) -> int:
    """Multiply."""
    return a * b
'''


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("--max-steps 7", "--max-turns 7"),
        ("--max-concurrent 3", "--concurrency 3"),
        ("--num-samples-in-parallel 3", "--concurrency 3"),
        ("--num-repeats 2", "--samples 2"),
        (f"{TOOLS} --allowed-tools add,mu*", f"{TOOLS} --allow-tool add --allow-tool mu*"),
        (f"{TOOLS} --disallowed-tools add", f"{TOOLS} --deny-tool add"),
    ],
)
def test_a_flag_of_another_name_means_the_same(
    theirs: str, ours: str, in_process_project: Callable[..., Project]
) -> None:
    def config_with(flags: str) -> Any:
        own = in_process_project()
        own.tasks([{"prompt": "hello"}])
        own.module("sums", SUMS)
        done = own.collect(*flags.split())
        assert done.code == 0, done.err
        [manifest] = own.path.rglob("run.json")
        config = json.loads(manifest.read_bytes())["config"]
        config["policy"].pop("base_url")  # each project has a server of its own
        return config

    assert config_with(theirs) == config_with(ours) != config_with(TOOLS if "tool" in ours else "")
