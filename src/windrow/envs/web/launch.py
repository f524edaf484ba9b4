"""Which Chromium is started, and with which switches."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

HOW_TO_GET_ONE = (
    "apt-get install chromium-headless-shell (Debian), playwright install --only-shell chromium, "
    "or WINDROW_CHROMIUM=/path/to/chromium"
)
VARIABLE = "WINDROW_CHROMIUM"
# The binaries, not Debian's scripts in /usr/bin: one of those does not exec, and who kills it leaves a browser behind.
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
    for place in _DEBIAN:
        if _executable(Path(place)):
            return Path(place)
    for pattern in _PLAYWRIGHTS:
        if own := sorted(path for path in _playwright_home().glob(pattern) if _executable(path)):
            return own[-1]
    for name in _NAMES:
        if found := shutil.which(name):
            return Path(found)
    return None


def chromium_version(path: Path) -> str | None:
    """What it says of itself; None where it does not start (a library is missing)."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip()


def _playwright_home() -> Path:
    own = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    return (
        Path(own)
        if own
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ms-playwright"
    )


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
