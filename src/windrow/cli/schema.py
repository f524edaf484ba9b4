"""Print the JSON Schema of a rollout: a line of rollouts.jsonl."""

from __future__ import annotations

import argparse

import msgspec

from windrow import records


def add_arguments(parser: argparse.ArgumentParser) -> None:
    return None


def run(arguments: argparse.Namespace) -> int:
    schema = msgspec.json.schema(records.Rollout)
    for name, definition in schema["$defs"].items():
        if not getattr(records, name).__struct_config__.omit_defaults:
            # A default is written like any other value.
            definition["required"] = list(definition["properties"])
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    print(msgspec.json.format(msgspec.json.encode(schema), indent=2).decode())
    return 0
