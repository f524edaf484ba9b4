"""Models that run in this process (`--model local`): fetch them, list them."""

from __future__ import annotations

import argparse
import sys

from windrow.policies.models import DEFAULT_MODEL, MODELS, cache_directory, find_model, pull


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=type(parser))
    fetch = actions.add_parser("pull", help="fetch a model into the cache")
    fetch.add_argument("name", nargs="?", default=DEFAULT_MODEL, help=f"of the model ({DEFAULT_MODEL})")
    actions.add_parser("list", help="what can be fetched, and what is here")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "pull":
        path = pull(find_model(arguments.name), lambda text: print(text, file=sys.stderr, flush=True))
        print(path)
        return 0
    print(f"cache: {cache_directory()}")
    for model in MODELS.values():
        here = "here" if model.path.exists() else "windrow models pull " + model.name
        print(f"{model.name}  {model.size_bytes / 1e6:.0f} MB  {here}  {model.about}")
    return 0
