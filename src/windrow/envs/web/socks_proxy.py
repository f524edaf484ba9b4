"""The network access of one browser context: a SOCKS5 server that connects to admitted addresses only."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import cast

from windrow.envs.web.failures import AddressRefused, Unreachable
from windrow.envs.web.network_policy import NetworkPolicy, refusal

CONNECT_S = 20.0
MAX_REFUSED = 20  # refusals that are remembered


class SocksProxy:
    """A SOCKS5 server for one context, on a port of its own. `refused` has the refused addresses."""

    def __init__(self, network_policy: NetworkPolicy, *, max_bytes: int) -> None:
        self.network_policy = network_policy
        self.refused: list[AddressRefused] = []
        self.refusals = 0
        self.unreached: Unreachable | None = None  # the last one
        self.bytes = 0
        self._max_bytes = max_bytes
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Transport] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    async def start(self) -> dict[str, str]:
        """Open it, and return Playwright's proxy option. Hosts that `allow` names are reached directly."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Client(self), "127.0.0.1", 0, backlog=256)
        port = self._server.sockets[0].getsockname()[1]
        # By default, Chromium and Playwright do not use a proxy for the loopback interface.
        bypass = ",".join(("<-loopback>", *self.network_policy.hosts))
        return {"server": f"socks5://127.0.0.1:{port}", "bypass": bypass}

    @property
    def spent(self) -> bool:
        """Whether it was closed because the pages loaded too much."""
        return self.bytes > self._max_bytes

    def forget(self) -> None:
        """Reset the counts, for another lease."""
        self.refused, self.refusals, self.unreached, self.bytes = [], 0, None, 0

    def close(self) -> None:
        """Close the server and every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._connecting:
            task.cancel()
        for transport in tuple(self._open):
            transport.abort()

    def refuse(self, problem: AddressRefused) -> None:
        self.refusals += 1
        self.refused[MAX_REFUSED - 1 :] = ()
        self.refused.append(problem)

    def count(self, size: int) -> None:
        """Count received bytes. Above the limit, the proxy is closed for good."""
        self.bytes += size
        if self.bytes > self._max_bytes:
            self.refuse(
                AddressRefused(f"the pages loaded more than {self._max_bytes >> 20} MB (max_traffic_mb)")
            )
            self.close()

    def opened(self, transport: asyncio.Transport) -> None:
        self._open.add(transport)

    def closed(self, transport: asyncio.Transport) -> None:
        self._open.discard(transport)

    def connect(self, client: _Client, host: str, port: int) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(client, host, port))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: _Client, host: str, port: int) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                upstream = await self._reach(client, host, port)
        except AddressRefused as problem:
            self.refuse(problem)
            client.answer(_NOT_ALLOWED)
        except OSError as problem:  # a TimeoutError is one
            why = problem.strerror or "no answer"
            unknown = isinstance(problem, socket.gaierror) and problem.errno == socket.EAI_NONAME
            kind = "no_such_host" if unknown else None
            self.unreached = Unreachable(f"{host}:{port} cannot be reached: {why}", kind=kind)
            client.answer(_UNREACHABLE)
        else:
            client.join(upstream)

    async def _reach(self, client: _Client, host: str, port: int) -> _Upstream:
        """A connection to the first of the host's addresses that is admitted and answers."""
        loop = asyncio.get_running_loop()
        named = self.network_policy.names(host, port)
        resolved = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        candidates = dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in resolved)
        addresses = [
            address_text
            for address_text in candidates
            if named or self.network_policy.admits(ipaddress.ip_address(address_text.partition("%")[0]))
        ]
        if not addresses:
            raise refusal(host, port)
        problem: OSError = OSError(f"{host} has no address")
        for address in addresses:
            try:
                _, upstream = await loop.create_connection(lambda: _Upstream(self, client), address, port)
            except OSError as why:
                problem = why
            else:
                return upstream
        raise problem


_VERSION, _NO_LOGIN, _CONNECT = 5, 0, 1
_DONE, _NOT_ALLOWED, _UNREACHABLE, _NOT_SUPPORTED = 0, 2, 4, 7
_IPV4, _NAME, _IPV6 = 1, 3, 4


class _Connection(asyncio.Protocol):
    """One side of a proxied connection. It reads no faster than the other side writes."""

    def __init__(self, proxy: SocksProxy) -> None:
        self.proxy = proxy
        self.transport: asyncio.Transport | None = None
        self.other: _Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.proxy.opened(self.transport)

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def eof_received(self) -> bool:
        other = self.other.transport if self.other is not None else None
        if other is not None and other.can_write_eof() and not other.is_closing():
            other.write_eof()
            return True
        return False

    def connection_lost(self, problem: Exception | None) -> None:
        if self.transport is not None:
            self.proxy.closed(self.transport)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _Upstream(_Connection):
    def __init__(self, proxy: SocksProxy, client: _Client) -> None:
        super().__init__(proxy)
        self.other = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()  # until the browser has been answered

    def data_received(self, data: bytes) -> None:
        self.proxy.count(len(data))
        assert self.other is not None
        self.other.write(data)


class _Client(_Connection):
    """The browser's side: a greeting, one request, and then data."""

    def __init__(self, proxy: SocksProxy) -> None:
        super().__init__(proxy)
        self._received = bytearray()
        self._greeted = False
        self._asked = False

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)
            return
        self._received += data
        if len(self._received) > 600:
            self._hang_up()
        elif not self._greeted:
            self._greet()
        if self._greeted and not self._asked:
            self._ask()

    def answer(self, code: int) -> None:
        """Answer the request; every code but _DONE ends the connection."""
        self.write(bytes((_VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0)))
        if code != _DONE:
            self._hang_up()

    def join(self, upstream: _Upstream) -> None:
        if self.transport is None or self.transport.is_closing():
            if upstream.transport is not None:
                upstream.transport.abort()
            return
        self.other = upstream
        self.answer(_DONE)
        assert upstream.transport is not None
        upstream.transport.resume_reading()

    def _greet(self) -> None:
        if len(self._received) < 2 or len(self._received) < 2 + self._received[1]:
            return
        methods = self._received[2 : 2 + self._received[1]]
        if self._received[0] != _VERSION or _NO_LOGIN not in methods:
            self._hang_up()
            return
        del self._received[: 2 + self._received[1]]
        self._greeted = True
        self.write(bytes((_VERSION, _NO_LOGIN)))

    def _ask(self) -> None:
        request = _read_request(bytes(self._received))
        if request is None:
            return
        self._asked = True
        if isinstance(request, int):
            self.answer(request)
        else:
            self.proxy.connect(self, *request)

    def _hang_up(self) -> None:
        if self.transport is not None:
            self.transport.close()


def _read_request(received: bytes) -> tuple[str, int] | int | None:
    """Host and port, or an error code; None while the request is incomplete."""
    if len(received) < 5:
        return None
    if received[0] != _VERSION or received[1] != _CONNECT:
        return _NOT_SUPPORTED
    size = {_IPV4: 4, _NAME: 1 + received[4], _IPV6: 16}.get(received[3])
    if size is None:
        return _NOT_SUPPORTED
    if len(received) < 4 + size + 2:
        return None
    where, port = received[4 : 4 + size], int.from_bytes(received[4 + size : 6 + size], "big")
    if received[3] == _NAME:
        return where[1:].decode("ascii", "replace").strip("[]"), port
    return str(ipaddress.ip_address(where)), port
