"""Print the resolved run configuration, each value with where it came from.

windrow config show --config run.yaml --set limits.max_turns=5
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import msgspec

from windrow.cli import collect
from windrow.cli.output import write_out
from windrow.config import OPTIONS, as_tree, load_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=type(parser))
    show = actions.add_parser("show", help="every value and its origin", description=__doc__)
    collect.add_arguments(show)


def run(arguments: argparse.Namespace) -> int:
    options = {name: getattr(arguments, name, None) for name in OPTIONS}
    loaded = load_config(arguments.config, options, arguments.set)
    tree = {**as_tree(loaded.run), "trust": as_tree(loaded.trust)}
    rows = [(key, msgspec.json.encode(value).decode()) for key, value in _leaves(tree)]
    for key, value in rows:
        write_out(f"{key + ': ' + value:<56} # {_origin(key, loaded.origins)}")
    return 0


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _origin(key: str, origins: dict[str, str]) -> str:
    """Where a value was set: itself, or the whole of what it is part of (`env: problem`, a setting's object)."""
    if key in origins:
        return origins[key]
    section, _, name = key.rpartition(".")
    if section in ("tasks", "env", "agent") and name in ("path", "name"):
        return origins.get(section, "default")
    return origins.get(section, "default") if section.endswith(("settings", "map", "extra")) else "default"
