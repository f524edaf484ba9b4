"""`${VAR}` and `${service.NAME.url}` in a value: expanded when the value is used, never written to a file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from urllib.parse import urlsplit

from windrow.errors import UsageError
from windrow.records import Json
from windrow.util.spelling import nearest

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::([^}]*))?\}")
_SERVICE = re.compile(r"\$\{service\.([^}]*)\}")
_PARTS = ("url", "host", "port")

# The addresses of services, by name.
_addresses: ContextVar[Mapping[str, str] | None] = ContextVar("addresses", default=None)


@contextmanager
def services_at(addresses: Mapping[str, str]) -> Iterator[None]:
    """Inside, `${service.NAME.url}` stands for the address of that name, and `.host` and `.port` for its parts."""
    before = _addresses.set(addresses)
    try:
        yield
    finally:
        _addresses.reset(before)


def services_in(value: Json) -> set[str]:
    """The names of the services that a value speaks of."""
    if isinstance(value, str):
        return {reference.partition(".")[0] for reference in _SERVICE.findall(value)}
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return {name for part in parts for name in services_in(part)}


def variables_in(value: Json) -> set[str]:
    """The names of the environment variables that a value speaks of."""
    if isinstance(value, str):
        return {reference[0] for reference in _VARIABLE.findall(value)}
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return {name for part in parts for name in variables_in(part)}


def expand(value: Json, *, where: str) -> Json:
    """`value` with every `${VAR}`, `${VAR:default}` and `${service.NAME.url}` in its strings replaced.

    A variable or a service that there is not is an error.
    """

    def variable(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        text = os.environ.get(name, default)
        if text is None:
            raise UsageError(f"{where}: the environment variable {name} is not set")
        return text

    if isinstance(value, str):
        return _VARIABLE.sub(variable, _SERVICE.sub(lambda match: _address(match.group(1), where), value))
    if isinstance(value, dict):
        return {key: expand(item, where=f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, where=where) for item in value]
    return value


def _address(text: str, where: str) -> str:
    """What `NAME.PART` of a service is."""
    name, _, part = text.partition(".")
    if part not in _PARTS:
        raise UsageError(
            f"{where}: ${{service.{text}}}: expected ${{service.NAME.url}}, or .host or .port instead of .url"
        )
    addresses = _addresses.get() or {}
    if name not in addresses:
        raise UsageError(
            f"{where}: no address of a service {name!r} is known here{nearest(name, addresses)} (`services:` names those that `windrow "
            f"collect` starts; --set services.{name}.url=URL says where one runs)"
        )
    parts = urlsplit(addresses[name])
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"url": addresses[name], "host": str(parts.hostname), "port": str(port)}[part]
