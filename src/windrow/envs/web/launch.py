"""Finds and starts Chromium, through Playwright's driver and a supervisor; or connects to one that runs elsewhere."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow.envs.web.failures import BrowserGone
from windrow.envs.web.pool_settings import PoolSettings
from windrow.errors import UsageError
from windrow.registry import import_extra
from windrow.util.reaper import bare_command, descendants

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

HOW_TO_GET_ONE = (
    "apt-get install chromium-headless-shell (Debian), playwright install --only-shell chromium, "
    "or WINDROW_CHROMIUM=/path/to/chromium"
)
VARIABLE = "WINDROW_CHROMIUM"
SUPERVISOR = str(Path(__file__).with_name("browser_supervisor.py"))  # a program for a bare interpreter
SWITCHES = (
    "--headless=new",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-breakpad",
    # Nothing may bypass a context's proxy.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
)
# The variables that a browser inherits: pages are hostile, and must not come near keys.
PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "LC_",
    "TZ",
    "TMPDIR",
    "XDG_",
    "FONTCONFIG",
    "LD_LIBRARY_PATH",
    "DBUS_",
    "SSL_",
)
# The binaries, not Debian's scripts in /usr/bin: one of those does not exec, and killing it would leave the browser.
# The headless shell has half the memory of the whole browser.
_DEBIAN = ("/usr/lib/chromium/chromium-headless-shell", "/usr/lib/chromium/chromium")
_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_PLAYWRIGHTS = (
    "chromium_headless_shell-*/*/headless_shell",
    "chromium_headless_shell-*/*/chrome-headless-shell",
    "chromium-*/*/chrome",
    "chromium-*/*/*.app/Contents/MacOS/*",
)


def find_chromium() -> Path | None:
    """The Chromium that is started: $WINDROW_CHROMIUM, Debian's, Playwright's own, or the first on the PATH."""
    if named := os.environ.get(VARIABLE):
        return Path(named) if _executable(Path(named)) else None
    for path in map(Path, _DEBIAN):
        if _executable(path):
            return path
    for pattern in _PLAYWRIGHTS:
        if matches := sorted(path for path in _playwright_home().glob(pattern) if _executable(path)):
            return matches[-1]
    for name in _NAMES:
        if on_path := shutil.which(name):
            return Path(on_path)
    return None


def chromium_version(path: Path) -> str | None:
    """Its version; None if it does not start, for example for want of a library."""
    try:
        completed = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip()


def playwright() -> Any:
    """Playwright's asynchronous interface, which the extra `web` installs."""
    return import_extra("playwright.async_api", extra="web", what="the environment 'web'")


def failures() -> tuple[type[Exception], ...]:
    """The errors that a call of Playwright may raise; a driver that has just died raises the last two."""
    return playwright().Error, TimeoutError, RuntimeError, ConnectionError


def require(settings: PoolSettings) -> None:
    """Raise UsageError, before anything runs, if no browser could be started."""
    playwright()
    if not settings.urls:
        _executable_of(settings)


class Chromium:
    """A browser that was started here, or a connection to one elsewhere: then `pid` is None."""

    def __init__(self, browser: Browser, pid: int | None, where: str, folder: Path | None = None) -> None:
        self.browser = browser
        self.pid = pid
        self.where = where
        self._folder = folder

    def memory_mb(self) -> float | None:
        """The memory of its processes that is not shared; None if that is unknown."""
        if self.pid is None or not sys.platform.startswith("linux"):
            return None
        return sum(_own_kb(pid) for pid in (self.pid, *descendants(self.pid))) / 1024

    def kill(self) -> None:
        """End it at once; its supervisor ends the rest."""
        if self.pid is not None:
            try:
                os.kill(self.pid, 9)
            except ProcessLookupError:
                pass

    async def close(self, timeout_s: float) -> None:
        """Close it, and kill it after `timeout_s`. One elsewhere is only disconnected: it is not ours."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.browser.close()
        except failures():
            self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


async def launch(driver: Playwright, settings: PoolSettings) -> Chromium:
    """Start a Chromium that does not outlive this process, however that ends."""
    path = _executable_of(settings)
    sandbox = settings.sandbox if settings.sandbox is not None else os.getuid() != 0
    folder = _folder(path)
    script = folder / "chromium"
    try:
        browser = await driver.chromium.launch(
            executable_path=script,
            artifacts_dir=folder / "artifacts",
            env={name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)},
            args=[*SWITCHES, *settings.chromium_args],
            chromium_sandbox=sandbox,
            handle_sigint=False,  # a run that is interrupted finishes what it has
            handle_sigterm=False,
            handle_sighup=False,
            timeout=settings.start_timeout_s * 1000,
        )
    except playwright().Error as problem:
        shutil.rmtree(folder, ignore_errors=True)
        raise _not_started(path, sandbox, str(problem)) from None
    try:
        pid = int((folder / "pid").read_text())
    except OSError:  # it has died meanwhile, and its folder is gone
        raise _not_started(path, sandbox, "it died at once") from None
    return Chromium(browser, pid, str(path), folder)


def _folder(path: Path) -> Path:
    """A folder for one browser, with a script that starts it."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="windrow-browser-"))
        script = folder / "chromium"
        command = bare_command(SUPERVISOR, str(os.getpid()), str(folder), str(path))
        script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        script.chmod(0o700)
    except OSError as problem:
        raise _not_started(path, False, f"there is no place for its folder: {problem}") from None
    return folder


async def connect(driver: Playwright, url: str, settings: PoolSettings) -> Chromium:
    """Connect to a browser that runs elsewhere, by its CDP address."""
    where = address_of(url)
    try:
        browser = await driver.chromium.connect_over_cdp(url, timeout=settings.start_timeout_s * 1000)
    except playwright().Error as problem:
        raise BrowserGone(
            f"no browser answers at {where}: {_first_line(str(problem)).replace(url, where)}; look at cdp_url",
            kind="browser_unreachable",
        ) from None
    return Chromium(browser, None, where)


def address_of(url: str) -> str:
    """The address of a browser, without the token that its URL may have."""
    parts = urllib.parse.urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


def is_here(url: str) -> bool:
    """Whether the browser at `url` can reach ports of this machine's loopback."""
    return urllib.parse.urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def _executable_of(settings: PoolSettings) -> Path:
    if settings.chromium is not None:
        path = Path(settings.chromium).expanduser()
        if not _executable(path):
            raise UsageError(f"there is no browser to execute at {path} (the environment's setting chromium)")
        return path
    chromium = find_chromium()
    if chromium is None:
        raise UsageError(f"the environment 'web' needs a Chromium; type: {HOW_TO_GET_ONE}")
    return chromium


def _not_started(path: Path, sandbox: bool, problem: str) -> BrowserGone:
    why = _first_line(problem)
    if sandbox and "sandbox" in problem.lower():
        why = "its sandbox does not work here (user namespaces are off); set sandbox: false to do without it"
    elif "shared libraries" in problem:
        lines = [line for line in problem.splitlines() if "shared libraries" in line]
        why = lines[0].strip()
    return BrowserGone(f"the browser {path} did not start: {why}", kind="browser_start")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), text)


def _own_kb(pid: int) -> int:
    """Memory that is not shared with other processes, in KiB; 0 for one that has ended."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("RssAnon:")), 0)
    except OSError:
        return 0


def _playwright_home() -> Path:
    folder = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    return (
        Path(folder)
        if folder
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ms-playwright"
    )


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
