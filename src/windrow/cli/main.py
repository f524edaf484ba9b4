"""`windrow`: arguments in, exit code out.

0: all planned is done. 1: not all, or the endpoint or the store failed. 2: usage, or refused. 130: SIGINT.
143: SIGTERM.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from windrow.cli.output import printing, write_error, write_out, write_traceback
from windrow.errors import UsageError, WindrowError
from windrow.version import __version__

COMMANDS = {
    "collect": "run tasks, record and grade every attempt",
    "import": "make a run of what another system has written",
    "merge": "make one run of several",
    "rescore": "judge a run's rollouts again",
    "show": "show rollouts, or one transcript",
    "replay": "play a rollout again with its recorded replies",
    "stats": "numbers of a run, with their denominators",
    "profile": "how hard each task is, and which to keep",
    "export": "write a run as a file for a trainer",
    "tokens": "training sequences, and where they fork",
    "verify": "check a run's tokens and lines",
    "ls": "list runs",
    "tasks": "check a task file",
    "config": "show the resolved configuration",
    "models": "fetch and list local models",
    "doctor": "what is installed, what an endpoint can do",
    "schema": "print the JSON Schema of a rollout",
    "init": "begin an environment of your own",
}


def module_of(command: str) -> str:
    """Where a command is; one of them has a name that no module can have."""
    return f"windrow.cli.{'import_' if command == 'import' else command}"


class Parser(argparse.ArgumentParser):
    """Refuses abbreviations, and answers a misspelt flag with the nearest right one."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def flags(self) -> list[str]:
        """Every flag of this parser and of the commands below it."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        below = (action.choices for action in self._actions if isinstance(action.choices, dict))
        return flags + [flag for parsers in below for parser in parsers.values() for flag in parser.flags()]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    with printing():
        return _exit_code(arguments, debug="--debug" in arguments)


def _exit_code(arguments: list[str], *, debug: bool) -> int:
    try:
        return _run(arguments)
    except WindrowError as problem:
        if debug:
            write_traceback()
        else:
            write_error(f"windrow: {problem}")
        return 2 if isinstance(problem, UsageError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone (`windrow show … | head`): nothing more to say
        return 1
    except Exception as problem:
        if debug:
            write_traceback()
        else:
            what = f"{type(problem).__name__}: {problem}"
            write_error(f"windrow: internal error: {what} (--debug shows where)")
        return 1


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        write_out(f"windrow {__version__}")
        return 0
    parser = Parser(
        prog="windrow", description="Collect rollouts: run tasks against a policy, record, grade."
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    _check_command(wanted)
    subparsers: dict[str, Parser] = {}
    for name, about in COMMANDS.items():
        # Only the wanted command's module is imported, so that `windrow ls` does not pay for an HTTP client.
        module = import_module(module_of(name)) if name == wanted else None
        description = module.__doc__ if module else None
        subparsers[name] = commands.add_parser(name, help=about, description=description)
        if module is not None:
            subparsers[name].add_argument("--debug", action="store_true", help="show tracebacks")
            module.add_arguments(subparsers[name])
    parsed, unknown = parser.parse_known_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 0
    unknown = [argument for argument in unknown if argument != "--debug"]  # taken at any place
    if unknown:
        raise UsageError(_unknown_flag(unknown[0], subparsers[parsed.command]))
    return int(import_module(module_of(parsed.command)).run(parsed))


def _check_command(wanted: str | None) -> None:
    if wanted is not None and wanted not in COMMANDS:
        from windrow.config import nearest

        raise UsageError(
            f"unknown command {wanted!r}{nearest(wanted, COMMANDS)} (commands: {', '.join(COMMANDS)})"
        )


def _unknown_flag(argument: str, parser: Parser) -> str:
    from windrow.config import nearest

    if not argument.startswith("-"):
        return f"unexpected argument {argument!r} (see {parser.prog} --help)"
    name = argument.partition("=")[0]
    return f"unknown flag {name}{nearest(name, parser.flags())} (see {parser.prog} --help)"
