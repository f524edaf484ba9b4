"""Processes that end with the process they belong to, together with everything that they have started.

This module needs only the standard library and nothing of Windrow. It is used in two ways:

- imported: `die_with_parent` and `descendants` are plain functions;
- as a script in a bare interpreter, which starts in some 30 ms: `python -I -S reaper.py PROGRAM ARGUMENT…` (see
  `bare_command`) runs a program that stands between a process and a command that it wants to have run. The program can
  import this module by its full name, and nothing else of Windrow. It leaves its work to a `Reaper`.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

# `typing` is not imported for its types: that would take a third of the start-up time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINUX = sys.platform == "linux"
POLL_S = 1.0  # between two looks at processes whose end the kernel does not report
KILL_AGAIN_S = 0.05  # between two kills: processes may have been started meanwhile
READ_BYTES = 1024

libc = ctypes.CDLL(None, use_errno=True)


def bare_command(program: str, *arguments: str) -> list[str]:
    """The command that runs `program`, a Python file that uses this module, in a bare interpreter."""
    return [sys.executable, "-I", "-S", __file__, program, *arguments]


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process the signal `number` when its parent ends; exit if it has ended already.

    Kernels other than Linux do not offer this: there, only the check is made.
    """
    if LINUX:
        libc.prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the signal was asked for
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    if LINUX:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants(root: int) -> list[int]:
    """Every process below the process `root`, from /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:  # it has just ended
                continue
            children.setdefault(parent, []).append(int(name))
    below: list[int] = []
    unvisited = [root]
    while unvisited:
        nearest = children.get(unvisited.pop(), [])
        below += nearest
        unvisited += nearest
    return below


class WatchedProcess:
    """A process that is not a child of this one. Its end is seen even if its number is then given to another process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd: int | None = None  # readable once the process has ended
        self.ended = not is_alive(pid)
        if hasattr(os, "pidfd_open") and not self.ended:
            try:
                self.pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                self.ended = True
            except OSError:
                pass  # this kernel has none

    def poll(self) -> bool:
        """Whether it has ended, as far as is known: with a pidfd, `ended` is set by whoever waits for that."""
        if self.pidfd is None:
            self.ended = self.ended or not is_alive(self.pid)
        return self.ended

    def kill(self) -> None:
        if self.pidfd is not None:
            _send(signal.pidfd_send_signal, self.pidfd, signal.SIGKILL)
        elif is_alive(self.pid):
            _send(os.kill, self.pid, signal.SIGKILL)


class Reaper:
    """Runs one command until nothing is left of it or of anything that it has started.

    Processes that the command leaves behind are adopted, including those that have left its process group. The command's own
    end, a signal in `stop_signals`, the end of a process in `stop_with` and a call of `stop` have the same effect: all that is
    left is asked to end, and killed `grace_s` later. Without a grace it is killed at once.
    """

    def __init__(
        self,
        *,
        stop_signals: tuple[int, ...],
        stop_with: tuple[WatchedProcess, ...] = (),
        grace_s: float = 0.0,
        on_exit: Callable[[int], None] = lambda code: None,
    ) -> None:
        """`on_exit` is called with the command's exit code (minus the signal's number, if one ended it)."""
        self._stop_signals = stop_signals
        self._stop_with = stop_with
        self._grace_s = grace_s
        self._on_exit = on_exit
        self._kill_at: float | None = None  # set once everything has been asked to end
        self._own_end: int | None = None  # the command's exit code, if it ended before it was asked to
        self._childless = False
        self._selector = selectors.DefaultSelector()
        self._signals = self._wake_on_signals()
        self.watch(self._signals, self._take_signals)
        for process in stop_with:
            if process.pidfd is not None:
                self.watch(process.pidfd, partial(self._owner_ended, process))
        adopt_orphans()

    def watch(self, descriptor: int, on_readable: Callable[[], bool]) -> None:
        """Call `on_readable` whenever `descriptor` is readable, until it returns False."""
        self._selector.register(descriptor, selectors.EVENT_READ, on_readable)

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start the command, which the kernel kills if this process is killed. `options` are those of `Popen`."""
        parent = os.getpid()
        self._group = bool(options.get("start_new_session"))
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            command, preexec_fn=lambda: die_with_parent(parent), **options
        )
        return self._process

    def run(self) -> int | None:
        """Return when nothing is left: the command's exit code, or None if it was ended from here."""
        self._reap()
        while not self._childless:
            if any(process.poll() for process in self._stop_with):
                self.stop()
            for key, _ in self._selector.select(self._wait_s()):
                if not key.data():
                    self._selector.unregister(key.fileobj)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._send_all(signal.SIGKILL)
                self._kill_at = time.monotonic() + KILL_AGAIN_S
        self._send_all(signal.SIGKILL)  # where nothing is adopted: the rest of its group
        return self._own_end

    def stop(self) -> bool:
        """Ask everything to end, and have it killed when its grace is over. Always False, as a callback that is done."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace_s
            if self._grace_s > 0:
                self._send_all(signal.SIGTERM)
        return False

    def _wake_on_signals(self) -> int:
        readable, writable = os.pipe()
        os.set_blocking(readable, False)
        os.set_blocking(writable, False)
        signal.set_wakeup_fd(writable)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        return readable

    def _wait_s(self) -> float | None:
        polled = any(process.pidfd is None for process in self._stop_with)
        if self._kill_at is None:
            return POLL_S if polled else None
        return max(0.0, self._kill_at - time.monotonic())

    def _take_signals(self) -> bool:
        if set(os.read(self._signals, READ_BYTES)).intersection(self._stop_signals):
            self.stop()
        self._reap()
        return True

    def _owner_ended(self, process: WatchedProcess) -> bool:
        process.ended = True
        return self.stop()

    def _reap(self) -> None:
        """Take the exit codes of all children that have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            if pid == self._process.pid:
                self._process.returncode = code = os.waitstatus_to_exitcode(status)
                if self._kill_at is None:
                    self._own_end = code
                self._on_exit(code)
                self.stop()

    def _send_all(self, number: int) -> None:
        for pid in descendants(os.getpid()) if LINUX else []:
            _send(os.kill, pid, number)
        if self._group:
            _send(os.killpg, self._process.pid, number)
        elif self._process.returncode is None:
            _send(os.kill, self._process.pid, number)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _send(send: Callable[[int, int], None], target: int, number: int) -> None:
    try:
        send(target, number)
    except (ProcessLookupError, PermissionError):
        pass


def _run_program(path: str) -> None:
    """Run the Python file at `path` as the main program. It finds this module as `windrow.util.reaper`.

    Importing that by way of its package would import Windrow, which takes longer than all the rest.
    """
    sys.modules["windrow.util.reaper"] = sys.modules["__main__"]
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, {"__name__": "__main__", "__file__": path})


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    _run_program(sys.argv[0])
