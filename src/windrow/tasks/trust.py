"""Rows are data: whatever a row names that would be imported, started, reached, read from the environment or opened is
a demand, and a demand is refused unless the user has allowed it.

The user allows it on the command line (`--trust-rows`) or in the configuration (`trust`): all demands of the call's rows, or
single ones by their names. A module that the command or the configuration names itself needs no further word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from windrow.config import LoadedConfig, RunConfig, TrustConfig, variables_in
from windrow.records import Json
from windrow.registry import declared

FLAG = "--trust-rows"
MAX_SHOWN_CHARS = 2_000  # of a name in a message
_LISTS = {"module": "modules", "command": "commands", "host": "hosts", "variable": "variables"}
_WOULD = {
    "module": "import the module",
    "command": "start the command",
    "host": "connect to the host",
    "variable": "read the environment variable",
    "file": "open the file",
}
_MODULE = re.compile(r"[^\W\d][\w.]*:[\w./-]+")
_FILE = re.compile(r".*(?:path|file|dir|directory)s?", re.I)
_PLAIN_WORD = re.compile(r"(?:[\w@%+=:,./-]|\$\{[\w@%+=:,./-]*\})+")
_AUTHORITY = re.compile(r"(?:https?://)?((?:\$\{[^}]*\}|[^/?#])*)")
_PORT = re.compile(r":[0-9]+$")
_HOST = re.compile(r"https?://((?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]+)?)(?:[/?#].*)?", re.I | re.S)


class Demand(msgspec.Struct, frozen=True):
    """Something beside data that a row names, and the field that names it. No list allows a `file`."""

    kind: Literal["module", "command", "host", "variable", "file"]
    name: str
    field: str

    def __str__(self) -> str:
        return f"{self.kind} {_shown(self.name)}"


class RowTrust(msgspec.Struct, frozen=True):
    """What the rows of a call may demand: nothing, unless the configuration says otherwise.

    `named` are names of the form `module:name` that the user has given outside the rows.
    """

    config: TrustConfig = TrustConfig()
    named: frozenset[str] = frozenset()

    def check(self, demands: Iterable[Demand]) -> None:
        """Raise ValueError at the first demand that is not allowed, with what to add to allow it."""
        for demand in demands:
            if self.allowed_by(demand) is None:
                raise ValueError(_refusal(demand))

    def allowed_by(self, demand: Demand) -> str | None:
        """What allows a demand, as the user spells it; None: nothing does."""
        if self.config.rows:
            return FLAG
        if demand.kind == "module" and demand.name in self.named:
            return "it is named outside the rows"
        if demand.kind == "file":
            return None
        listed: list[str] = getattr(self.config, _LISTS[demand.kind])
        fits = {"module": _module_is_listed, "host": _host_is_listed}.get(demand.kind)
        allowed = fits(demand.name, listed) if fits is not None else demand.name in listed
        return f"trust.{_LISTS[demand.kind]}" if allowed else None


def row_trust(loaded: LoadedConfig, agents: Iterable[str] = ()) -> RowTrust:
    """What the rows of this call may demand. `agents` are those that the configuration gives to rows."""
    return RowTrust(loaded.trust, frozenset([*_named(loaded.run), *agents]))


def module_demands(name: str, field: str) -> Iterator[Demand]:
    """The demand of a part that a row names: one, if the name is `module:name`. Other names are of installed parts."""
    if ":" in name:
        yield Demand("module", name, field)


def option_demands(options: Json, field: str) -> Iterator[Demand]:
    """The demands in options that a row gives to somebody else's constructor: files, and names like `module:name`."""
    if isinstance(options, str):
        if _FILE.fullmatch(field):
            yield Demand("file", options, field)
        elif _MODULE.fullmatch(options):
            yield Demand("module", options, field)
    elif isinstance(options, Mapping):
        for key, value in options.items():
            yield from option_demands(value, f"{field}.{key}")
    elif isinstance(options, list):
        for value in options:
            yield from option_demands(value, field)


def server_demands(server: Mapping[str, Json], field: str) -> Iterator[Demand]:
    """The demands of an MCP server that a row describes: its variables, and its command or its host, all unexpanded.

    The command is the whole line with what is set for it, since arguments and variables decide what a program runs.
    """
    for variable in sorted(variables_in(dict(server))):
        yield Demand("variable", variable, field)
    if server.get("command"):
        yield Demand("command", command_line(server), field)
    else:
        yield Demand("host", _host_of(str(server.get("url")), field), field)


def command_line(server: Mapping[str, Json]) -> str:
    """One line that no other command, arguments, variables and directory have."""
    variables = [f"{name}={value}" for name, value in sorted((server.get("env") or {}).items())]
    words = [*variables, server["command"], *(server.get("args") or ())]
    line = " ".join(map(_quoted, words))
    return f"cd {_quoted(server['cwd'])} && {line}" if server.get("cwd") else line


def _named(run: RunConfig) -> Iterator[str]:
    yield run.env.name
    yield run.agent.name
    # The address of a loader may name code, such as the module that registers a game: LOADER:MODULE:GAME?OPTIONS.
    for path in (run.tasks.path, *(dataset.path for dataset in run.datasets)):
        loader, _, address = (path or "").partition(":")
        if loader in declared("loaders"):
            yield address.partition("?")[0]


def _module_is_listed(name: str, listed: list[str]) -> bool:
    """An entry for a module covers what stands in it, but no path through it into what it has imported."""
    module, _, attribute = name.partition(":")
    if name in listed:
        return True
    if "." in attribute or ":" in attribute:
        return False
    packages = (entry.removesuffix(".*") for entry in listed if entry.endswith(".*"))
    return module in listed or any(f"{module}.".startswith(f"{package}.") for package in packages)


def _host_is_listed(name: str, listed: list[str]) -> bool:
    """An entry without a port covers all of them. One with a variable in it is compared as it is written."""
    if "${" in name:
        return name in listed
    hosts = {entry.lower() for entry in listed}
    return name in hosts or _PORT.sub("", name) in hosts


def _host_of(url: str, field: str) -> str:
    """`HOST` or `HOST:PORT` of an address, or as it is written where a variable stands in it.

    Nothing that two readers of addresses could read differently is let through.
    """
    authority = _AUTHORITY.match(url)
    assert authority is not None  # it matches the empty text
    if "${" in authority[1]:
        return authority[1]
    host = _HOST.fullmatch(url)
    if host is None:
        raise ValueError(
            f"{field}.url: expected the address of a streamable HTTP endpoint, http://HOST[:PORT]/… or https://…, found {url!r:.200}"
        )
    return host[1].lower()


def _refusal(demand: Demand) -> str:
    text = (
        f"{demand.field} would {_WOULD[demand.kind]} {_shown(demand.name)}, and rows are data: "
        f"add {FLAG} if you trust this source"
    )
    if demand.kind not in _LISTS:
        return text
    return f"{text}, or add to the configuration trust: {{{_LISTS[demand.kind]}: [{_shown(demand.name)}]}}"


def _shown(name: str) -> str:
    """A name in quotes, as YAML reads it."""
    text = msgspec.json.encode(name).decode()
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def _quoted(word: str) -> str:
    if _PLAIN_WORD.fullmatch(word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"
