"""Addresses of tasks from another package: `PACKAGE:NAME`, with parameters as in a URL, `?size=50&seed=7`.

A value is read as in `--set`: `7`, `0.5`, `false`, `[1, 2]`; any other value is text.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import parse_qsl

import msgspec

from windrow.config import nearest
from windrow.config.yamltext import NotYaml, yaml_value
from windrow.errors import UsageError
from windrow.records import Json


class Address(msgspec.Struct, frozen=True):
    package: str
    name: str
    parameters: dict[str, Json]

    def __str__(self) -> str:
        return f"{self.package}:{self.name}"

    def source(self, *, without: Collection[str]) -> str:
        """Return the name of the data set, which does not depend on the order and spelling of its parameters or on
        its size.
        """
        shown = [
            f"{key}={_text(value)}" for key, value in sorted(self.parameters.items()) if key not in without
        ]
        return str(self) + ("?" + "&".join(shown) if shown else "")

    def refuse_unknown(self, allowed: Collection[str], *, of: str = "") -> None:
        for key in self.parameters:
            if key not in allowed:
                raise UsageError(
                    f"{of or self} has no parameter {key!r}{nearest(key, allowed)} (known: {', '.join(allowed)})"
                )

    def whole(self, key: str, default: int, *, least: int) -> int:
        value = self.parameters.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"{self}: {key} must be a whole number from {least} on, found {_text(value)}")
        return value


def parse_address(path: str) -> Address:
    package, _, rest = path.partition(":")
    name, mark, query = rest.partition("?")
    if not name:
        raise UsageError(f"{path}: expected {package}:NAME or {package}:NAME?PARAMETER=VALUE&…")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(mark))
    except ValueError:
        raise UsageError(f"{path}: after '?' come parameters, such as ?seed=7&size=50") from None
    parameters: dict[str, Json] = {}
    for key, text in pairs:
        if key in parameters:
            raise UsageError(f"{path}: {key} is given twice")
        parameters[key] = _value(text)
    return Address(package, name, parameters)


def _value(text: str) -> Json:
    try:
        value = yaml_value(text)
        msgspec.json.encode(value)
    except (NotYaml, TypeError):
        return text
    return value if isinstance(value, str | int | float | list | dict) or text == "null" else text


def _text(value: Json) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
