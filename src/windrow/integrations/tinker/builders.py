"""The group builders of a factory of the user's: `module:factory`, called once in a process with a renderer of ours."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from windrow.errors import UsageError
from windrow.integrations.addresses import parse_address
from windrow.records import Json
from windrow.registry import load
from windrow.tasks.spool import SpooledRows

NAME = "tinker"


def open_tasks(path: str) -> tuple[SpooledRows, str]:
    """Return the rows of `tinker:module:factory`, one per group builder, and the name of the data set."""
    address = parse_address(path)
    address.refuse_unknown([])
    rows: list[dict[str, Json]] = [
        {"id": f"{address.name}:{index}", "env": NAME, "factory": address.name, "index": index, "tags": tags}
        for index, tags in enumerate(_tags(builder) for builder in builders_of(address.name)[1])
    ]
    return SpooledRows(enumerate(rows), path, label="index"), address.source(without=())


@lru_cache(maxsize=16)
def builders_of(factory: str) -> tuple[Any, Sequence[Any]]:
    """The renderer that the factory was given, and the builders that it gives: one, several, or the batches of an RLDataset, one after the other.

    Raises UsageError if it gives something else, or tinker-cookbook is not installed.
    """
    if factory.count(":") != 1:
        raise UsageError(f"{factory!r}: expected tinker:MODULE:FACTORY")
    try:
        from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset

        from windrow.integrations.tinker.renderer import MessageRenderer
    except ImportError as problem:
        raise UsageError(
            f"tinker:{factory} needs tinker-cookbook ({problem}); type: pip install tinker-cookbook"
        ) from None
    function, renderer = load("factory", factory), MessageRenderer()
    try:
        made = function(renderer) if inspect.signature(function).parameters else function()
    except Exception as problem:
        raise UsageError(f"factory {factory!r} raised {type(problem).__name__}: {problem}") from problem
    if isinstance(made, RLDataset):
        made = [builder for number in range(len(made)) for builder in made.get_batch(number)]
    found = [made] if isinstance(made, EnvGroupBuilder) else made
    if not isinstance(found, list | tuple) or not all(isinstance(each, EnvGroupBuilder) for each in found):
        raise UsageError(
            f"factory {factory!r} gave {type(made).__name__}; expected an EnvGroupBuilder, a list of them or an RLDataset"
        )
    return renderer, tuple(found)


def _tags(builder: Any) -> list[str]:
    return [str(tag) for tag in builder.logging_tags()]
