"""What an MCP server can cost: its listing is bounded, and nothing that it has started outlives the session."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.mcp_over_http import served
from tests.support.mcp_server import MANY
from windrow.errors import ToolError
from windrow.integrations.hud.servers import Servers
from windrow.tools.mcp import McpServer, McpTools

ROOT = str(Path(__file__).parents[3])
PATIENCE_MS = 60_000

pytestmark = pytest.mark.slow

LIMITS = [
    ("crowded", "lists more than 1,000 tools"),
    ("endless", "lists its tools on more than 100 pages"),
    ("large", "lists the tool 't0' with a schema of more than 262,144 bytes"),
    ("larger", "lists tools of more than 4,194,304 bytes"),
    ("deep", "lists the tool 't0' with a schema that is none: it is nested too deeply"),
]


def stdio(*arguments: str) -> McpServer:
    command = (sys.executable, "-m", "tests.support.mcp_server", *arguments)
    return McpServer(command=command, cwd=ROOT, name="files")


async def refusal(server: McpServer) -> str:
    with pytest.raises(ToolError) as refused:
        async with McpTools(server).episode():
            raise AssertionError
    return str(refused.value)


@pytest.mark.parametrize(("how", "said"), LIMITS)
async def test_a_listing_over_a_limit_is_refused_by_name(how: str, said: str) -> None:
    assert f"the MCP server 'files' {said}" in await refusal(stdio(how))


@pytest.mark.parametrize(
    ("how", "said"), [*LIMITS[1:3], ("unbounded", "the response has more than 16,777,216 bytes")]
)
async def test_a_listing_over_a_limit_is_refused_by_name_over_http(how: str, said: str) -> None:
    with served("tests.support.mcp_server", how) as url:
        refused = await refusal(McpServer(url=url, name="files"))
    assert "the MCP server 'files'" in refused
    assert said in refused


async def test_the_servers_of_a_task_have_the_same_limits() -> None:
    servers = Servers({"files": stdio("endless")})
    with pytest.raises(ToolError, match="the MCP server 'files' lists its tools on more than 100 pages"):
        await servers.open(60.0)
    await servers.close()


async def test_a_listing_is_checked_once_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of one schema takes milliseconds, of a full listing seconds: not on the loop, and not in each episode."""
    from windrow.tools import mcp_listing

    checks: list[Any] = []
    threads = mcp_listing.in_thread

    async def counted(function: Any, *args: Any) -> Any:
        checks.append(args)
        return await threads(function, *args)

    monkeypatch.setattr(mcp_listing, "in_thread", counted)
    monkeypatch.setattr(mcp_listing, "_checked", set())
    for _ in range(2):
        async with McpTools(stdio("full")).episode() as tools:
            assert len(tools) == 1000
    assert len(checks) == 1


async def test_an_output_schema_cannot_hold_up_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.tools.mcp_results.MAX_STEPS", 10_000)
    async with McpTools(stdio("stalling")).episode() as tools:
        call = {tool.name: tool.call for tool in tools}
        assert await call["right"]() == await call["pattern"]() == f'{{"n":"{MANY}"}}'
        with pytest.raises(ToolError, match=r"the comparison with its schema takes more than 10,000 steps"):
            await call["doubled"]()
        with pytest.raises(ToolError, match=r"it cannot be compared with its schema: .*schema\.json"):
            await call["fetched"]()


async def test_a_call_is_given_up_at_once_though_the_server_does_not_read() -> None:
    async with McpTools(stdio("deaf")).episode() as [tool]:
        call = asyncio.ensure_future(tool.call(text="x" * 2_000_000))
        await asyncio.wait({call}, timeout=0.2)
        call.cancel()
        done, _ = await asyncio.wait({call}, timeout=4.0)  # the SDK takes 5 s
    assert done


def has_ended(pidfd: int) -> bool:
    """Whether the process has ended, which is waited for."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(PATIENCE_MS))


async def test_a_daemon_of_a_server_is_gone_when_the_session_has_ended(tmp_path: Path) -> None:
    note = tmp_path / "daemon"
    async with McpTools(stdio("leaving", str(note))).episode() as tools:
        assert [tool.name for tool in tools] == ["t0"]
        daemon = int(note.read_text())
        assert os.getsid(daemon) != os.getsid(0)
    with pytest.raises(ProcessLookupError):
        os.kill(daemon, 0)


COLLECTOR = """
import asyncio, sys
from windrow.tools.mcp import McpServer, McpTools

async def main():
    async with McpTools(McpServer(command=tuple(sys.argv[1:]))).episode():
        print("connected", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_daemon_of_a_server_is_gone_when_the_collector_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "daemon"
    server = stdio("leaving", str(note))
    collector = subprocess.Popen(
        [sys.executable, "-c", COLLECTOR, *server.command], stdout=subprocess.PIPE, cwd=ROOT
    )
    try:
        assert collector.stdout is not None
        assert collector.stdout.readline() == b"connected\n"
        daemon = os.pidfd_open(int(note.read_text()))
    finally:
        collector.kill()
        collector.communicate()
    assert has_ended(daemon)
    os.close(daemon)
