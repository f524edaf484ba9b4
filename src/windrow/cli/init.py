"""Write the beginnings of something of your own: `windrow init env NAME` writes an environment, its test and tasks."""

from __future__ import annotations

import argparse
import keyword
from importlib.resources import files
from pathlib import Path

from windrow.cli.output import write_out
from windrow.errors import UsageError

TEMPLATES = {"{}.py": "env.py.txt", "test_{}.py": "test_env.py.txt", "{}_tasks.jsonl": "tasks.jsonl.txt"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="WHAT", parser_class=type(parser))
    env = actions.add_parser("env", help="an environment with a passing test", description=__doc__)
    env.add_argument("name", help="the name of its module, such as my_game")
    env.add_argument("--to", default=".", metavar="DIRECTORY", help="where to write it (here)")


def run(arguments: argparse.Namespace) -> int:
    name, folder = arguments.name, Path(arguments.to)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{name!r} cannot be the name of a Python module: use letters, digits and _")
    written = {folder / to.format(name): text for to, text in _texts(name).items()}
    for path in written:
        if path.exists():
            raise UsageError(f"{path} is there already; nothing was written")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in written.items():
            path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise UsageError(f"cannot write to {folder}: {problem.strerror}") from None
    for path in written:
        write_out(path)
    write_out(f"try it:  python -m pytest {next(path for path in written if path.name.startswith('test_'))}")
    return 0


def _texts(name: str) -> dict[str, str]:
    class_name = "".join(part[:1].upper() + part[1:] for part in name.split("_")) or name
    templates = files("windrow.cli") / "templates"
    return {
        to: (templates / template)
        .read_text(encoding="utf-8")
        .replace("__CLASS__", class_name)
        .replace("__NAME__", name)
        for to, template in TEMPLATES.items()
    }
