"""Look at task files before running them."""

from __future__ import annotations

import argparse

import msgspec

from windrow.cli.flags import add_trust_argument
from windrow.cli.output import write_error, write_out
from windrow.collecting.resolve import resolve
from windrow.config import load_config
from windrow.engine.components import Overrides
from windrow.policies import Policy
from windrow.policies.base import ANY_SAMPLING, OWN_FIELDS
from windrow.tasks.loaders import describe_sources
from windrow.tasks.mapping import MAP_HELP
from windrow.tasks.row_problems import list_problems


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=type(parser))
    check = actions.add_parser("check", help="read every row and say what is wrong", description=__doc__)
    check.add_argument("file", help=describe_sources())
    check.add_argument("--env", help="the environment the rows are for (problem)")
    check.add_argument("--split", help="the split of an hf: data set")
    check.add_argument("--map", action="append", metavar="FIELD=SOURCE[|FILTER]", help=MAP_HELP)
    check.add_argument("--skip-invalid", action="store_true", default=None, help="leave invalid rows out")
    add_trust_argument(check)
    check.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="a configuration, of which only `trust` is used",
    )


class _AnyPolicy(Policy):
    """Stands for a policy that is not known yet: it takes whatever a row asks for."""

    accepts = ANY_SAMPLING
    own_fields = OWN_FIELDS


def run(arguments: argparse.Namespace) -> int:
    options = {name: getattr(arguments, name) for name in ("env", "split", "map", "skip_invalid")}
    options["tasks"] = arguments.file
    trust = load_config(arguments.config, {"trust_rows": arguments.trust_rows}).trust
    loaded = msgspec.structs.replace(load_config((), options), trust=trust)
    resolved = resolve(loaded, Overrides(policy=_AnyPolicy()))
    source = resolved.source
    repeated = sum(1 for position in range(len(source)) if source.identity(position)[1])
    write_out(f"{arguments.file}: {len(source):,} valid tasks")
    if repeated:
        write_out(f"{repeated:,} of them repeat an earlier row")
    for note in resolved.notes:
        write_out(note)
    if source.invalid:
        write_error(f"left out {list_problems(source.invalid)}")
    return 0
