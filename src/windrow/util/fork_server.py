"""The fork server: a process that has imported a module once, and forks a fresh, confined process for each call.

It is started by `forked_calls`, in an environment without secrets, and evaluates nothing that a caller sends: the child does.
It has one thread, so that a fork is a whole process. The module that it is told to import has

    prepare(argument: str) -> None     imports what is needed, and warms it up; called once, in the server
    warm(key: str) -> None             optional: makes something that several calls need; `key` is data, never code
    answer(question: bytes) -> bytes   called in a child, which can do nothing but compute (see `confinement`)

A call comes as a message on the control socket with two sockets. One is the child's: it reads questions there and writes
answers, each after its length. The other, the lease, is the server's: when the caller shuts it down, the child is killed;
when the child has ended, the server says how. A child ends with the server, and the server with the control socket or the
process that started it, whichever is first.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import selectors
import shutil
import signal
import socket
import struct
import sys
import tempfile
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from windrow.util.confinement import Confinement, confine, make_ready
from windrow.util.reaper import WatchedProcess, die_with_parent, libc

READY, FAILED = b"R", b"F"
CALL = struct.Struct("I60s")  # the limit of processor time in seconds, the key to warm
LENGTH = struct.Struct("!I")
END = struct.Struct("!id")  # the exit code (minus the signal's number), the processor time in seconds
NOT_CONFINED = 78
IDLE_S = 60.0  # without a call, the server ends; the next call starts another
_CHILD_SOCKET = 3
_PR_SET_PDEATHSIG = 1


class _Child(NamedTuple):
    lease: socket.socket
    scratch: str | None


class Server:
    def __init__(
        self, control: socket.socket, module: ModuleType, confinement: Confinement, parent: int
    ) -> None:
        self._control = control
        self._module = module
        self._confinement = confinement
        self._parent = WatchedProcess(parent)
        self._children: dict[int, _Child] = {}
        self._scratch = tempfile.mkdtemp(prefix="windrow-") if confinement.scratch else None
        self._selector = selectors.DefaultSelector()
        self._signals = self._wake_on_children()
        self._selector.register(control, selectors.EVENT_READ, self._take_call)
        self._selector.register(self._signals, selectors.EVENT_READ, self._reap)
        if self._parent.pidfd is not None:
            self._selector.register(self._parent.pidfd, selectors.EVENT_READ, self._stop)
        self._stopped = False

    def run(self) -> None:
        """Serve until the caller is gone, or has not called for a while."""
        try:
            while not self._stopped:
                events = self._selector.select(None if self._children else IDLE_S)
                if not events and not self._children:
                    return
                for key, _ in events:
                    key.data()
        finally:
            self._end()

    def _stop(self) -> None:
        self._stopped = True

    def _wake_on_children(self) -> int:
        readable, writable = os.pipe()
        os.set_blocking(readable, False)
        os.set_blocking(writable, False)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return readable

    def _take_call(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self._control, CALL.size, 2)
        if len(message) < CALL.size or len(descriptors) != 2:
            self._stop()
            return
        cpu_s, key = CALL.unpack(message)
        if key := key.rstrip(b"\0"):
            self._warm(key.decode(errors="replace"))
        questions, lease = descriptors
        scratch = tempfile.mkdtemp(dir=self._scratch) if self._scratch else None
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be_child(questions, server, cpu_s, scratch)
        os.close(questions)
        self._children[pid] = child = _Child(socket.socket(fileno=lease), scratch)
        self._selector.register(child.lease, selectors.EVENT_READ, lambda: self._kill(pid))

    def _warm(self, key: str) -> None:
        try:
            self._module.warm(key)
        except Exception:
            return  # the child meets the same problem, and says so
        gc.freeze()

    def _kill(self, pid: int) -> None:
        """Kill a child that nobody waits for any more. It has not been waited for: the number is still its own."""
        if (child := self._children.get(pid)) is not None:
            self._selector.unregister(child.lease)
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Tell the callers of the children that have ended how they have."""
        os.read(self._signals, 4096)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is not None:
                self._release(child, os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime)

    def _release(self, child: _Child, code: int, cpu_s: float) -> None:
        if child.lease in self._selector.get_map():
            self._selector.unregister(child.lease)
        try:
            child.lease.send(END.pack(code, cpu_s), socket.MSG_DONTWAIT)
        except OSError:
            pass  # nobody waits for it any more
        child.lease.close()
        if child.scratch is not None and os.fork() == 0:  # it may hold very many files, and others wait
            shutil.rmtree(child.scratch, ignore_errors=True)
            os._exit(0)

    def _be_child(self, questions: int, server: int, cpu_s: int, scratch: str | None) -> NoReturn:
        """Give up everything but the socket, then answer. Nothing that the server has open stays open here."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(questions, _CHILD_SOCKET)
            os.closerange(_CHILD_SOCKET + 1, os.sysconf("SC_OPEN_MAX"))
            die_with_parent(server)
            if scratch is not None:
                os.environ["TMPDIR"] = tempfile.tempdir = scratch
            confine(self._confinement, cpu_s, scratch)
        except BaseException:
            os._exit(NOT_CONFINED)
        try:
            gc.enable()
            answer_all(_CHILD_SOCKET, self._module.answer)
            os._exit(0)
        finally:
            os._exit(1)

    def _end(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def answer_all(descriptor: int, answer: Any) -> None:
    """Answer questions until there are no more, or none has come for a while."""
    while select.select([descriptor], [], [], IDLE_S)[0] and (question := receive(descriptor)):
        given = answer(question)
        send(descriptor, LENGTH.pack(len(given)) + given)


def receive(descriptor: int) -> bytes:
    """The next message; nothing at the end."""
    head = _read_exactly(descriptor, LENGTH.size)
    return _read_exactly(descriptor, LENGTH.unpack(head)[0]) if head else b""


def send(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _read_exactly(descriptor: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        part = os.read(descriptor, min(size, 2**20))
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def main(arguments: list[str]) -> None:
    """ARGUMENTS: the module, the control socket's number, the parent's process id. The rest comes by that socket, as JSON:
    the module's argument, which may hold secrets, the import path and the confinement.
    """
    name, descriptor, parent = arguments[0], int(arguments[1]), int(arguments[2])
    die_with_parent(parent)  # an import may take for ever
    control = socket.socket(fileno=descriptor)
    order = json.loads(receive(descriptor))
    control.set_inheritable(False)
    sys.dont_write_bytecode = True
    if order["path"] is not None:
        sys.path[:] = order["path"]
    confinement = Confinement(**order["confinement"])
    try:
        module = importlib.import_module(name)
        module.prepare(order["argument"])
        make_ready(confinement)
    except BaseException as problem:
        control.sendall(FAILED + f"{type(problem).__name__}: {problem}".encode(errors="replace")[:4000])
        return
    gc.collect()
    gc.freeze()  # what is there stays there: looking at it would copy it into every child
    gc.disable()
    if (
        sys.platform == "linux"
    ):  # the signal comes when the starting *thread* ends; from now on sockets tell of the process
        libc.prctl(_PR_SET_PDEATHSIG, 0)
    server = Server(control, module, confinement, parent)
    control.sendall(READY)
    server.run()


if __name__ == "__main__":
    main(sys.argv[1:])
