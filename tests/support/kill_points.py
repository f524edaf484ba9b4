"""A process that is killed before its first file operation, before its second, and so on, until it comes to its end.

`killed_everywhere` starts one process, which forks one child for each kill: the imports are paid for once. A child works on a
copy of its own, and an audit hook kills it (SIGKILL) when it is about to change that copy for the n-th time.
"""

from __future__ import annotations

import importlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PATIENCE_S = 120
CHANGES = (
    "os.rename",
    "os.link",
    "os.symlink",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.truncate",
    "os.utime",
)


def killed_everywhere(work: Callable[[Path], None], before: Path, results: Path) -> list[Path]:
    """What is left of `before` when `work`, given a copy of it, is killed at each operation, in their order.

    `work` is a function of a module. The last result is that of the one that was not killed.
    """
    results.mkdir()
    subprocess.run(
        [sys.executable, "-m", __name__, work.__module__, work.__name__, str(before), str(results)],
        check=True,
        timeout=PATIENCE_S,
    )
    return [results / str(number) / before.name for number in range(1, len(os.listdir(results)) + 1)]


def main(module: str, name: str, before: Path, results: Path) -> None:
    work = getattr(importlib.import_module(module), name)
    for number in itertools.count(1):
        copy = results / str(number) / before.name
        shutil.copytree(before, copy, symlinks=True)
        child = os.fork()
        if child == 0:
            _work_until(number, work, copy)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            sys.exit(os.waitstatus_to_exitcode(status))


def _work_until(number: int, work: Callable[[Path], None], copy: Path) -> None:
    counted = itertools.count(1)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if any(str(copy) in path for path in _changed(event, arguments)) and next(counted) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        sys.addaudithook(hook)
        work(copy)
        code = 0
    finally:
        os._exit(code)


def _changed(event: str, arguments: tuple[Any, ...]) -> Iterator[str]:
    """The paths that an operation is about to change."""
    if event in CHANGES:
        yield from (
            os.fsdecode(path) for path in arguments[:2] if isinstance(path, str | bytes | os.PathLike)
        )
    elif event == "open":
        path, _, flags = arguments
        if isinstance(path, str | bytes | os.PathLike) and flags & (os.O_WRONLY | os.O_RDWR):
            yield os.fsdecode(path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
