"""What a docstring says of a function and of each argument: Google's, NumPy's and Sphinx's ways of writing it."""

from __future__ import annotations

import re
from typing import NamedTuple

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|Other Parameters|See Also):?\s*$"
)
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY = re.compile(r"\*{0,2}(\w+)\s*(?::.*)?$")
_SPHINX = re.compile(r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)")


class Docstring(NamedTuple):
    summary: str  # all that stands before the sections
    arguments: dict[str, str]


def parse_docstring(text: str) -> Docstring:
    """`text` without its indentation, as `inspect.getdoc` gives it."""
    lines = text.splitlines()
    start = next(
        (n for n, line in enumerate(lines) if _SECTION.match(line) or line.startswith(":")), len(lines)
    )
    arguments: dict[str, str] = {}
    name: str | None = None
    section = ""
    indent: int | None = None  # of the entries of this section
    for number, line in enumerate(lines[start:], start):
        underlined = number + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[number + 1].strip())
        if _SECTION.match(line):
            section = "numpy" if underlined else "google"
            if not line.startswith(("Args", "Arguments", "Parameters")):
                section = ""
            name, indent = None, None
            continue
        depth = len(line) - len(line.lstrip())
        sphinx = _SPHINX.match(line)
        if sphinx:
            name, section = sphinx[1], "sphinx"
            arguments[name] = sphinx[2]
            continue
        if line.startswith(":") or re.fullmatch(r"-{3,}", line.strip()):
            name = None if line.startswith(":") else name
            continue
        if not line.strip() or not section:
            continue
        if section != "sphinx":
            indent = depth if indent is None else indent
            entry = (
                (_NUMPY if section == "numpy" else _GOOGLE).match(line.strip()) if depth == indent else None
            )
            if entry:
                name = entry[1]
                arguments[name] = "" if section == "numpy" else entry[2]
                continue
        if name is not None:
            arguments[name] = f"{arguments[name]} {line.strip()}".strip()
    described = {name: description for name, description in arguments.items() if description}
    return Docstring("\n".join(lines[:start]).strip(), described)
