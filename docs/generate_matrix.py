"""Write docs/coming-from/README.md from matrix.toml beside it; `--check` says whether it is up to date.

The version of a real package is read where its tests have it from: constraints.txt, tests/interop/*.txt.
"""

from __future__ import annotations

import re
import sys
import tomllib
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "coming-from" / "matrix.toml"
PAGE = DATA.with_name("README.md")
WAYS = ("in", "out", "drive")
HEAD = """\
# Other systems

Written by `make docs` from `matrix.toml` beside it. **In** is what Windrow reads of theirs, **out** what it writes for them, **drive** what of
theirs takes part in a run. Against **the real** package means that the test runs it, in the version that is named.
**From documentation** means that the test holds Windrow to what the system's own documentation and source say; the system itself was not run.

| system | way | what | against | shown by |
| --- | --- | --- | --- | --- |
"""


def page(data: Path = DATA) -> str:
    rows = tomllib.loads(data.read_text(encoding="utf-8"))["row"]
    versions = pinned()
    lines = []
    for system, found in groupby(rows, key=lambda row: row["system"]):
        name = f"**{system}**"
        for row in sorted(found, key=lambda row: WAYS.index(row["way"])):
            cells = [
                name,
                row["way"],
                f"[{row['what']}]({row['page']})",
                against(row, versions),
                f"`{row['test']}`",
            ]
            lines.append(f"| {' | '.join(cells)} |\n")
            name = ""
    return HEAD + "".join(lines)


def against(row: dict[str, str], versions: dict[str, dict[str, str]]) -> str:
    if "package" in row:
        pins = versions.get(environment(row["test"]), versions["constraints.txt"])
        return f"the real {row['package']} {pins[normal(row['package'])]}"
    return f"documentation ({row['version']})"


def environment(test: str) -> str:
    """The file of pins that a test runs with."""
    found = re.match(r"tests/interop/test_([a-z]+)\w*\.py", test)
    return f"{found[1]}.txt" if found else "constraints.txt"


def pinned() -> dict[str, dict[str, str]]:
    """The versions that the tests run with, by file; an environment of its own has what it does not pin from constraints.txt."""
    common = _pins(ROOT / "constraints.txt")
    own = {file.name: common | _pins(file) for file in sorted((ROOT / "tests" / "interop").glob("*.txt"))}
    return {"constraints.txt": common, **own}


def _pins(file: Path) -> dict[str, str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return {normal(name): version for name, _, version in (line.partition("==") for line in lines) if version}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        fresh = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print(f"{PAGE.name} is up to date" if fresh else f"{PAGE.name} is stale; type: make docs")
        return 0 if fresh else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
