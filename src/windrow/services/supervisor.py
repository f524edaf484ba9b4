"""The program between a run and a service that was started for it: when either ends, everything of the service ends.

It runs in a bare interpreter (see `windrow.util.reaper`). Its standard input has one line of JSON that says what to start.
The end of that input means that the run is over, and so does SIGTERM, which the kernel sends when the run is killed. Its
standard output has one line for each change: `started PID` or `failed WHY`; then `exited CODE`, once the service itself
has ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from windrow.util.reaper import Reaper, die_with_parent

TYPE_CHECKING = False  # see `windrow.util.reaper`
if TYPE_CHECKING:
    from typing import Any

READ_BYTES = 1 << 16
READS = 16  # in one go: more than a pipe holds
MASK = b"[redacted]"


class ServiceLog:
    """The log of a service. Its output is written there line by line, without the run's secrets."""

    def __init__(self, path: str, secrets: list[str]) -> None:
        self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._secrets = [secret.encode() for secret in secrets]
        self._partial_line = b""
        self._output = -1

    def follow(self, output: int) -> None:
        os.set_blocking(output, False)
        self._output = output

    def copy(self) -> bool:
        """Copy what the service has written by now; False at the end of its output.

        Only a bounded part is copied in one go, so that a service can be ended while it floods its output.
        """
        for _ in range(READS):
            try:
                chunk = os.read(self._output, READ_BYTES)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            lines, newline, self._partial_line = (self._partial_line + chunk).rpartition(b"\n")
            self._write(lines + newline)
            if len(self._partial_line) > READ_BYTES:
                self._flush()
        return True

    def finish(self) -> None:
        """Copy the rest, including a last line without an end."""
        self.copy()
        self._flush()

    def _flush(self) -> None:
        self._write(self._partial_line)
        self._partial_line = b""

    def _write(self, text: bytes) -> None:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        try:
            while text:
                text = text[os.write(self._log, text) :]
        except OSError:
            pass  # a full disk stops the run, not its services: their output is lost


def supervise(order: dict[str, Any], log: ServiceLog) -> None:
    """Start the service, and return when nothing of it is left."""

    def on_exit(code: int) -> None:
        log.copy()
        report(f"exited {code}")

    reaper = Reaper(stop_signals=(signal.SIGTERM,), grace_s=order["stop_timeout_s"], on_exit=on_exit)
    try:
        process = reaper.start(
            order["command"],
            cwd=order["cwd"],
            env={**os.environ, **order["environment"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError) as problem:
        report(f"failed {problem}")
        return
    assert process.stdout is not None
    log.follow(process.stdout.fileno())
    report(f"started {process.pid}")
    reaper.watch(0, lambda: bool(os.read(0, READ_BYTES)) or reaper.stop())
    reaper.watch(process.stdout.fileno(), log.copy)
    reaper.run()
    log.finish()


def report(text: str) -> None:
    try:
        os.write(1, text.replace("\n", " ").encode(errors="replace") + b"\n")
    except OSError:
        pass  # the run is gone


def main() -> None:
    line = sys.stdin.buffer.readline()
    if not line:  # the run has given up already
        return
    order = json.loads(line)
    die_with_parent(order["parent"], signal.SIGTERM)
    supervise(order, ServiceLog(order["log"], order["secrets"]))


if __name__ == "__main__":
    main()
