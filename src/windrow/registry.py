"""Finding things by name: built in, brought by an integration, by import path (`my_pkg.my_env:MyEnv`), or by entry point.

One spelling for environments, agents, policies, scorers and loaders. The current directory is importable.

An integration is what Windrow brings for one other system. It declares by name what it has, as `module:attribute`, and
nothing of it is imported before it is named. The bundled ones come from `add_source`; those of other packages are
found by their entry points in the group `windrow.integrations`.
"""

# `import windrow` imports this module: whatever is not needed for that is imported in the functions below. Annotations
# are no texts here, since a NamedTuple would compile each of them.
import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from windrow.errors import UsageError

GROUP = "windrow.integrations"

Targets = Mapping[str, str]  # `module:attribute` by name
_NOTHING: Targets = {}


class Integration(NamedTuple):
    """What there is for one other system. A declared value is `module:attribute`, imported when it is first used.

    By the name that a user gives (`--env NAME`, `windrow export --to NAME`, …), unless said otherwise.
    """

    name: str
    envs: Targets = _NOTHING  # classes derived from windrow.Env or windrow.Match
    agents: Targets = _NOTHING  # classes derived from windrow.Agent
    scorers: Targets = _NOTHING
    loaders: Targets = _NOTHING  # functions that open the tasks of a path `NAME:…`
    page_rewards: Targets = _NOTHING
    exporters: Targets = _NOTHING  # classes derived from windrow.Exporter
    importers: Targets = _NOTHING  # functions that open the files of `windrow import --from NAME`
    reports: Targets = _NOTHING  # functions for `windrow stats --as NAME`
    aggregates: Targets = _NOTHING  # async functions for `windrow stats --aggregate NAME:URL`
    row_formats: Targets = _NOTHING  # by a field that such a row has: a RowFormat
    rubrics: Targets = _NOTHING  # by a row's field: a function that makes a Rubric of its value
    conversation_fields: tuple[str, ...] = ()  # fields that judged environments take for `messages`
    env_addresses: Targets = _NOTHING  # functions: the settings that `--env NAME:ADDRESS` means
    agent_addresses: Targets = _NOTHING  # functions: the settings that `--agent NAME:ADDRESS` means
    scorer_addresses: Targets = _NOTHING  # functions: the settings that `--scorer NAME:ADDRESS` means
    agent_envs: Targets = _NOTHING  # by agent: the one environment that it plays in
    config_formats: Targets = (
        _NOTHING  # functions (mapping, path): our settings, or None for a file not of theirs
    )
    extras: Mapping[str, tuple[str, ...]] = {}  # by extra: the distributions that it installs


_sources: list[Callable[[], Iterable[Integration]]] = []


def add_source(source: Callable[[], Iterable[Integration]]) -> None:
    """Have `source` asked for its integrations when the registry is first asked for any."""
    _sources.append(source)
    integrations.cache_clear()
    declared.cache_clear()


@functools.cache
def integrations() -> tuple[Integration, ...]:
    """All integrations: those of the sources in their order, then those of installed packages."""
    bundled = [integration for source in _sources for integration in source()]
    return (*bundled, *_installed())


@functools.cache
def declared(what: str) -> Mapping[str, Any]:
    """All that integrations declare in their field `what`. Where two declare the same name, the first has it."""
    merged: dict[str, Any] = {}
    for integration in integrations():
        for name, value in getattr(integration, what).items():
            merged.setdefault(name, value)
    return merged


def load_declared(kind: str, name: str) -> Any:
    """The object that integrations declare under `name`, of a kind such as "env" or "importer"; UsageError if none does."""
    names = declared(f"{kind}s")
    if name not in names:
        raise _unknown(kind, name, sorted(names))
    return load(kind, names[name])


def resolve(kind: str, name: str, built_in: Mapping[str, Any]) -> Any:
    """The object called `name` of a `kind` ("env", "scorer", …). A text in `built_in` is `module:attribute`."""
    if name in built_in:
        known = built_in[name]
        return load(kind, known) if isinstance(known, str) else known
    by_integrations = declared(f"{kind}s") if f"{kind}s" in Integration._fields else {}
    if name in by_integrations:
        return load(kind, by_integrations[name])
    if ":" in name:
        return load(kind, name)
    from importlib.metadata import entry_points  # only when needed: it reads every installed package

    plugins = {point.name: point for point in entry_points(group=f"windrow.{kind}s")}
    if name in plugins:
        return plugins[name].load()
    names = sorted({*built_in, *by_integrations, *plugins})
    raise _unknown(kind, name, names, "; your own is written module:name")


def is_import_path(name: str) -> bool:
    """Whether `name` is the `module:name` of code, and not the name of something that is built in or installed."""
    return ":" in name


def name_of(thing: Any) -> str:
    """How `thing` is spelled in a record: its built-in name, or `module:name`."""
    target = thing if hasattr(thing, "__qualname__") else type(thing)
    if target.__module__.startswith("windrow."):
        return str(target.name)
    return f"{target.__module__}:{target.__qualname__}"


def cache_home() -> "Path":
    """The directory for whatever can be fetched or computed again: $WINDROW_CACHE, else the user's cache."""
    from pathlib import Path

    directory = os.environ.get("WINDROW_CACHE")
    if directory:
        return Path(directory)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windrow"


def import_extra(module: str, *, extra: str, what: str) -> Any:
    """A module that an extra installs; `what` needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        missing = isinstance(problem, ModuleNotFoundError) and (problem.name or "") in module
        raise extra_needed(extra, what, "" if missing else f" ({problem})") from problem


def extra_needed(extra: str, what: str, why: str = "") -> "UsageError":
    from windrow.errors import UsageError

    return UsageError(f"{what} needs the extra {extra!r}{why}; type: pip install 'windrow-rl[{extra}]'")


def make_here_importable() -> None:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


def load(kind: str, target: str) -> Any:
    """The object at `module:attribute`. UsageError names the `kind` that it was to be."""
    from windrow.errors import UsageError
    from windrow.util.spelling import nearest

    module_name, _, attribute = target.partition(":")
    make_here_importable()
    try:
        loaded: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as problem:
        raise UsageError(f"{kind} {target!r}: cannot import {module_name!r}: {problem}") from problem
    except Exception as problem:
        raise UsageError(
            f"{kind} {target!r}: importing {module_name!r} raised {type(problem).__name__}: {problem}"
        ) from problem
    for part in attribute.split("."):
        try:
            loaded = getattr(loaded, part)
        except AttributeError:
            hint = nearest(part, [name for name in dir(loaded) if not name.startswith("_")])
            raise UsageError(f"{kind} {target!r}: {module_name!r} has no {part!r}{hint}") from None
    return loaded


def _unknown(kind: str, name: str, names: list[str], hint: str = "") -> "UsageError":
    from windrow.errors import UsageError
    from windrow.util.spelling import nearest

    return UsageError(f"unknown {kind} {name!r}{nearest(name, names)} (known: {', '.join(names)}{hint})")


def _installed() -> Iterator[Integration]:
    """The integrations of installed packages, by name. UsageError if one cannot be loaded."""
    if not _some_package_declares(f"[{GROUP}]".encode()):
        return
    from importlib.metadata import entry_points

    from windrow.errors import UsageError

    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        try:
            integration = point.load()
        except Exception as problem:
            raise UsageError(
                f"the installed integration {point.name!r} ({point.value}) cannot be loaded: "
                f"{type(problem).__name__}: {problem}"
            ) from problem
        if not isinstance(integration, Integration):
            raise UsageError(
                f"the installed integration {point.name!r} ({point.value}) is not a windrow.registry.Integration"
            )
        yield integration


def _some_package_declares(header: bytes) -> bool:
    """Whether the entry points of any installed package have this header.

    Every run asks this. To import importlib.metadata and let it parse all entry points takes ten times as long.
    """
    for directory in sys.path:
        try:
            with os.scandir(directory or ".") as entries:
                paths = [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
        except OSError:  # no directory: a missing one, or an archive
            if os.path.isfile(directory):
                return True
            continue
        for path in paths:
            try:
                with open(f"{path}/entry_points.txt", "rb") as file:
                    if header in file.read():
                        return True
            except OSError:
                continue  # it declares none
    return False
