"""Write the rollouts of a run to a file that a trainer reads."""

from __future__ import annotations

import argparse
import time
from typing import Any

from windrow.cli.output import write_error, write_out
from windrow.errors import UsageError
from windrow.exports.run import BUILT_IN, Report, export, reasons
from windrow.registry import declared

PROGRESS_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run directory")
    parser.add_argument(
        "--to",
        required=True,
        metavar="FORMAT",
        help=f"{', '.join((*BUILT_IN, *declared('exporters')))}, or a class of your own as module:name",
    )
    parser.add_argument("-o", "--out", required=True, metavar="PATH", help="the file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it is there")
    choice = parser.add_argument_group("which rollouts")
    choice.add_argument("--where", metavar="WHERE", help="such as status=completed,task.source=gsm8k")
    choice.add_argument("--min-reward", type=float, metavar="R", help="only those with at least this reward")
    choice.add_argument(
        "--best-of-group", action="store_true", help="of each group the one with the highest reward"
    )
    choice.add_argument("--failed", action="store_true", help="failed and cancelled ones, too")
    settings = parser.add_argument_group("settings of a format")
    settings.add_argument("--form", choices=("hf", "openai"), help="of sft: whose chat rows (hf)")
    settings.add_argument(
        "--advantages",
        choices=("none", "grpo", "centered", "population"),
        help="advantages over each group, of formats that have them (default: the format's)",
    )
    settings.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another setting of the format; VALUE is YAML",
    )


def run(arguments: argparse.Namespace) -> int:
    report = export(
        arguments.run,
        to=arguments.to,
        out=arguments.out,
        where=arguments.where,
        min_reward=arguments.min_reward,
        best_of_group=arguments.best_of_group,
        failed=arguments.failed,
        overwrite=arguments.overwrite,
        on_progress=_Progress(),
        **_settings(arguments),
    )
    write_out(text(report))
    return 1 if report.invalid else 0


def text(report: Report) -> str:
    lines = [f"{report.out}: {report.rows:,} rows of {report.exported:,} rollouts ({report.to})"]
    if report.left_out:
        lines.append(f"left out: {reasons(report.left_out)}")
    lines += [
        f"invalid, left out: {count:,} {why} (the first is {report.first_invalid[why]})"
        for why, count in report.invalid.items()
    ]
    lines += [f"note: {count:,} {what}" for what, count in report.notes.items()]
    return "\n".join(lines)


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    named = {"form": arguments.form, "advantages": arguments.advantages}
    settings = {name: value for name, value in named.items() if value is not None}
    if arguments.set:
        from windrow.config.yamltext import NotYaml, yaml_value  # only when needed: it imports yaml

        for assignment in arguments.set:
            key, equals, value = assignment.partition("=")
            try:
                settings[key.strip()] = yaml_value(value)
            except NotYaml:
                equals = ""
            if not equals or not key.strip().isidentifier():
                raise UsageError(f"--set {assignment!r:.200}: expected KEY=VALUE, the value in YAML")
    return settings


class _Progress:
    """A line on standard error every few seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PROGRESS_S

    def __call__(self, read: int, exported: int) -> None:
        if time.monotonic() >= self._next:
            write_error(f"{read:,} rollouts read, {exported:,} exported")
            self._next = time.monotonic() + PROGRESS_S
