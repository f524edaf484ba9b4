"""Write docs/cli.md from the argument parsers; `--check` says whether it is up to date.

The text is laid out here, not by argparse, whose help differs from one Python to the next.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from windrow.cli.main import COMMANDS, Parser, module_of

BACKSLASH = "\\"
PAGE = Path(__file__).with_name("cli.md")
HEAD = """\
# Commands

Written by `make docs` from the commands themselves. Defaults stand in parentheses. Flags cannot be abbreviated. Every
command takes `--help`, and `--debug`, which shows tracebacks. `windrow --version` prints the version.

| code | meaning |
| --- | --- |
| 0 | all that was planned is done and graded |
| 1 | not all of it: some rollouts failed; or the endpoint or the disk did |
| 2 | wrong usage, or refused |
| 130, 143 | stopped by SIGINT, or by SIGTERM |
"""


def page() -> str:
    parts = [HEAD]
    for name in COMMANDS:
        module = import_module(module_of(name))
        parser = Parser(prog=f"windrow {name}")
        module.add_arguments(parser)
        about, *examples = (module.__doc__ or "").strip().split("\n\n")
        below = next((a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
        parts += [f"## {parser.prog}\n", f"{about}\n"]
        if below is None:
            parts += command(parser, examples)
            continue
        for choice in below._choices_actions:
            found = below.choices[choice.dest]
            parts += [f"### {found.prog}\n", f"{sentence(choice.help or '')}\n", *command(found, examples)]
    return "\n".join(parts)


def command(parser: argparse.ArgumentParser, examples: list[str]) -> Iterator[str]:
    """How it is typed, and what each of its arguments is."""
    yield "".join(f"    {line}\n" for line in [usage(parser), *examples])
    theirs = borrowed(parser)

    def own(actions: list[argparse.Action]) -> list[argparse.Action]:
        return [
            action
            for action in actions
            if shown(action) and not theirs & {*action.option_strings, action.dest}
        ]

    groups = [(group.title, own(group._group_actions)) for group in parser._action_groups]
    positional, options, *named = groups
    for title, actions in [("argument", positional[1] + options[1]), *named]:
        if actions:
            yield "\n".join([f"| {title} | |", "| --- | --- |", *map(row, actions), ""])
    if theirs:
        whole = any(action.dest == "redo" for action in parser._actions)
        yield f"It takes the {'arguments' if whole else 'flags'} of `windrow collect`{'' if whole else ' that say what a run is'}.\n"


def usage(parser: argparse.ArgumentParser) -> str:
    positional = [action for action in parser._actions if not action.option_strings]
    names = [f"[{place(action)}]" if action.nargs == "?" else place(action) for action in positional]
    flags = [action for action in parser._actions if action.option_strings and shown(action)]
    return " ".join([parser.prog, *names, *(["[FLAGS]"] if flags else [])])


def row(action: argparse.Action) -> str:
    names = action.option_strings or [place(action)]
    value = f" {place(action)}" if action.option_strings and action.nargs != 0 else ""
    spelled = ", ".join(f"`{name}{value}`" for name in names)
    assert action.help, f"{names[0]} has no help"
    return f"| {escaped(spelled)} | {escaped(action.help).replace('<', BACKSLASH + '<')} |"


def escaped(cell: str) -> str:
    return cell.replace("|", BACKSLASH + "|")


def place(action: argparse.Action) -> str:
    """What stands for the value."""
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or action.dest.upper())


def shown(action: argparse.Action) -> bool:
    if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
        return False
    return action.dest != "debug" and action.help != argparse.SUPPRESS


def borrowed(parser: argparse.ArgumentParser) -> set[str]:
    """The arguments that a command has from `windrow collect`."""
    collect = import_module("windrow.cli.collect")
    mine, flags, whole = set(parser._option_string_actions), Parser(), Parser()
    collect.add_options(flags)
    if parser.prog == "windrow collect" or not set(flags._option_string_actions) <= mine:
        return set()
    collect.add_arguments(whole)
    taken = whole if set(whole._option_string_actions) <= mine else flags
    return {name for action in taken._actions for name in action.option_strings or [action.dest]}


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


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
