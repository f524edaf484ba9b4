"""One service, seen from the run: its supervisor, its health, its end, and the last lines of its log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import msgspec

from windrow.errors import ServiceError
from windrow.policies.lazy_aiohttp import aiohttp
from windrow.services.plan import Service
from windrow.services.ports import is_free
from windrow.util.disk import Disk, opener_in
from windrow.util.reaper import bare_command
from windrow.util.redaction import Redactor

SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))  # a program for a bare interpreter
ASK_AGAIN_S = 0.1
ANSWER_S = 5.0  # for one health check
LEAVE_S = 5.0  # for a supervisor, after its service's stop_timeout_s
TAIL_LINES = 20
TAIL_BYTES = 16_384


class ServiceProcess:
    """A service, started here or running already. `log` is where its output goes."""

    def __init__(self, service: Service, log: Path, redactor: Redactor) -> None:
        self.service = service
        self.log = log
        self.ended: str | None = None  # how, once it has ended: `exit 1`, `SIGKILL`
        self._gone = asyncio.Event()
        self._redactor = redactor
        self._log_start = 0  # the size of the log before this call
        self._group = 0
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start its process, unless it runs already."""
        if not self.service.command:
            return
        port = urlsplit(self.service.url).port
        if port is not None and not is_free(port):
            raise self._error(
                f"cannot be started: port {port} is taken; `port: auto` finds a free one, and --no-serve uses what runs there"
            )
        with self._opened_log() as log:
            self._process = await asyncio.create_subprocess_exec(
                *bare_command(SUPERVISOR),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C on the terminal is for the run
            )
        order = {
            "command": self.service.command,
            "cwd": self.service.cwd,
            "environment": self.service.environment,
            "log": str(self.log),
            "secrets": self._redactor.forms,
            "stop_timeout_s": self.service.stop_timeout_s,
            "parent": os.getpid(),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(ConnectionError):  # then its output says why, or nothing
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            await self._process.stdin.drain()
        reply = (await self._process.stdout.readline()).decode(errors="replace").strip()
        word, _, rest = reply.partition(" ")
        if word != "started":
            raise self._error(
                f"cannot be started: {rest or 'its supervisor ended'}; look at {self._key}.command and .cwd"
            )
        self._group = int(rest)
        self._watch = asyncio.create_task(self._listen(self._process.stdout))

    async def wait_until_ready(self) -> None:
        """Return once it answers; ServiceError if it ends before, or takes too long."""
        problem = "it was not asked yet"
        try:
            async with asyncio.timeout(self.service.ready_timeout_s):
                async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as session:
                    while (why_not := await self._problem(session)) is not None or self._gone.is_set():
                        problem = why_not or problem
                        if self._gone.is_set():
                            raise self.died()
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(self._gone.wait(), ASK_AGAIN_S)
        except TimeoutError:
            raise self._error(
                f"did not get ready in {self.service.ready_timeout_s:g} seconds (ready_timeout_s): {problem}"
            ) from None

    async def gone(self) -> None:
        """Return when its process has ended; never, if it was not started here."""
        await self._gone.wait()

    def died(self) -> ServiceError:
        hint = ": it must stay in the foreground" if self.ended == "exit 0" else ""
        return self._error(f"died ({self.ended}){hint}")

    async def stop(self) -> None:
        """End it and everything that it has started, and return when nothing is left."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()  # the supervisor takes it from here
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()  # a process that an env has forked may hold the other end of its input
        try:
            async with asyncio.timeout(self.service.stop_timeout_s + LEAVE_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._watch is not None:
            await self._watch

    def _opened_log(self) -> BinaryIO:
        try:
            Disk().make_directory(self.log.parent)
            self._log_start = self.log.stat().st_size if self.log.exists() else 0
            return open(self.log, "ab", opener=opener_in(self.log.parent))
        except OSError as problem:
            raise ServiceError(
                f"service {self.service.name!r} cannot be started: its log {self.log} cannot be written: "
                f"{problem.strerror or problem}; {self._key}.log names another"
            ) from None

    @property
    def _key(self) -> str:
        return f"services.{self.service.name}"

    async def _listen(self, output: asyncio.StreamReader) -> None:
        async for line in output:
            word, _, code = line.decode().strip().partition(" ")
            if word == "exited":
                self.ended = _describe_exit(int(code))
                self._gone.set()
        if self.ended is None:
            self.ended = "its supervisor was killed"
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)  # the kernel has killed the service, not its children
            self._gone.set()

    async def _problem(self, session: aiohttp.ClientSession) -> str | None:
        """The reason why it is not up yet; None if it is up."""
        if self.service.health is None:
            parts = urlsplit(self.service.url)
            try:
                async with asyncio.timeout(ANSWER_S):
                    _, writer = await asyncio.open_connection(
                        parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
                    )
            except (OSError, TimeoutError):
                return f"nothing listens at {self.service.url}"
            writer.close()
            return None
        try:
            async with session.get(self.service.health) as answer:
                return None if answer.ok else f"{self.service.health} answers {answer.status}"
        except TimeoutError:
            return f"{self.service.health} did not answer in {ANSWER_S:g} seconds"
        except (aiohttp.ClientError, OSError, ValueError) as problem:
            return f"{self.service.health}: {problem}"

    def _error(self, what: str) -> ServiceError:
        tail = self._tail()
        last_lines = f". The last lines of {self.log}:\n{tail}" if tail else ""
        return ServiceError(self._redactor.text(f"service {self.service.name!r} {what}{last_lines}"))

    def _tail(self) -> str:
        """The last lines of its output in this call."""
        try:
            with self.log.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:])


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
