"""The supervisor of a browser alone, between a driver and a browser that does not want to end: whoever ends first, nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web.pools import alive, wait_until
from windrow.envs.web.launch import SUPERVISOR
from windrow.util.reaper import bare_command, descendants

pytestmark = pytest.mark.slow

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600)
"""
DRIVER = """
import os, subprocess, sys
for pipe, wanted in zip(os.pipe(), (3, 4)):
    if pipe != wanted:
        os.dup2(pipe, wanted)
sys.exit(subprocess.Popen(sys.argv[1:], pass_fds=(3, 4)).wait())
"""


class Scene:
    """An owner, a driver, the supervisor that it started, and below that a browser with a child that has left its group."""

    def __init__(self, tmp: Path, profile: Path) -> None:
        self.folder, self.profile = tmp / "folder", profile
        for made in (self.folder, self.profile):
            made.mkdir()
        self.owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        browser = [sys.executable, "-c", STUBBORN]
        command = bare_command(SUPERVISOR, str(self.owner.pid), str(self.folder), *browser)
        self.driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *command, f"--user-data-dir={self.profile}"],
            env={**os.environ, "TMPDIR": str(tmp)},
        )
        wait_until(
            lambda: len(descendants(self.driver.pid)) == 3 and (self.folder / "pid").exists(), "all of them"
        )
        self.browser = int((self.folder / "pid").read_text())
        self.rest = descendants(self.driver.pid)
        self.supervisor = next(pid for pid in self.rest if self.browser in descendants(pid))

    def close(self) -> None:
        for process in (self.owner, self.driver):
            process.kill()
            process.wait()
        for pid in alive(self.rest):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path, tmp_path / "playwright_profile")
    yield made
    made.close()


@pytest.mark.parametrize("first", ["owner", "driver", "browser", "told"])
def test_whoever_ends_first_nothing_is_left_of_the_browser(first: str, scene: Scene) -> None:
    number = signal.SIGTERM if first == "told" else signal.SIGKILL
    whom = {
        "owner": scene.owner.pid,
        "driver": scene.driver.pid,
        "browser": scene.browser,
        "told": scene.supervisor,
    }
    os.kill(whom[first], number)
    wait_until(lambda: not alive(scene.rest), "all of the browser to end")
    wait_until(lambda: not (scene.folder.exists() or scene.profile.exists()), "its files to go")
    wait_until(lambda: scene.driver.poll() is not None, "its driver to end")
    assert (scene.owner.poll() is None) == (first != "owner")


def test_a_profile_that_is_not_the_drivers_own_is_kept(tmp_path: Path) -> None:
    scene = Scene(tmp_path, tmp_path / "mine")
    try:
        os.kill(scene.owner.pid, signal.SIGKILL)
        wait_until(lambda: not alive(scene.rest), "all of the browser to end")
        assert not scene.folder.exists()
        assert scene.profile.exists()
    finally:
        scene.close()
