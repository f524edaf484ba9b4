"""Processes end with the process that they belong to: the functions alone, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from windrow.util.reaper import bare_command, descendants

DIES_WITH_PARENT = """
import os, subprocess, sys, time
child = "import sys, time; from windrow.util.reaper import die_with_parent; die_with_parent(int(sys.argv[1])); "
child += "print('ready', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child, str(os.getpid() + int(sys.argv[1]))])
time.sleep(600)
"""


def test_a_program_in_a_bare_interpreter_has_the_reaper_and_nothing_else_of_windrow(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from windrow.util.reaper import Reaper, descendants\n"
        "print(sys.argv[1:], [name for name in sys.modules if name.startswith('windrow')], 'site' in sys.modules)\n"
    )
    done = subprocess.run(bare_command(str(program), "a", "b"), capture_output=True, text=True, check=True)
    assert done.stdout == "['a', 'b'] ['windrow.util.reaper'] False\n"


def test_children_of_children_are_descendants_also_where_they_have_left_the_group() -> None:
    script = "import subprocess, sys; subprocess.run(['sleep', '600'], start_new_session=True)"
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        try:
            while not (below := descendants(process.pid)):
                assert process.poll() is None
            assert process.pid in descendants(os.getpid())
            assert set(below) <= set(descendants(os.getpid()))
        finally:
            for pid in (process.pid, *descendants(process.pid)):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_process_dies_within_two_seconds_of_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", DIES_WITH_PARENT, "0"], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        os.kill(parent.pid, signal.SIGKILL)
        began = time.monotonic()
        assert parent.stdout.read() == b""  # nobody holds the other end any more
        assert time.monotonic() - began < 2.0


@pytest.mark.slow
def test_a_process_whose_parent_is_gone_already_ends_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", DIES_WITH_PARENT, "1"], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        while not (children := descendants(parent.pid)):
            assert parent.poll() is None
        try:
            while state_of(children[0]) not in ("Z", ""):
                assert parent.poll() is None
        finally:
            parent.kill()
        assert parent.stdout.read() == b""  # it never got ready


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
