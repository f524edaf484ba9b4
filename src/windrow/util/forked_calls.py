"""Calls into a fork server: each in a process of its own, fresh and confined (see `fork_server`).

The server is started with the first call and shared by all event loops of this process. It ends when this process does,
however that happens, and when nobody has called for a while.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from types import TracebackType

from windrow.util.confinement import Confinement
from windrow.util.deadlines import clock_stopped
from windrow.util.fork_server import CALL, END, FAILED, LENGTH, NOT_CONFINED, READY
from windrow.util.threads import in_thread

START_S = 120.0  # to import a module
STOP_S = 5.0
MAX_ANSWER_BYTES = 4 * 2**20
_READ_BYTES = 2**16
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "MPLCONFIGDIR")
_FIXED = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}


class CallFailed(Exception):
    """The process gave no answer. `out_of_time`: it used more processor time than it had."""

    def __init__(self, reason: str, *, out_of_time: bool = False) -> None:
        super().__init__(reason)
        self.out_of_time = out_of_time


class _ServerGone(CallFailed):
    """The server ended meanwhile: nothing is known of the call."""

    def __init__(self, server: _Server) -> None:
        super().__init__("its server has ended")
        self.server = server


def plain_environment() -> dict[str, str]:
    """What Python needs of this process's environment, and no keys. The hash seed is fixed: it affects results."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(("PYTHON", "LC_", "LD_"))
    }
    return {**kept, **_FIXED}


class ForkServer:
    """Answers of `module`, whose `prepare` is given `argument`. With `path`, that is the server's import path."""

    def __init__(
        self,
        module: str,
        *,
        argument: str = "",
        path: list[str] | None = None,
        confinement: Confinement | None = None,
    ) -> None:
        self._module = module
        self._order = {
            "argument": argument,
            "path": path,
            "confinement": (confinement or Confinement())._asdict(),
        }
        self._lock = threading.Lock()
        self._server: _Server | None = None
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.stop)

    async def ask(self, question: bytes, *, cpu_s: int, warm: str = "") -> bytes:
        """Return the answer of a fresh process. CallFailed says why there is none."""
        try:
            return await self._ask_once(question, cpu_s, warm)
        except _ServerGone as gone:
            await in_thread(self._see_off, gone.server)
            return await self._ask_once(question, cpu_s, warm)

    async def _ask_once(self, question: bytes, cpu_s: int, warm: str) -> bytes:
        async with await self.child(cpu_s=cpu_s, warm=warm) as child:
            return await child.ask_last(question)

    async def child(self, *, cpu_s: int, warm: str = "") -> Child:
        """Fork a process. Whoever has it closes it, which kills it."""
        server = self._server
        if server is None or server.process.poll() is not None:
            with clock_stopped():
                server = await in_thread(self._started)
        ours, questions = socket.socketpair()
        lease, servers_end = socket.socketpair()
        with questions, servers_end:
            try:
                call = CALL.pack(cpu_s, _key(warm))
                socket.send_fds(server.control, [call], [questions.fileno(), servers_end.fileno()])
            except OSError:
                ours.close()
                lease.close()
                raise _ServerGone(server) from None
        return Child(server, ours, lease, cpu_s)

    def stop(self) -> None:
        """End the server and every process that it has forked."""
        with self._lock:
            if self._server is not None:
                self._server.stop()
                self._server = None

    def _started(self) -> _Server:
        """Return a server that is ready. CallFailed if there can be none."""
        with self._lock:
            if self._server is not None and self._server.process.poll() is None:
                return self._server
            if self._server is not None:
                self._server.stop()
            self._server = None
            self._server = server = _Server(self._module, json.dumps(self._order).encode())
            return server

    def _see_off(self, server: _Server) -> None:
        """See the end of a server, unless another has taken its place already."""
        with self._lock:
            if self._server is server:
                server.stop()
                self._server = None

    def _forget(self) -> None:
        """In a fork of this process: the server is the other's."""
        self._lock = threading.Lock()
        if self._server is not None:
            self._server.control.close()
            self._server = None


class _Server:
    """The process of a fork server, and the socket that calls go through."""

    def __init__(self, module: str, order: bytes) -> None:
        """Return when it is ready. CallFailed says why it cannot be."""
        self.control, theirs = socket.socketpair()
        with theirs:
            arguments = [module, str(theirs.fileno()), str(os.getpid())]
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "windrow.util.fork_server", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=plain_environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C is ours to handle: what is being graded is finished
            )
        said = self._said(LENGTH.pack(len(order)) + order)
        if said != READY:
            self.process.kill()
            self.stop()
            raise CallFailed(
                f"its process could not start: {said[1:].decode(errors='replace') or 'it ended'}"
            )

    def _said(self, order: bytes) -> bytes:
        self.control.settimeout(START_S)
        try:
            self.control.sendall(order)
            return self.control.recv(2**13)
        except TimeoutError:
            return FAILED + f"it was not ready after {START_S:g} s".encode()
        except (BrokenPipeError, ConnectionResetError):
            return b""
        finally:
            self.control.settimeout(None)

    def stop(self) -> None:
        """See its end. It ends by itself, once it has killed its children."""
        self.control.close()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Child:
    """A forked process. Closing it kills it."""

    def __init__(self, server: _Server, socket_: socket.socket, lease: socket.socket, cpu_s: int) -> None:
        self._server = server
        self._socket = socket_
        self._lease = lease
        self._cpu_s = cpu_s
        socket_.setblocking(False)
        lease.setblocking(False)

    async def __aenter__(self) -> Child:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        try:
            self._lease.shutdown(socket.SHUT_RDWR)  # also where a fork of this process has the descriptor
        except OSError:
            pass  # the server has closed its end
        self._lease.close()
        self._socket.close()

    async def ask_last(self, question: bytes) -> bytes:
        """Ask the only question. The process ends with its answer; one that writes anything else has given none."""
        await self._put(question, last=True)
        answer = await self._received(MAX_ANSWER_BYTES + LENGTH.size)
        if len(answer) > MAX_ANSWER_BYTES:
            raise CallFailed(f"its process wrote more than {MAX_ANSWER_BYTES:,} bytes")
        if len(answer) < LENGTH.size:
            raise await self._failure()
        [size] = LENGTH.unpack(answer[: LENGTH.size])
        if size != len(answer) - LENGTH.size:
            raise CallFailed("its process wrote something else than one answer")
        return answer[LENGTH.size :]

    async def ask(self, question: bytes) -> bytes:
        """Ask one of several questions."""
        await self._put(question, last=False)
        head = await self._received(LENGTH.size)
        if len(head) < LENGTH.size:
            raise await self._failure()
        [size] = LENGTH.unpack(head)
        if size > MAX_ANSWER_BYTES:
            raise CallFailed(f"its process wrote more than {MAX_ANSWER_BYTES:,} bytes")
        answer = await self._received(size)
        if len(answer) < size:
            raise await self._failure()
        return answer

    async def _put(self, question: bytes, *, last: bool) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._socket, LENGTH.pack(len(question)) + question)
            if last:
                self._socket.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # what is read next says why

    async def _received(self, most: int) -> bytes:
        """Return what comes until the end, or until it is as long as this."""
        loop = asyncio.get_running_loop()
        received = bytearray()
        try:
            while len(received) < most:
                part = await loop.sock_recv(self._socket, min(_READ_BYTES, most - len(received)))
                if not part:
                    break
                received += part
        except ConnectionResetError:
            pass  # it ended with part of the question unread
        return bytes(received)

    async def _failure(self) -> CallFailed:
        """Say why the process has ended without an answer, as the server says it."""
        said = b""
        loop = asyncio.get_running_loop()
        try:
            said = await loop.sock_recv(self._lease, END.size)
        except ConnectionResetError:
            pass
        if len(said) < END.size:
            return _ServerGone(self._server)
        code, used_s = END.unpack(said)
        if code in (-signal.SIGXCPU, -signal.SIGPROF) or (code < 0 and used_s >= self._cpu_s):
            return CallFailed(f"it took more than {self._cpu_s} s of processor time", out_of_time=True)
        if code == NOT_CONFINED:
            return CallFailed(
                "its process could not be confined; `windrow doctor` says what this system offers"
            )
        return CallFailed(f"its process ended with {code} and gave no answer")


def _key(warm: str) -> bytes:
    key = warm.encode(errors="replace")
    return key if len(key) <= CALL.size - 4 else b""
