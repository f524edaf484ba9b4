"""`${VAR}` and `${service.NAME.url}` in a value: expanded when the value is used, never written to a file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from urllib.parse import urlsplit

from windrow.errors import UsageError
from windrow.records import Json
from windrow.util.redaction import is_secret, remember_expanded
from windrow.util.spelling import nearest

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::([^}]*))?\}")
_SERVICE = re.compile(r"\$\{service\.([^}]*)\}")
_PARTS = ("url", "host", "port")
# Fields that name a thing, as records do: a variable in one is no secret unless it is named like one.
_NAMING = {"agent", "cwd", "log", "model", "name", "out", "path", "prompt", "source", "split"}

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
        return {reference[1].partition(".")[0] for reference in _references(_SERVICE, value)}
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return {name for part in parts for name in services_in(part)}


def variables_in(value: Json) -> set[str]:
    """The names of the environment variables that a value speaks of."""
    if isinstance(value, str):
        return {reference[1] for reference in _references(_VARIABLE, value)}
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return {name for part in parts for name in variables_in(part)}


def _references(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """What the text refers to. Nothing is looked for after the last brace: each `${A:` there would be read to the end."""
    return pattern.finditer(text, 0, text.rfind("}") + 1)


def expand(value: Json, *, where: str) -> Json:
    """`value` with every `${VAR}`, `${VAR:default}` and `${service.NAME.url}` in its strings replaced.

    A variable or a service that there is not is an error. What a variable gives is kept out of all that is written or
    shown from then on (`remember_expanded`); a default, which stands in the configuration, is not.
    """

    def variable(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        text = os.environ.get(name)
        if text is not None and (is_secret(name) or where.rpartition(".")[2] not in _NAMING):
            remember_expanded(name, text)
        if text is None and default is None:
            raise UsageError(f"{where}: the environment variable {name} is not set")
        return default if text is None else text

    if isinstance(value, str):
        text = _replaced(_SERVICE, lambda match: _address(match[1], where), value)
        return _replaced(_VARIABLE, variable, text)
    if isinstance(value, dict):
        return {key: expand(item, where=f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, where=where) for item in value]
    return value


def _replaced(pattern: re.Pattern[str], replacement: Callable[[re.Match[str]], str], text: str) -> str:
    parts, end = [], 0
    for match in _references(pattern, text):
        parts += [text[end : match.start()], replacement(match)]
        end = match.end()
    return "".join(parts) + text[end:]


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
