"""`${VAR}` in a value: expanded when the value is used, never written to a file."""

from __future__ import annotations

import os
import re

from windrow.errors import UsageError
from windrow.records import Json

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::([^}]*))?\}")


def expand(value: Json, *, where: str) -> Json:
    """`value` with every `${VAR}` and `${VAR:default}` in its strings replaced; a missing variable is an error."""

    def variable(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        found = os.environ.get(name, default)
        if found is None:
            raise UsageError(f"{where}: the environment variable {name} is not set")
        return found

    if isinstance(value, str):
        return _VARIABLE.sub(variable, value)
    if isinstance(value, dict):
        return {key: expand(item, where=f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, where=where) for item in value]
    return value
