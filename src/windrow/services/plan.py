"""The plan of a run's services: from `services:` to addresses, commands, environments and health URLs.

Nothing is started here, so that mistakes are refused before anything runs. An address is volatile: it is in no fingerprint
and no id, since values that contain it are fingerprinted as they are written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from windrow.config import RunConfig, ServiceConfig, expand, nearest, services_at, services_in
from windrow.errors import UsageError
from windrow.services.ports import HOST, Port, free_port
from windrow.util.redaction import Redactor, is_secret

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_PORT = re.compile(r"\$\{PORT\}|\{port\}")


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """One service. Without a command, it runs already. With no `health`, it is up once its port takes connections."""

    name: str
    url: str
    health: str | None
    needs: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    cwd: str | None = None
    environment: dict[str, str] = {}
    ready_timeout_s: float
    stop_timeout_s: float
    log: Path | None
    held: Port | None = None  # the port that was chosen for it, until the run is over

    def release(self) -> None:
        if self.held is not None:
            self.held.release()


def addresses(services: Iterable[Service]) -> dict[str, str]:
    return {service.name: service.url for service in services}


def given_addresses(run: RunConfig) -> dict[str, str]:
    """The addresses of services that are written in the configuration, for commands that start none."""
    urls = {name: _configured_url(name, config) for name, config in run.services.items()}
    return {name: url for name, url in urls.items() if url is not None}


def plan_services(run: RunConfig, redactor: Redactor) -> tuple[Service, ...]:
    """The run's services, each after those that it needs. The redactor learns the secrets in their environments."""
    order = _order(run.services)
    held: dict[str, Port] = {}
    urls: dict[str, str] = {}
    for name in order:
        config = run.services[name]
        url = _configured_url(name, config)
        if url is None and not run.serve:
            raise UsageError(
                f"services.{name}: --no-serve starts none, so say where it runs: --set services.{name}.url=http://HOST:PORT"
            )
        if config.url is None and not config.command:
            raise UsageError(f"services.{name}: give a `command` that starts it, or the `url` where it runs")
        if url is None:
            held[name] = free_port()
            url = f"http://{HOST}:{held[name].number}"
        urls[name] = url
    _check_ports(urls)
    with services_at(urls):
        return tuple(
            _service(name, run.services[name], urls[name], held.get(name), redactor, serve=run.serve)
            for name in order
        )


def _configured_url(name: str, config: ServiceConfig) -> str | None:
    """The address that is written in the configuration, if one is."""
    if config.url is not None:
        where = f"services.{name}.url"
        url = expand(config.url, where=where).rstrip("/")
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise UsageError(f"{where}: expected a URL such as http://127.0.0.1:8000, found {url!r}")
        return str(url)
    return None if config.port == "auto" else f"http://{HOST}:{config.port}"


def _service(
    name: str, config: ServiceConfig, url: str, held: Port | None, redactor: Redactor, *, serve: bool
) -> Service:
    where = f"services.{name}"
    port = str(urlsplit(url).port or "")

    def expanded(value: str, key: str) -> str:
        return str(expand(_PORT.sub(port, value), where=f"{where}.{key}"))

    health = None if config.health is None else expanded(config.health, "health")
    if health is not None and not health.startswith(("http://", "https://")):
        health = f"{url}/{health.lstrip('/')}"
    running = config.url is not None or not serve
    environment = {key: expanded(value, f"env.{key}") for key, value in config.env.items()}
    for key, value in environment.items():
        if is_secret(key):
            redactor.add(value)
    return Service(
        name=name,
        url=url,
        health=health,
        needs=tuple(sorted(_needs(config))),
        command=() if running else tuple(expanded(part, "command") for part in _command(where, config)),
        cwd=None if config.cwd is None else expanded(config.cwd, "cwd"),
        environment={"PORT": port, **environment},
        ready_timeout_s=config.ready_timeout_s,
        stop_timeout_s=config.stop_timeout_s,
        log=None if config.log is None else Path(expanded(config.log, "log")),
        held=held,
    )


def _command(where: str, config: ServiceConfig) -> list[str]:
    """The words of the command. Variables are expanded later, so that each value stays one word."""
    if isinstance(config.command, list):
        return config.command
    try:
        return shlex.split(config.command)
    except ValueError as problem:
        raise UsageError(f"{where}.command: not a command: {problem}") from None


def _needs(config: ServiceConfig) -> set[str]:
    """The services that it names in `needs`, and those whose address it uses."""
    command = config.command if isinstance(config.command, list) else [config.command]
    return {*config.needs, *services_in([*command, *config.env.values()])}


def _order(services: Mapping[str, ServiceConfig]) -> list[str]:
    """The names, each after those that it needs."""
    for name, config in services.items():
        if not _NAME.fullmatch(name):
            raise UsageError(f"services: {name!r} is not a name: letters, digits, - and _")
        for needed in _needs(config) - services.keys():
            raise UsageError(
                f"services.{name}: it needs {needed!r}, which is no service{nearest(needed, services)}"
            )
    try:
        return list(
            TopologicalSorter({name: _needs(config) for name, config in services.items()}).static_order()
        )
    except CycleError as problem:
        raise UsageError(
            f"services: they need each other in a circle: {' → '.join(problem.args[1])}"
        ) from None


def _check_ports(urls: Mapping[str, str]) -> None:
    names_by_url: dict[str, str] = {}
    for name, url in urls.items():
        if url in names_by_url:
            raise UsageError(
                f"services {names_by_url[url]!r} and {name!r} would both be at {url}; leave out a `port`"
            )
        names_by_url[url] = name
