"""Models that run in this process (`--model local`): fetch them, list them."""

from __future__ import annotations

import argparse

from windrow.cli.output import write_error, write_out
from windrow.policies.models import DEFAULT_MODEL, MODELS, cache_directory, find_model, pull


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=type(parser))
    fetch = actions.add_parser("pull", help="fetch a model into the cache")
    fetch.add_argument("name", nargs="?", default=DEFAULT_MODEL, help=f"of the model ({DEFAULT_MODEL})")
    actions.add_parser("list", help="what can be fetched, and what is here")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "pull":
        path = pull(find_model(arguments.name), write_error)
        write_out(path)
        return 0
    write_out(f"cache: {cache_directory()}")
    for model in MODELS.values():
        here = "here" if model.path.exists() else "windrow models pull " + model.name
        write_out(f"{model.name}  {model.size_bytes / 1e6:.0f} MB  {here}  {model.about}")
    return 0
