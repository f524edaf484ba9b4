"""`make mutants`: break the code on purpose, one promise at a time; a test must notice each.

The lists beside this file (*.toml) hold sentences of the design and, under each, the mutants that break it: a file of
src/windrow, a text that occurs in it exactly once, what takes its place, and the tests that should fail for it. Each
mutant is applied to a copy of the tree, which is what its tests import, also in the processes they start. It is

    killed       a named test failed, or did not end in time
    SURVIVED     no named test noticed
    NOT FOUND    the text is not in the file, or more than once: the code has moved on, the list has not
    BROKEN       the tests could not be run: a name that is not there, a text that does not parse

Everything but `killed` fails the command. Before that, the named tests must pass on the code as it is.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGE = Path("src") / "windrow"
COPIED = ("src", "tests", "pyproject.toml")
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*", "mutants")  # of the tree that is worked in

AT_ONCE = 2
TEST_S = 30  # for one test of a mutant: more is a hang, and a hang is noticed
RUN_S = 120  # for all tests of one mutant
PLAIN_S = 900  # for all named tests on the code as it is

running: set[subprocess.Popen[bytes]] = set()

PASSED, FAILED = 0, 1  # pytest's exit codes; others say that it did not run the tests


class Mutant(NamedTuple):
    name: str
    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    test_s: int


class Verdict(NamedTuple):
    mutant: Mutant
    word: str
    detail: str
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description="Break the code on purpose: the tests must notice.")
    parser.add_argument("--only", action="append", metavar="NAME", help="this mutant alone; repeats")
    parser.add_argument("--check", action="store_true", help="only see whether every text is still found")
    arguments = parser.parse_args()
    mutants = chosen(list(read_lists(HERE)), arguments.only)
    stale = [Verdict(m, "NOT FOUND", why, 0.0) for m in mutants if (why := misfit(m)) is not None]
    found = [mutant for mutant in mutants if mutant not in {verdict.mutant for verdict in stale}]
    if arguments.check:
        return report(stale, len(mutants))
    with tempfile.TemporaryDirectory(prefix="windrow-mutants-") as temporary:
        base = copy_tree(ROOT, Path(temporary) / "base", LEFT_OUT)
        if found and not plain_tests_pass(base, found):
            return 1
        verdicts = judged_all(found, base)
    return report([*verdicts, *stale], len(mutants))


def read_lists(folder: Path) -> Iterator[Mutant]:
    for path in sorted(folder.glob("*.toml")):
        for sentence in tomllib.loads(path.read_text(encoding="utf-8"))["sentence"]:
            for fields in sentence["mutant"]:
                yield mutant_of(sentence["promise"], fields)


def mutant_of(promise: str, fields: dict[str, Any]) -> Mutant:
    tests = tuple(f"tests/{test}" for test in fields["tests"])
    return Mutant(
        fields["name"],
        promise,
        fields["file"],
        fields["old"],
        fields["new"],
        tests,
        fields.get("test_s", TEST_S),
    )


def chosen(mutants: Sequence[Mutant], only: Sequence[str] | None) -> list[Mutant]:
    counts = Counter(mutant.name for mutant in mutants)
    twice = [name for name, count in counts.items() if count > 1]
    unknown = [name for name in only or () if name not in counts]
    if twice or unknown:
        sys.exit(f"mutants: {f'two are called {twice[0]}' if twice else f'none is called {unknown[0]}'}")
    return [mutant for mutant in mutants if not only or mutant.name in only]


def misfit(mutant: Mutant) -> str | None:
    """Why the mutant cannot be made of the code as it is."""
    path = ROOT / PACKAGE / mutant.file
    if not path.exists():
        return f"there is no {mutant.file}"
    count = path.read_text(encoding="utf-8").count(mutant.old)
    return None if count == 1 else f"{mutant.file} has the text {count} times"


# -- trees


def copy_tree(source: Path, target: Path, ignore: Any = None) -> Path:
    target.mkdir()
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=ignore)
        else:
            shutil.copy2(source / name, target / name)
    return target


def mutated_tree(mutant: Mutant, base: Path) -> Path:
    """The base with what is compiled in it, all but the file that is changed."""
    tree = copy_tree(base, base.with_name(mutant.name))
    path = tree / PACKAGE / mutant.file
    path.write_text(path.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()
    return tree


def environment(tree: Path) -> dict[str, str]:
    """The tree's own package comes before the installed one, also in processes that the tests start."""
    ours = {"PYTHONPATH": str(tree / "src"), "HYPOTHESIS_PROFILE": "ci", "PYTEST_ADDOPTS": ""}
    return {**os.environ, **ours}


def imported_from(tree: Path) -> Path:
    """Where a process that a test starts finds the package."""
    command = [sys.executable, "-c", "import windrow; print(windrow.__file__)"]
    found = subprocess.run(
        command, env=environment(tree), cwd=tree.parent, capture_output=True, text=True, check=True
    )
    return Path(found.stdout.strip())


# -- tests


def plain_tests_pass(base: Path, mutants: Iterable[Mutant]) -> bool:
    package = imported_from(base)
    if not package.is_relative_to(base):
        print(f"mutants: the tests would import {package}, not the copy in {base}")
        return False
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    print(f"the {len(tests)} named tests on the code as it is …", flush=True)
    code, output = pytest(base, ["-n", str(AT_ONCE), *tests], test_s=120, run_s=PLAIN_S)
    if code != PASSED:
        print(output)
        print("mutants: the tests fail without any mutant" if code is not None else "mutants: the tests hang")
    return code == PASSED


def judged_all(mutants: Sequence[Mutant], base: Path) -> list[Verdict]:
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        return list(pool.map(lambda mutant: judged(mutant, base), mutants))
    finally:  # also when this is interrupted: nothing is left running
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(running):
            end_group(process)
        pool.shutdown()


def judged(mutant: Mutant, base: Path) -> Verdict:
    started = time.monotonic()
    word, detail = outcome(mutant, base)
    seconds = time.monotonic() - started
    print(f"{word:<9}  {mutant.name}  ({seconds:.1f} s)", flush=True)
    return Verdict(mutant, word, detail, seconds)


def outcome(mutant: Mutant, base: Path) -> tuple[str, str]:
    tree = mutated_tree(mutant, base)
    try:
        path = tree / PACKAGE / mutant.file
        if path.suffix == ".py":
            compile(path.read_text(encoding="utf-8"), mutant.file, "exec")
        code, output = pytest(tree, ["-x", *mutant.tests], test_s=mutant.test_s, run_s=RUN_S)
    except SyntaxError as problem:
        return "BROKEN", str(problem)
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    if code is None:
        return "killed", f"did not end within {RUN_S} s"
    if code == FAILED:
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        return "killed", failed[1].rpartition("/")[2] if failed else "a test failed"
    if code == PASSED:
        return "SURVIVED", ", ".join(mutant.tests)
    return "BROKEN", output.strip()[-400:]


def pytest(tree: Path, arguments: list[str], *, test_s: int, run_s: int) -> tuple[int | None, str]:
    """The exit code, None if it had to be ended, and what was said. What the tests left running is ended too."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:randomly"]
    command += ["-p", "no:cacheprovider", f"--timeout={test_s}", f"--basetemp={tree / 'tmp'}", *arguments]
    said = tree / "said"
    with said.open("wb") as file:  # not a pipe: what a test leaves running would hold it open
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment(tree),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    running.add(process)
    code: int | None = None
    try:
        code = process.wait(run_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        end_group(process)
        running.discard(process)
    return code, said.read_text(encoding="utf-8", errors="replace")


def end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


# -- the table


def report(verdicts: Sequence[Verdict], count: int) -> int:
    width = max((len(verdict.mutant.name) for verdict in verdicts), default=0)
    print()
    for verdict in sorted(verdicts, key=lambda verdict: verdict.word == "killed"):
        print(f"{verdict.word:<9}  {verdict.mutant.name:<{width}}  {verdict.detail}")
        if verdict.word != "killed":
            print(f"{'':<9}  breaks: {verdict.mutant.promise}")
    words = Counter(verdict.word for verdict in verdicts)
    print(
        f"\n{count} mutants: " + (", ".join(f"{n} {word}" for word, n in words.items()) or "all texts found")
    )
    return 1 if set(words) - {"killed"} else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
