"""Make a run of what another system has written, also of what it left half finished. The flags are those of the `collect` that continues it.

windrow import --from SYSTEM rollouts.jsonl --agent SYSTEM:http://127.0.0.1:11000 --out runs/mine
"""

from __future__ import annotations

import argparse

from windrow.cli.flags import add_options
from windrow.cli.output import write_error, write_out
from windrow.collecting.importing import Imported, Importer, import_run
from windrow.collecting.resolve import resolve
from windrow.config import OPTIONS, load_config
from windrow.registry import declared, load_declared
from windrow.tasks.row_problems import list_problems
from windrow.util.event_loop import run_loop


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rollouts", help="the rollouts that were written")
    parser.add_argument(
        "--from",
        dest="system",
        required=True,
        choices=tuple(declared("importers")),
        help="who has written them",
    )
    parser.add_argument(
        "--inputs", metavar="FILE", help="their materialised inputs (beside the rollouts, by their name)"
    )
    parser.add_argument(
        "--failures", metavar="FILE", help="what failed (beside the rollouts, if it is there)"
    )
    parser.add_argument("--quiet", action="store_true", help="only errors and warnings")
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    open_files = load_declared("importer", arguments.system)
    importer: Importer = open_files(arguments.rollouts, inputs=arguments.inputs, failures=arguments.failures)
    options = {name: getattr(arguments, name, None) for name in OPTIONS}
    options["tasks"] = str(importer.inputs)
    resolved = resolve(load_config(arguments.config, options, arguments.set))
    for note in () if arguments.quiet else resolved.notes:
        write_error(note)
    if resolved.source.invalid:
        write_error(f"left out {list_problems(resolved.source.invalid)}")
    imported = run_loop(
        import_run(resolved, importer, on_warning=lambda text: write_error(f"warning: {text}"))
    )
    write_out(_text(str(resolved.out), importer, imported))
    return 0


def _text(run: str, importer: Importer, imported: Imported) -> str:
    summary = imported.summary
    lines = [f"{run}: {imported.rollouts:,} rollouts and {imported.failures:,} failed attempts imported"]
    if imported.skipped:
        lines.append(f"{imported.skipped:,} were there already")
    left = summary.planned - summary.done
    if left:
        lines.append(
            f"{summary.done:,} of {summary.planned:,} are done; windrow collect {importer.inputs} with the same flags runs the rest"
        )
    else:
        lines.append(f"all {summary.planned:,} are done: windrow stats {run}")
    return "\n".join(lines)
