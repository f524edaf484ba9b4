"""Check that a run's tokens fit together and its lines are whole; exit 1 where something is fatal for training."""

from __future__ import annotations

import argparse

from windrow.cli.output import write_json, write_out
from windrow.exports.tokens.verify import TokenCheck, verify_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run directory")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(arguments: argparse.Namespace) -> int:
    verdict = verify_run(arguments.run)
    if arguments.json:
        write_json(verdict)
    else:
        write_out(text(verdict))
    return 1 if verdict.fatal else 0


def text(verdict: TokenCheck) -> str:
    lines = [
        f"{verdict.run}: {verdict.attempts:,} attempts, {verdict.exact:,} exact, "
        f"{verdict.trained_tokens:,} tokens to train"
    ]
    for finding in verdict.findings:
        lines.append(f"{finding.level:<7}  {finding.count:,} {finding.what} ({finding.check})")
        lines += [f"         {example}" for example in finding.examples]
    lines.append(f"{verdict.fatal:,} fatal, {verdict.warnings:,} warnings")
    return "\n".join(lines)
