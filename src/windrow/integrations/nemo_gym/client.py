"""The client of NeMo Gym's servers: it looks up their addresses and sends single requests.

The head server knows the others. A refused connection is retried, since nothing was sent. Any later problem is an
error, because the request may be under way at the server and cannot be withdrawn.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from windrow.config.yamltext import NotYaml, yaml_value
from windrow.errors import EndpointError, EnvError, InfraError, WindrowError
from windrow.policies.calls import pause_s
from windrow.policies.endpoint_failures import NotConnected
from windrow.policies.lazy_aiohttp import aiohttp
from windrow.records import Json
from windrow.util.byte_budget import REPLIES, HeldBytes, too_much

AGENTS = "responses_api_agents"
RESOURCES = "resources_servers"
HEAD_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_S = 20.0
MAX_ANSWER_BYTES = 512 << 20  # a long episode with the ids of every prompt
MAX_REFUSAL_BYTES = 1 << 20  # of which the beginning is shown
SHOWN_CHARS = 2_000
ANYWHERE = (None, "", "0.0.0.0", "::")  # where a server listens, not where it is
TRANSIENT_STATUSES = frozenset({408, 409, 429})
NOT_THERE = frozenset({401, 403, 404, 405})  # it may be another server, which is not the row's fault


class Server(msgspec.Struct, frozen=True):
    name: str
    kind: str
    url: str


class Servers:
    """The servers that a head server lists. The list is requested once, and again when a server has moved.

    The configuration in the head server's answer holds keys: it is read and never shown.
    """

    def __init__(self, head: str) -> None:
        self.head = head.rstrip("/")
        self._known: dict[str, Server] = {}
        self._config: dict[str, Any] | None = None
        self._asking = asyncio.Lock()
        self._asked = 0  # how often

    async def learn(self) -> None:
        """Request the list from the head server; raise EndpointError if the answer is no such list."""
        listed = await self._instances()
        config = None if listed else await self._configuration()
        self._known = {server.name: server for server in listed or configured_servers(config, self._host)}
        self._asked += 1

    async def again(self, asked: int) -> None:
        """Request the list once more, unless that happened since the count was `asked`."""
        async with self._asking:
            if self._asked == asked:
                try:
                    await self.learn()
                except EndpointError:
                    return  # what was known stays known

    @property
    def asked(self) -> int:
        return self._asked

    def knows(self, name: str) -> bool:
        """Return whether there is an agent of this name."""
        return name in self._known and self._known[name].kind == AGENTS

    def agent(self, name: str) -> Server:
        if not self.knows(name):
            names = ", ".join(sorted(n for n, s in self._known.items() if s.kind == AGENTS)) or "none"
            raise InfraError(f"{self.head} knows no agent {name!r} (it knows: {names})", kind="unknown_agent")
        return self._known[name]

    async def verifier(self, agent: str | None) -> Server:
        """Return the resources server that verifies an agent's episodes; the only one, if there is just one."""
        servers = {name: server for name, server in self._known.items() if server.kind == RESOURCES}
        if len(servers) == 1:
            return next(iter(servers.values()))
        if self._config is None:
            self._config = await self._configuration()
        of = _first(_first(self._config.get(agent or ""), AGENTS), None).get("resources_server")
        name = of.get("name") if isinstance(of, dict) else None
        if name not in servers:
            names = ", ".join(sorted(servers)) or "none"
            raise EndpointError(
                f"{self.head} does not say which resources server agent {agent!r} is verified by (it knows: {names}); "
                f"give its address as the setting 'url'"
            )
        return servers[name]

    @property
    def _host(self) -> str:
        return urlsplit(self.head).hostname or "127.0.0.1"

    async def _instances(self) -> list[Server]:
        """Return the answer of /server_instances; nothing if there is no such list."""
        status, body = await self._get("/server_instances")
        return listed_servers(decoded(body), self._host) if status == 200 else []

    async def _configuration(self) -> dict[str, Any]:
        """Return the servers' configuration: YAML in a JSON string."""
        status, body = await self._get("/global_config_dict_yaml")
        text = decoded(body) if status == 200 else None
        try:
            config = yaml_value(text) if isinstance(text, str) else None
        except NotYaml:
            config = None
        if not isinstance(config, dict):
            raise EndpointError(
                f"{self.head} answers neither /server_instances nor /global_config_dict_yaml as a head server of NeMo Gym "
                f"does (the last with status {status}). Is the address right?"
            )
        return config

    async def _get(self, path: str) -> tuple[int, bytes]:
        limit = aiohttp.ClientTimeout(total=HEAD_TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(timeout=limit) as session:
                async with session.get(self.head + path, allow_redirects=False) as response:
                    return response.status, await _whole(response)
        except TimeoutError:
            raise EndpointError(f"{self.head}{path} did not answer within {HEAD_TIMEOUT_S:g} s") from None
        except (aiohttp.ClientError, OSError, InfraError, ValueError) as problem:
            raise EndpointError(
                f"{self.head} cannot be reached: {problem}. Is the head server of NeMo Gym running there?"
            ) from None


class Caller:
    """Sends each request on a connection of its own, so that it is known whether anything was sent before a failure."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, url: str, body: Json) -> dict[str, Json]:
        """Return the object of a 200 answer. There is no deadline here: the caller has one."""
        answer = await self._asked("POST", url, msgspec.json.encode(body))
        content = decoded(answer)
        if not isinstance(content, dict):
            raise EnvError(
                f"{url} answered something that is not a JSON object: {_shown(answer)}", kind="bad_answer"
            )
        return content

    async def get(self, url: str) -> Json:
        return decoded(await self._asked("GET", url, None))

    async def _asked(self, method: str, url: str, data: bytes | None) -> bytes:
        assert self._session is not None, "open() comes first"
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method, url, data=data, headers=headers, allow_redirects=False
            ) as response:
                status, answer = response.status, await _whole(response)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as problem:
            raise NotConnected(f"{url} cannot be reached: {problem}", kind="not_connected") from None
        except (aiohttp.ClientError, OSError) as problem:
            what = str(problem) or type(problem).__name__
            raise InfraError(
                f"{url}: the connection broke before the answer: {what}", kind="transport"
            ) from None
        if status != 200:
            raise refusal(url, status, answer)
        return answer


async def connected(
    send: Callable[[], Awaitable[dict[str, Json]]],
    *,
    retries: int,
    backoff_s: float,
    refused: Callable[[], Awaitable[None]],
) -> dict[str, Json]:
    """Return the result of `send`, retried while the connection is refused; `refused` is awaited before each retry."""
    tries = 0
    while True:
        try:
            return await send()
        except NotConnected:
            if tries >= retries:
                raise
            await asyncio.sleep(pause_s(tries, backoff_s, None))
            tries += 1
            await refused()


def refusal(url: str, status: int, body: bytes) -> WindrowError:
    """Return the error for a status: 422 rejects the row, and is final for it."""
    text = f"{url} answered {status}: {_shown(body)}"
    if status >= 500 or status in TRANSIENT_STATUSES:
        return InfraError(text, kind=f"http_{status}")
    return EnvError(text, kind=f"http_{status}", retryable=status < 400 or status in NOT_THERE)


def listed_servers(listing: Json, host: str) -> list[Server]:
    """Return the servers in an answer of /server_instances; `host` is the head server's."""
    entries = [entry for entry in listing if isinstance(entry, dict)] if isinstance(listing, list) else []
    servers = (_instance(entry, host) for entry in entries)
    return [server for server in servers if server is not None]


def _instance(entry: dict[str, Any], host: str) -> Server | None:
    name, kind, url = (entry.get(key) for key in ("process_name", "server_type", "url"))
    try:
        where = urlsplit(url).hostname if isinstance(url, str) else None
    except ValueError:  # no address at all
        where = None
    if where in ANYWHERE:
        url = _url(entry.get("host"), entry.get("port"), host)
    if not isinstance(name, str) or not isinstance(kind, str) or url is None:
        return None
    return Server(name, kind, url.rstrip("/"))


def configured_servers(config: Json, host: str) -> list[Server]:
    """Return the servers of a configuration: config[name][kind][implementation] has a host and a port."""
    servers: list[Server] = []
    for name, section in config.items() if isinstance(config, dict) else ():
        kind = next(iter(section), None) if isinstance(section, dict) else None
        own = _first(_first(section, None), None)
        url = _url(own.get("host"), own.get("port"), host)
        if isinstance(kind, str) and url is not None:
            servers.append(Server(str(name), kind, url))
    return servers


def _first(section: Any, key: str | None) -> dict[str, Any]:
    """Return the value under `key`, or else the first value."""
    if not isinstance(section, dict):
        return {}
    value = section.get(key) if key is not None else next(iter(section.values()), None)
    return value if isinstance(value, dict) else {}


def _url(host: Any, port: Any, head: str) -> str | None:
    if not isinstance(port, int | str) or not str(port).isdecimal():
        return None
    return f"http://{head if host in ANYWHERE else host}:{port}"


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    body, held = bytearray(), HeldBytes(REPLIES)
    async for part in response.content.iter_any():
        body += part
        if response.status != 200 and len(body) > MAX_REFUSAL_BYTES:
            response.close()
            break
        if len(body) > MAX_ANSWER_BYTES:
            response.close()
            raise InfraError(
                f"{response.url} answered with more than {MAX_ANSWER_BYTES >> 20} MiB", kind="too_long"
            )
        if not held.cover(len(body)):
            response.close()
            raise InfraError(f"{response.url}: an answer was dropped: {too_much()}", kind="replies_too_large")
    return bytes(body)


def decoded(body: bytes) -> Json:
    """Return the JSON value of a body, including NaN and lone surrogates, which are checked later; None if it is not
    JSON.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return None


def _shown(body: bytes) -> str:
    text = body.decode(errors="replace").strip() or "(nothing)"
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
