"""The way out of one browser context: a SOCKS5 server that connects to admitted addresses only."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import cast

from windrow.envs.web.failures import AddressRefused, Unreachable
from windrow.envs.web.network_policy import Guard, refusal

CONNECT_S = 20.0
KEPT = 20  # refusals that are remembered


class SocksProxy:
    """The way out of one context: a SOCKS5 server on a port of its own. `refused` says what was turned away."""

    def __init__(self, guard: Guard, *, max_bytes: int) -> None:
        self.guard = guard
        self.refused: list[AddressRefused] = []
        self.refusals = 0
        self.unreached: Unreachable | None = None  # the last one
        self.bytes = 0
        self._max_bytes = max_bytes
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Transport] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    async def start(self) -> dict[str, str]:
        """Open it, and return Playwright's proxy option. What `allow` names as a host goes out directly."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Client(self), "127.0.0.1", 0, backlog=256)
        port = self._server.sockets[0].getsockname()[1]
        # Chromium would leave out its own machine; Playwright says so too, unless a variable keeps it from that.
        bypass = ",".join(("<-loopback>", *self.guard.hosts))
        return {"server": f"socks5://127.0.0.1:{port}", "bypass": bypass}

    @property
    def spent(self) -> bool:
        """Whether it was closed because too much came in."""
        return self.bytes > self._max_bytes

    def forget(self) -> None:
        """Count from nothing: for another lease."""
        self.refused, self.refusals, self.unreached, self.bytes = [], 0, None, 0

    def close(self) -> None:
        """Nothing goes out any more."""
        if self._server is not None:
            self._server.close()
        for task in self._connecting:
            task.cancel()
        for transport in tuple(self._open):
            transport.abort()

    def refuse(self, problem: AddressRefused) -> None:
        self.refusals += 1
        self.refused[KEPT - 1 :] = ()
        self.refused.append(problem)

    def count(self, size: int) -> None:
        """Bytes that came in. Over the limit, everything is closed, and stays so."""
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
        named = self.guard.names(host, port)
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        each = dict.fromkeys(str(where[0]) for *_, where in found)
        addresses = [
            one for one in each if named or self.guard.admits(ipaddress.ip_address(one.partition("%")[0]))
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


class _Side(asyncio.Protocol):
    """One end of a connection that is passed on: it reads no faster than the other end writes."""

    def __init__(self, gate: SocksProxy) -> None:
        self.gate = gate
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.gate.opened(self.transport)

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
            self.gate.closed(self.transport)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _Upstream(_Side):
    def __init__(self, gate: SocksProxy, client: _Client) -> None:
        super().__init__(gate)
        self.other = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()  # until the browser knows that it is connected

    def data_received(self, data: bytes) -> None:
        self.gate.count(len(data))
        assert self.other is not None
        self.other.write(data)


class _Client(_Side):
    """The browser's end: a greeting, one wish, and then bytes."""

    def __init__(self, gate: SocksProxy) -> None:
        super().__init__(gate)
        self._said = bytearray()
        self._greeted = False
        self._asked = False

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)
            return
        self._said += data
        if len(self._said) > 600:
            self._hang_up()
        elif not self._greeted:
            self._greet()
        if self._greeted and not self._asked:
            self._ask()

    def answer(self, code: int) -> None:
        """How the wish went; anything but _DONE is the end of it."""
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
        if len(self._said) < 2 or len(self._said) < 2 + self._said[1]:
            return
        methods = self._said[2 : 2 + self._said[1]]
        if self._said[0] != _VERSION or _NO_LOGIN not in methods:
            self._hang_up()
            return
        del self._said[: 2 + self._said[1]]
        self._greeted = True
        self.write(bytes((_VERSION, _NO_LOGIN)))

    def _ask(self) -> None:
        wish = _read_wish(bytes(self._said))
        if wish is None:
            return
        self._asked = True
        if isinstance(wish, int):
            self.answer(wish)
        else:
            self.gate.connect(self, *wish)

    def _hang_up(self) -> None:
        if self.transport is not None:
            self.transport.close()


def _read_wish(said: bytes) -> tuple[str, int] | int | None:
    """Host and port; an error's code; None while there is more to come."""
    if len(said) < 5:
        return None
    if said[0] != _VERSION or said[1] != _CONNECT:
        return _NOT_SUPPORTED
    size = {_IPV4: 4, _NAME: 1 + said[4], _IPV6: 16}.get(said[3])
    if size is None:
        return _NOT_SUPPORTED
    if len(said) < 4 + size + 2:
        return None
    where, port = said[4 : 4 + size], int.from_bytes(said[4 + size : 6 + size], "big")
    if said[3] == _NAME:
        return where[1:].decode("ascii", "replace").strip("[]"), port
    return str(ipaddress.ip_address(where)), port
