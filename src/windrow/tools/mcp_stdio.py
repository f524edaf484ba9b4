"""An MCP server as a child process: the transport for the SDK's client.

Unlike the SDK's own transport, this one bounds the server: a message longer than MAX_MESSAGE_BYTES ends the
connection, other output is skipped, and the last lines of standard error are retained to explain a failure. When the
context is left or this process is killed, the server is gone with everything that it has started (`mcp_supervisor.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from windrow.util.reaper import bare_command

SUPERVISOR = str(Path(__file__).with_name("mcp_supervisor.py"))  # a program for a bare interpreter
MAX_MESSAGE_BYTES = 16 * 2**20
EXIT_GRACE_S = 2.0  # between the end of its input and the kill
TAIL_LINES = 5
TAIL_CHARS = 300


class ServerProcess:
    """The command of the server, and, after it ran, its last lines on standard error."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: str | None) -> None:
        self._command = tuple(command)
        self._env = dict(env)
        self._cwd = cwd
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    @property
    def last_words(self) -> str:
        return " / ".join(self._tail)[-TAIL_CHARS:]

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[Any, Any]]:
        order = self._order()
        process = await asyncio.create_subprocess_exec(
            *bare_command(SUPERVISOR, str(os.getpid()), str(len(order))),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MAX_MESSAGE_BYTES,
            start_new_session=True,  # Ctrl-C on the terminal is for the run
        )
        assert process.stdin is not None
        process.stdin.write(order)
        try:
            incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
            async with incoming, read_stream, write_stream, outgoing, anyio.create_task_group() as group:
                group.start_soon(self._receive, process, incoming)
                group.start_soon(self._send, process, outgoing, incoming)
                group.start_soon(self._listen, process)
                try:
                    yield read_stream, write_stream
                finally:
                    group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)
                with suppress(TimeoutError):
                    async with asyncio.timeout(EXIT_GRACE_S):
                        await self._listen(process)  # its last words

    def _order(self) -> bytes:
        """What the supervisor is to start, in the form that it reads."""
        environment = {**get_default_environment(), **self._env}
        variables = (f"{name}={value}" for name, value in environment.items())
        parts = (self._cwd or "", str(len(self._command)), *self._command, *variables)
        for part in parts:
            if "\0" in part:
                raise ValueError("a command, a directory and a variable cannot hold a NUL character")
        return b"".join(os.fsencode(part) + b"\0" for part in parts)

    async def _receive(self, process: asyncio.subprocess.Process, incoming: Any) -> None:
        assert process.stdout is not None
        async with incoming:  # closed at the end: whoever waits for an answer is told
            # ValueError: a line over the limit; the rest: the process or the session is gone.
            with suppress(ValueError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while line := await process.stdout.readline():
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        continue
                    await incoming.send(SessionMessage(message))

    async def _send(self, process: asyncio.subprocess.Process, outgoing: Any, incoming: Any) -> None:
        assert process.stdin is not None
        try:
            async for message in outgoing:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
        except OSError:
            await incoming.aclose()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(2**16):
            self._tail += [
                line for line in chunk[-2000:].decode(errors="replace").splitlines() if line.strip()
            ]


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close its input, give it a moment, then have its supervisor kill everything that is left of it."""
    assert process.stdin is not None
    process.stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(EXIT_GRACE_S):
            await _drained(process)
    for end in (process.terminate, process.kill):
        if process.returncode is None:
            with suppress(ProcessLookupError, TimeoutError):
                end()
                async with asyncio.timeout(EXIT_GRACE_S):
                    await process.wait()


async def _drained(process: asyncio.subprocess.Process) -> None:
    """Read until the stream ends: a server that is stuck writing cannot see that its input has ended."""
    assert process.stdout is not None
    while await process.stdout.read(2**16):
        pass
    await process.wait()
