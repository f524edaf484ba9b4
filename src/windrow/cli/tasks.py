"""Look at task files before running them."""

from __future__ import annotations

import argparse
import sys

from windrow.config import load_config
from windrow.policies import Policy
from windrow.prepare import Parts, prepare
from windrow.tasks.scan import list_problems

HELP = "check a task file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=type(parser))
    check = actions.add_parser("check", help="read every row and say what is wrong", description=__doc__)
    check.add_argument("file", help="a .jsonl or .json file of tasks; - for standard input")
    check.add_argument("--env", help="the environment the rows are for (problem)")
    check.add_argument("--skip-invalid", action="store_true", default=None, help="leave invalid rows out")


class _AnyPolicy(Policy):
    """Stands for a policy that is not known yet: it takes whatever a row asks for."""

    @property
    def accepts(self) -> frozenset[str]:  # type: ignore[override]
        from windrow.config import Sampling

        return frozenset(Sampling.__struct_fields__)


def run(arguments: argparse.Namespace) -> int:
    options = {"tasks": arguments.file, "env": arguments.env, "skip_invalid": arguments.skip_invalid}
    prepared = prepare(load_config((), options), Parts(policy=_AnyPolicy()))
    source = prepared.source
    repeated = sum(1 for position in range(len(source)) if source.identity(position)[1])
    print(f"{arguments.file}: {len(source):,} valid tasks")
    if repeated:
        print(f"{repeated:,} of them repeat an earlier row")
    for note in prepared.notes:
        print(note)
    if source.invalid:
        print(f"left out {list_problems(source.invalid)}", file=sys.stderr)
    return 0
