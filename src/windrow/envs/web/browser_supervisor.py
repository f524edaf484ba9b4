"""The program between Playwright's driver and one Chromium: when the collector ends, so does the browser.

It runs in a bare interpreter (see `windrow.util.reaper`), with these arguments:
    OWNER FOLDER CHROMIUM ARGUMENT…
OWNER is the collector's process id. FOLDER belongs to this browser: its process id is written there to `pid`. Chromium
inherits the driver's pipes (descriptors 3 and 4). When the collector, the driver or Chromium itself ends, by any signal,
every process that Chromium has started is killed, its profile and FOLDER are removed, and a driver that has outlived its
collector is killed too.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile

from windrow.util.reaper import Reaper, WatchedProcess

PIPES = (3, 4)
PROFILE = "--user-data-dir="


def main(owner: WatchedProcess, folder: str, command: list[str]) -> int:
    """Run Chromium until it, the collector or the driver ends."""
    driver = WatchedProcess(os.getppid())
    reaper = Reaper(
        stop_signals=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP), stop_with=(owner, driver), grace_s=0.0
    )
    chromium = reaper.start(command, pass_fds=PIPES)
    for pipe in PIPES:  # otherwise Chromium would not see that the driver has closed its end
        os.close(pipe)
    write_pid(folder, chromium.pid)
    code = reaper.run()
    for path in (folder, *profiles(command)):
        shutil.rmtree(path, ignore_errors=True)
    if owner.ended and os.getppid() == driver.pid:
        driver.kill()  # it would wait for this process, and nobody is left that talks to it
    return abs(code or 0)


def profiles(command: list[str]) -> list[str]:
    """The temporary profile that the driver made for this start."""
    named = [word.removeprefix(PROFILE) for word in command if word.startswith(PROFILE)]
    made_by_driver = os.path.join(os.path.realpath(tempfile.gettempdir()), "playwright_")
    return [path for path in named if os.path.realpath(path).startswith(made_by_driver)]


def write_pid(folder: str, pid: int) -> None:
    path = os.path.join(folder, "pid")
    with open(path + ".new", "w") as file:
        file.write(str(pid))
    os.replace(path + ".new", path)


if __name__ == "__main__":
    sys.exit(main(WatchedProcess(int(sys.argv[1])), sys.argv[2], sys.argv[3:]))
