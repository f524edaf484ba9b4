"""Print the JSON Schema of a rollout: a line of rollouts.jsonl."""

from __future__ import annotations

import argparse

import msgspec

from windrow import records
from windrow.cli.output import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    return None


def run(arguments: argparse.Namespace) -> int:
    schema = msgspec.json.schema(records.Rollout)
    for name, definition in schema["$defs"].items():
        if not getattr(records, name).__struct_config__.omit_defaults:
            # A default is written like any other value.
            definition["required"] = list(definition["properties"])
    schema["$defs"]["Rollout"]["properties"]["crc32"] = {  # added to the line by the store
        "description": "CRC32 of the bytes of the line before this field; lines of older versions have none",
        "type": "string",
        "pattern": "^[0-9a-f]{8}$",
    }
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    write_json(schema, indent=2)
    return 0
