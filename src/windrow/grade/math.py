"""The scorer `math`: is the reply's final expression mathematically equal to the answer? (math-verify, extra `math`)

The last \\boxed{…} counts, else the last LaTeX or plain expression. `math.format` says whether there was one that
could be compared. A comparison that takes more than `cpu_s` seconds of processor time could not: it counts as neither
equal nor well formed. That is processor time, so a busy machine changes no verdict.

It runs in processes of its own (see `math_worker`), each asked from a thread; whoever stops waiting kills its process.
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
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from windrow.engine.threads import in_thread
from windrow.errors import ScorerError
from windrow.grade.answers import Judged, answers_of
from windrow.naming import extra_needed
from windrow.records import Json

AT_ONCE = os.cpu_count() or 1
CPU_S = 5


class _Verdict(msgspec.Struct, frozen=True):
    correct: bool = False
    formed: bool = False
    error: str | None = None


class _Worker:
    """One process, started when it is first asked. It ends with us, or when it is killed, or at its limit."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._lock = threading.Lock()

    def ask(self, question: Mapping[str, Any]) -> _Verdict | None:
        """Its verdict, or None when the question exceeded the processor time; then the worker is gone."""
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
            return msgspec.json.decode(line, type=_Verdict)
        code = process.wait()
        if code == -signal.SIGXCPU:
            return None
        raise ScorerError(f"scorer 'math': its process ended with {code}")

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
                raise ScorerError("scorer 'math': nobody waits for this verdict")
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "windrow.grade.math_worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # a Ctrl-C is ours to handle: what is being graded is finished
                )
            return self._process


_idle: list[_Worker] = []
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_idle.clear)  # a fork would read the other's verdicts


@atexit.register
def _end_idle() -> None:
    for worker in _idle:
        worker.kill()


def check_installed() -> None:
    if find_spec("math_verify") is None:
        raise extra_needed("math", "scorer 'math'")


async def math_judge(reply: str, answer: Json, settings: Mapping[str, Json]) -> Judged:
    loop = asyncio.get_running_loop()
    question = {"reply": reply, "answers": answers_of(answer), "cpu_s": int(settings.get("cpu_s", CPU_S))}
    async with _gates.get(loop) or _gates.setdefault(loop, asyncio.Semaphore(AT_ONCE)):
        worker = _idle.pop() if _idle else _Worker()
        try:
            verdict = await in_thread(worker.ask, question)
        except BaseException:  # a time limit, a cancellation: its verdict is of no use to anyone
            worker.kill()
            raise
        if worker.alive:
            _idle.append(worker)
    if verdict is None:
        return False, False
    if verdict.error is not None:
        raise ScorerError(f"scorer 'math': {verdict.error}", retryable=False)
    return verdict.correct, verdict.formed
