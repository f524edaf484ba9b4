"""Verdicts from separate processes, for code that may take forever or use all memory on a model's reply.

A question goes in as one line of JSON, and a verdict comes out as one. Such code may hang inside one call into C,
which no timer of ours could stop. So each process limits its own processor time and memory, and the caller sees it
end. A thread waits for each process; a caller that stops waiting kills its process.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from windrow.errors import ScorerError
from windrow.util.threads import in_thread


class Processes:
    """Up to `at_once` processes of one module, as many as have questions at the same time; idle ones stay ready."""

    def __init__(self, module: str, *, who: str, at_once: int, environment: Mapping[str, str] | None = None):
        self._command = [sys.executable, "-P", "-m", module]
        self._who = who
        self._at_once = at_once
        self._environment = environment
        self._idle: list[_Process] = []
        self._gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        os.register_at_fork(after_in_child=self._idle.clear)  # a fork would read the other's verdicts
        atexit.register(self._end)

    async def ask(self, question: Mapping[str, Any]) -> bytes | None:
        """Return the verdict as a line; None if the question took more processor time than the process allows."""
        loop = asyncio.get_running_loop()
        async with self._gates.get(loop) or self._gates.setdefault(loop, asyncio.Semaphore(self._at_once)):
            while True:
                used = bool(self._idle)
                process = self._idle.pop() if used else self._new()
                try:
                    verdict = await in_thread(process.ask, question)
                    break
                except _Ended:
                    if not used:  # an older one may have been spoilt by what it was asked before
                        raise
                except BaseException:  # a time limit, a cancellation: its verdict is of no use to anyone
                    process.kill()
                    raise
            if process.alive:
                self._idle.append(process)
        return verdict

    def _new(self) -> _Process:
        return _Process(self._command, self._who, self._environment)

    def _end(self) -> None:
        for process in self._idle:
            process.kill()


class _Ended(ScorerError):
    """The process ended without a verdict."""


class _Process:
    """One process, started with its first question. It ends with its parent, when it is killed, or at its limit."""

    def __init__(self, command: list[str], who: str, environment: Mapping[str, str] | None) -> None:
        self._command = command
        self._who = who
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._lock = threading.Lock()

    def ask(self, question: Mapping[str, Any]) -> bytes | None:
        """Return the verdict, or None if the question exceeded the processor time; the process is gone then."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(question) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if line.endswith(b"\n"):
            return line
        code = process.wait()
        if code == -signal.SIGXCPU:
            return None
        raise _Ended(f"{self._who}: its process ended with {code}")

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._killed:
                raise ScorerError(f"{self._who}: nobody waits for this verdict")
            if self._process is None:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=None if self._environment is None else dict(self._environment),
                    start_new_session=True,  # a Ctrl-C is ours to handle: what is being graded is finished
                )
            return self._process
