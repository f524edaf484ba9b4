"""Coverage, mean reward with a 95 % interval clustered by task, pass@k, tokens and time of a run."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from windrow.cli.flags import add_trust_run_argument
from windrow.cli.output import write_error, write_json, write_out
from windrow.cli.text import counts_text, mean_text, parse_reward, shorten
from windrow.cli.tracker_flags import add_track_arguments
from windrow.errors import UsageError
from windrow.registry import declared, load_declared
from windrow.stats.majority import Majority
from windrow.stats.schema import METRICS, Metrics
from windrow.stats.summary import PASS_REWARD, Stats, summarise
from windrow.store.manifest import read_manifest
from windrow.store.trust import RunTrust
from windrow.trackers.names import Named, parse_track


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run directory")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--pass-reward",
        type=parse_reward,
        default=PASS_REWARD,
        metavar="R",
        help="a rollout passes from this reward on (1)",
    )
    add_track_arguments(parser.add_argument_group("trackers"))
    parser.add_argument("--write", action="store_true", help="write metrics.json into the run directory, too")
    add_trust_run_argument(
        parser, "with --write: import the environments that it names and ask their aggregate()"
    )
    parser.add_argument(
        "--aggregate",
        metavar="NAME:URL",
        help=f"instead: the aggregates that a system's server computes over the run, as JSON (systems: {', '.join(declared('aggregates'))})",
    )
    parser.add_argument(
        "--as",
        dest="as_",
        choices=tuple(declared("reports")),
        help="instead: this system's numbers, by its names and formulas, and honest ones beside them",
    )
    parser.add_argument(
        "--iteration", type=int, metavar="N", help="of --as: only this pass over the tasks (all of them)"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.as_ is not None:
        return _report(arguments)
    if arguments.iteration is not None:
        raise UsageError("--iteration goes with --as; without it the numbers are of all passes")
    if arguments.aggregate is not None:
        return _aggregate(arguments)
    if arguments.trust_run and not arguments.write:
        raise UsageError("--trust-run goes with --write; nothing else acts on what a run names")
    trackers = [parse_track(text) for text in arguments.track or ()]
    if arguments.write:
        stats, metrics = _write(arguments)
    else:
        stats, metrics = summarise(arguments.run, pass_reward=arguments.pass_reward), None
    if arguments.json:
        write_json(stats)
    else:
        write_out(text(stats))
    if arguments.write:
        write_error(f"wrote {Path(arguments.run) / METRICS}")
    if trackers:
        _track(arguments, trackers, metrics)
    return 0


def _write(arguments: argparse.Namespace) -> tuple[Stats, Metrics]:
    """Into metrics.json, whatever stands there."""
    from windrow.stats.metrics import measure_run, write_metrics  # with the environments, which have hooks

    trust = RunTrust(Path(arguments.run), read_manifest(Path(arguments.run)), given=arguments.trust_run)
    found = measure_run(
        arguments.run, pass_reward=arguments.pass_reward, may_import=trust.may_import, warn=_warn
    )
    write_metrics(arguments.run, found)
    return found.stats, found.metrics


def _track(arguments: argparse.Namespace, trackers: list[Named], metrics: Metrics | None) -> None:
    from windrow.stats.metrics import measure_run, unchanged_metrics
    from windrow.trackers.reporting import track

    run, pass_reward = arguments.run, arguments.pass_reward
    if metrics is None:
        metrics = unchanged_metrics(run, pass_reward=pass_reward)
    if metrics is None:
        metrics = measure_run(run, pass_reward=pass_reward, warn=_warn).metrics
    upload = arguments.upload_rollouts is not False
    asyncio.run(track(Path(run), trackers, upload_rollouts=upload, metrics=metrics, warn=_warn))


def _aggregate(arguments: argparse.Namespace) -> int:
    from windrow.util.event_loop import run_loop

    name, _, address = arguments.aggregate.partition(":")
    aggregate = load_declared("aggregate", name)
    aggregates = run_loop(aggregate(arguments.run, address))
    write_json(aggregates, indent=2)
    return 0


def _report(arguments: argparse.Namespace) -> int:
    if arguments.iteration is not None and arguments.iteration < 0:
        raise UsageError(f"--iteration {arguments.iteration}: expected a number from 0 on")
    report = load_declared("report", arguments.as_)(arguments.run, iteration=arguments.iteration)
    if arguments.json:
        write_json(report.plain())
    else:
        write_out(report.text())
    return 0


def _warn(message: str) -> None:
    write_error(f"warning: {message}")


def text(stats: Stats) -> str:
    done = stats.status.get("completed", 0) + stats.status.get("truncated", 0)
    planned = f" of {stats.planned:,} planned" if stats.planned is not None else ""
    rows = [("run", stats.run)]
    if stats.episodes is not None:
        rows.append(("episodes", f"{stats.episodes:,} done{planned}"))
        planned = ""
    rows += [
        ("rollouts", f"{done:,} done{planned}, {stats.tasks:,} tasks, {stats.attempts:,} attempts"),
        ("status", counts_text(stats.status) or "none"),
        ("stop", counts_text(stats.stop) or "none"),
    ]
    if stats.unfinished_ranks:
        rows.append(("ranks", "; ".join(stats.unfinished_ranks)))
    if stats.errors:
        rows.append(("errors", counts_text(stats.errors)))
    rows.append(("grade", counts_text(stats.grade) or "none"))
    rows.append(("reward", mean_text(stats.reward) if stats.reward else "no rollout is graded"))
    rows += [(f"  {name}", mean_text(mean)) for name, mean in stats.scores.items()]
    if stats.pass_at:
        passes = "  ".join(f"pass@{k} {value:.3f}" for k, value in stats.pass_at.items())
        rows.append(("pass", f"{passes}  (reward ≥ {stats.pass_reward:g}, {stats.pass_tasks:,} tasks)"))
    if stats.majority is not None:
        rows.append(("majority", majority_text(stats.majority)))
    if stats.groups.n:
        alike = f"{stats.groups.zero_variance:,} of {stats.groups.n:,} with rewards that are all the same"
        rows.append(("groups", f"{alike} (zero variance)"))
    rows.append(
        ("tokens", f"{stats.usage.prompt_tokens:,} prompt, {stats.usage.completion_tokens:,} completion")
    )
    if stats.judge_usage is not None:
        usage = stats.judge_usage
        cost = f", cost {usage.cost:,.4g}" if usage.cost is not None else ""
        rows.append(
            ("judges", f"{usage.prompt_tokens:,} prompt, {usage.completion_tokens:,} completion tokens{cost}")
        )
    if stats.opponents:
        usage = stats.opponent_usage
        rows.append(
            (
                "opponents",
                f"{stats.opponents:,} rollouts, {usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens, in none of "
                f"the other numbers",
            )
        )
    if stats.seconds_per_rollout is not None:
        rows.append(
            (
                "time",
                f"{stats.wall_seconds:,.1f} s in all, {stats.seconds_per_rollout:.3f} s a rollout, "
                f"{stats.policy_seconds_per_rollout or 0:.3f} s of it the policy's",
            )
        )
    if stats.bad_lines:
        rows.append(("bad lines", f"{stats.bad_lines:,} left out"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def majority_text(majority: Majority) -> str:
    """By k, over which tasks; and which tasks have answers that nobody read."""
    values = "  ".join(f"majority@{k} {value:.3f}" for k, value in majority.at.items())
    text = f"{values}  ({majority.tasks:,} tasks; {majority.no_answer:,} of {majority.samples:,} without an answer)"
    if majority.unread:
        names = ", ".join(shorten(name, 40) for name in majority.unread_tasks[:3])
        text += f"; in none: {majority.unread:,} tasks whose answers no scorer reads ({names}"
        text += ", …)" if majority.unread > 3 else ")"
    return text
