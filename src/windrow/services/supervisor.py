"""The process between a run and a service that was started for it: when either is gone, so is the rest.

Run by path in a bare interpreter, so the standard library is all there is. Standard input has one line of JSON that
says what to start; its end, or SIGTERM (which the kernel sends when the run is killed), says that it is over. Standard
output says how it goes: `started PID`, or `failed WHY`; then `exited CODE`, once the service itself has ended.

It adopts whatever the service leaves behind, also what has left its process group. All of it is asked to end, and
killed when its time is up; then this process ends too.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINUX = sys.platform == "linux"
AGAIN_S = 0.05  # between two kills, of what was started meanwhile
READ_BYTES = 1 << 16
READS = 16  # more than a pipe holds
MASK = b"[redacted]"

libc = ctypes.CDLL(None, use_errno=True)


class Supervisor:
    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._secrets = [secret.encode() for secret in order["secrets"]]
        self._line = b""
        self._deadline: float | None = None
        self._childless = False
        self._process: subprocess.Popen[bytes] | None = None
        self._output = -1

    def run(self) -> None:
        """Start the service, and return when nothing of it is left."""
        woken = self._wake_on_signals()
        try:
            self._start()
        except (OSError, subprocess.SubprocessError) as problem:
            say(f"failed {problem}")
            return
        assert self._process is not None
        say(f"started {self._process.pid}")
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ, self._hear)
            selector.register(woken, selectors.EVENT_READ, lambda: self._signalled(woken))
            selector.register(self._output, selectors.EVENT_READ, self._copy)
            self._reap()
            while not self._childless:
                wait = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
                for key, _ in selector.select(wait):
                    if not key.data():
                        selector.unregister(key.fileobj)
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    self._send(signal.SIGKILL)
                    self._deadline = time.monotonic() + AGAIN_S
        self._send(signal.SIGKILL)  # where nothing is adopted, the rest of its group
        self._copy()
        self._write(self._line)

    def _start(self) -> None:
        me = os.getpid()

        def prepare() -> None:
            if LINUX:
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != me:
                    os._exit(1)

        self._process = subprocess.Popen(
            self._order["command"],
            cwd=self._order["cwd"],
            env={**os.environ, **self._order["environment"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=prepare,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)

    def _wake_on_signals(self) -> int:
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        return woken

    def _hear(self) -> bool:
        """The run has something to say: that it is over."""
        if os.read(0, READ_BYTES):
            return True
        self._stop()
        return False

    def _signalled(self, woken: int) -> bool:
        numbers = os.read(woken, READ_BYTES)
        if signal.SIGTERM in numbers:
            self._stop()
        self._reap()
        return True

    def _reap(self) -> None:
        assert self._process is not None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            if pid == self._process.pid:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self._copy()
                say(f"exited {self._process.returncode}")
                self._stop()

    def _stop(self) -> None:
        """Ask everything to end, and give it its time."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._order["stop_timeout_s"]
            self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        for pid in descendants() if LINUX else []:
            signalled(os.kill, pid, number)
        signalled(os.killpg, self._process.pid, number)

    def _copy(self) -> bool:
        """Take what the service has written to its log, by lines, without its secrets; a bounded part of it at a time, so
        that a flood keeps nobody from ending it."""
        for _ in range(READS):
            try:
                chunk = os.read(self._output, READ_BYTES)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            whole, newline, self._line = (self._line + chunk).rpartition(b"\n")
            self._write(whole + newline)
            if len(self._line) > READ_BYTES:
                self._write(self._line)
                self._line = b""
        return True

    def _write(self, text: bytes) -> None:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        try:
            while text:
                text = text[os.write(self._log, text) :]
        except OSError:
            pass  # a full disk stops the run, not its services: what they say is lost


def descendants() -> list[int]:
    """Every process below this one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:  # it has just ended
                continue
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    left = [os.getpid()]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def signalled(send: Any, whom: int, number: signal.Signals) -> None:
    try:
        send(whom, number)
    except (ProcessLookupError, PermissionError):
        pass


def say(text: str) -> None:
    try:
        os.write(1, text.replace("\n", " ").encode(errors="replace") + b"\n")
    except OSError:
        pass  # nobody is there any more to be told


def main() -> None:
    said = sys.stdin.buffer.readline()
    if not said:  # the run has given up already
        return
    order = json.loads(said)
    if LINUX:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() == order["parent"]:  # else it died before that was asked for
        Supervisor(order).run()


if __name__ == "__main__":
    main()
