"""The process between Playwright's driver and one Chromium: when the collector is gone, so is the browser.

Run by path in a bare interpreter, so the standard library is all there is:
    reaper.py OWNER FOLDER CHROMIUM ARGUMENT…
OWNER is the collector's process id; FOLDER is the browser's own, where its process id is left in `pid`. Chromium has the
driver's pipes (3 and 4). Whatever ends (the collector, the driver, Chromium itself, by whatever signal), all that came
of Chromium is killed, its profile and FOLDER are removed, and a driver that survives its collector is killed too.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINUX = sys.platform == "linux"
LOOK_S = 1.0  # between two looks at who is alive, where the kernel does not tell
PIPES = (3, 4)
PROFILE = "--user-data-dir="


class Watched:
    """Another process, told apart from a later one with its number; readable (in a selector) once it has ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fd: int | None = None
        self.gone = not alive(pid)
        if hasattr(os, "pidfd_open") and not self.gone:
            try:
                self.fd = os.pidfd_open(pid)
            except ProcessLookupError:
                self.gone = True
            except OSError:
                pass  # a kernel without them

    def look(self) -> bool:
        """Whether it has ended."""
        if self.fd is None:
            self.gone = self.gone or not alive(self.pid)
        return self.gone

    def ended(self) -> None:
        self.gone = True

    def kill(self) -> None:
        if self.fd is not None:
            quietly(signal.pidfd_send_signal, self.fd, signal.SIGKILL)
        elif alive(self.pid):
            quietly(os.kill, self.pid, signal.SIGKILL)


def main(owner: Watched, folder: str, command: list[str]) -> int:
    """Run Chromium to its end, or to the end of who wanted it."""
    driver = Watched(os.getppid())
    asked = wake_on_signals()
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    chromium = start(command)
    note(folder, chromium.pid)
    code, told = None, False
    with selectors.DefaultSelector() as selector:
        selector.register(asked, selectors.EVENT_READ)
        for watched in (owner, driver):
            if watched.fd is not None:
                selector.register(watched.fd, selectors.EVENT_READ, watched.ended)
        while code is None and not (told or owner.look() or driver.look()):
            for key, _ in selector.select(LOOK_S if None in (owner.fd, driver.fd) else None):
                if key.data:
                    key.data()
                elif set(os.read(asked, 1024)) - {signal.SIGCHLD}:
                    told = True  # somebody wants it to end
            code = reap(chromium.pid)
    end_all(chromium.pid)
    for left in (folder, *profiles(command)):
        shutil.rmtree(left, ignore_errors=True)
    if owner.gone and os.getppid() == driver.pid:
        driver.kill()  # it would wait for this process, and has nobody to talk to
    return code or 0


def start(command: list[str]) -> subprocess.Popen[bytes]:
    me = os.getpid()

    def prepare() -> None:
        if LINUX:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != me:
                os._exit(1)

    chromium = subprocess.Popen(command, pass_fds=PIPES, preexec_fn=prepare)
    for pipe in PIPES:  # or Chromium would not be told that the driver has closed its end
        os.close(pipe)
    return chromium


def reap(pid: int) -> int | None:
    """Take what has ended; the exit code of `pid` when it was among it."""
    code = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if ended == 0:
            return code
        if ended == pid:
            code = abs(os.waitstatus_to_exitcode(status))


def end_all(pid: int) -> None:
    """Return when nothing is left of Chromium."""
    while True:
        for below in descendants() if LINUX else [pid]:
            quietly(os.kill, below, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def profiles(command: list[str]) -> list[str]:
    """The temporary profile that the driver made for this start."""
    named = [word.removeprefix(PROFILE) for word in command if word.startswith(PROFILE)]
    own = os.path.join(os.path.realpath(tempfile.gettempdir()), "playwright_")
    return [path for path in named if os.path.realpath(path).startswith(own)]


def note(folder: str, pid: int) -> None:
    path = os.path.join(folder, "pid")
    with open(path + ".new", "w") as file:
        file.write(str(pid))
    os.replace(path + ".new", path)


def descendants() -> list[int]:
    """Every process below this one."""
    return below(os.getpid())


def below(root: int) -> list[int]:
    """Every process below `root`, from /proc."""
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
    left = [root]
    while left:
        next_ones = children.get(left.pop(), [])
        found += next_ones
        left += next_ones
    return found


def wake_on_signals() -> int:
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return woken


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def quietly(send: object, whom: int, number: signal.Signals) -> None:
    try:
        send(whom, number)  # type: ignore[operator]
    except (ProcessLookupError, PermissionError):
        pass


if __name__ == "__main__":
    sys.exit(main(Watched(int(sys.argv[1])), sys.argv[2], sys.argv[3:]))
