"""Run tasks against a policy and write every attempt down, graded. The same command again continues the run.

windrow collect tasks.jsonl --model M --base-url http://localhost:8000/v1 -k 4
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from windrow.cli.collect_report import closing, opening, rows_text
from windrow.cli.flags import add_options
from windrow.cli.output import write_out
from windrow.cli.progress import Display
from windrow.cli.signals import Signals
from windrow.cli.tracker_flags import add_track_arguments
from windrow.collecting.collection import Collection, Summary
from windrow.collecting.opening import open_collection
from windrow.collecting.ranks import is_unasked, launched
from windrow.collecting.resolve import ResolvedRun, resolve
from windrow.collecting.running import run_collection
from windrow.config import OPTIONS, load_config
from windrow.engine.control import Control
from windrow.envs import Env
from windrow.errors import UsageError
from windrow.identity import episode_id
from windrow.tasks.loaders import describe_sources
from windrow.tasks.row_problems import list_problems
from windrow.trackers.names import trackers_of
from windrow.trackers.reporting import track
from windrow.util.event_loop import run_loop

MERGE_DEADLINE_S = 3600.0
BUDGET_EXIT = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tasks", nargs="?", help=describe_sources())
    group = add_options(parser)
    group.add_argument("--overwrite", action="store_true", help="move the old run aside and begin anew")
    group.add_argument("--redo", metavar="WHERE", help="run these again, such as status=failed,reward<0.5")
    group.add_argument("--regrade", action="store_true", help="grade what is there with changed scorers")
    group.add_argument(
        "--dry-run", action="store_true", help="print the plan and the first prompt; send nothing"
    )
    group.add_argument(
        "--no-aggregate",
        dest="aggregate",
        action="store_false",
        help="no metrics.json at the end (windrow stats RUN --write makes it)",
    )
    _add_rank_arguments(parser.add_argument_group("ranks"))
    add_track_arguments(group)
    group.add_argument("--quiet", action="store_true", help="no progress; errors are still shown")
    group.add_argument(
        "--json",
        action="store_true",
        help="the rollouts of this call as JSON lines on standard output, and nothing else there",
    )


def _add_rank_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--rank", type=int, metavar="R", help="one of several calls that share the tasks, from 0 on (RANK)"
    )
    group.add_argument("--world-size", type=int, metavar="N", help="how many they are (WORLD_SIZE)")
    group.add_argument("--rank-weights", metavar="W,W,…", help="how much of it each does, such as 2,1,1")
    group.add_argument(
        "--merge", metavar="OUT", help="rank 0: wait for the others at the end, and merge all into OUT"
    )
    group.add_argument(
        "--merge-deadline",
        type=float,
        metavar="S",
        help=f"wait for so many seconds ({MERGE_DEADLINE_S:,.0f})",
    )


def run(arguments: argparse.Namespace) -> int:
    options = {name: getattr(arguments, name, None) for name in OPTIONS}
    quiet = arguments.quiet or arguments.dry_run
    _check_merge(arguments)
    with Display(quiet=quiet, json=arguments.json and not arguments.dry_run) as display:
        display.status("reading the tasks")
        loaded = load_config(arguments.config, options, arguments.set)
        resolved = resolve(launched(loaded, os.environ))
        if arguments.merge is not None:
            from windrow.collecting.rank_merge import refuse_merge

            refuse_merge(resolved, Path(arguments.merge))
        for note in resolved.notes:
            if not arguments.quiet or is_unasked(note):
                display.say(note)
        if resolved.source.invalid:
            display.say(f"left out {list_problems(resolved.source.invalid)}")
        if arguments.dry_run:
            return _dry_run(resolved)
        display.status("reading what is done")
        collection = open_collection(
            resolved,
            overwrite=arguments.overwrite,
            redo=arguments.redo,
            regrade=arguments.regrade,
            on_warning=lambda text: display.say(f"warning: {text}"),
        )
        display.note(opening(collection))
        display.start(collection)
        signals = Signals(display.say)
        try:
            summary, control = run_loop(_collect(collection, display, signals, arguments))
        except KeyboardInterrupt:
            return signals.exit_code or 130
    display.note(closing(collection, summary, control))
    complete = summary.complete
    if _merges(collection, arguments):
        complete = _merge(collection, control, display, arguments) and complete
    if signals.exit_code is not None:
        return signals.exit_code
    if control.reason == "budget":
        return BUDGET_EXIT
    return 0 if complete else 1


def _check_merge(arguments: argparse.Namespace) -> None:
    """What would be found out only at the end is found out now."""
    if arguments.merge is None and arguments.merge_deadline is not None:
        raise UsageError("--merge-deadline: there is no --merge OUT, so nobody is waited for")
    if arguments.merge_deadline is not None and not arguments.merge_deadline >= 0:
        raise UsageError(f"--merge-deadline {arguments.merge_deadline}: expected seconds, 0 or more")


def _merges(collection: Collection, arguments: argparse.Namespace) -> bool:
    """Whether it is this call that merges. All ranks may be given the same flags."""
    rank = collection.resolved.rank
    return arguments.merge is not None and (rank is None or rank.number == 0)


def _merge(collection: Collection, control: Control, display: Display, arguments: argparse.Namespace) -> bool:
    """Make one run of all that the ranks have collected; whether nothing is missing in it."""
    from windrow.cli.merge import merged_text  # few calls merge: the others do not load what it needs
    from windrow.collecting.rank_merge import Others

    if control.stopping:
        display.note(f"not merged into {arguments.merge}, since the run was stopped")
        return False
    joined = Others(collection).join(
        Path(arguments.merge),
        lock=collection.resolved.run.lock,
        on_warning=lambda text: display.say(f"warning: {text}"),
    )
    for line in joined.lacking:
        display.say(line)
    run = collection.resolved.run
    if trackers := trackers_of(run.track):
        sending = track(
            Path(arguments.merge), trackers, upload_rollouts=run.upload_rollouts, warn=collection.warn
        )
        asyncio.run(sending)
    display.note(merged_text(arguments.merge, joined.merged))
    return joined.complete


async def _collect(
    collection: Collection, display: Display, signals: Signals, arguments: argparse.Namespace
) -> tuple[Summary, Control]:
    control = Control()
    with signals.watch(control, lambda: collection.progress.in_flight):
        summary = await run_collection(
            collection,
            control=control,
            on_commit=display.on_commit if display.wants_rollouts else None,
            on_progress=display.on_progress if display.wants_progress else None,
            aggregate=arguments.aggregate,
            merged_later=_merges(collection, arguments),
        )
        if _merges(collection, arguments):
            from windrow.collecting.rank_merge import Others

            deadline_s = MERGE_DEADLINE_S if arguments.merge_deadline is None else arguments.merge_deadline
            await Others(collection).done(control, deadline_s, display.status)
    return summary, control


def _dry_run(resolved: ResolvedRun) -> int:
    """The plan's size, the first prompt and the first ids; nothing is written or sent."""
    collection = open_collection(resolved, stored=False)
    if not len(collection.plan):
        write_out("no task is this rank's")
        return 0
    slot = collection.plan.slot(0)
    setup = resolved.context.task_setup(slot.task).episode
    env = setup.env(setup.env_settings, resolved.context.env_context(slot))
    what = "episodes" if resolved.matches else "rollouts"
    write_out(
        f"{len(collection.plan.tasks):,} tasks × {resolved.run.samples} = {len(collection.plan):,} {what}"
    )
    write_out(f"run directory: {resolved.out}")
    write_out(f"behaviour: {resolved.behaviour.hash}")
    write_out(f"env {setup.env_name}, agent {setup.agent_name}, model {resolved.context.policy.model}")
    write_out(f"scorers: {', '.join(scorer.name for scorer in setup.scorers) or 'none'}")
    write_out(rows_text(resolved))
    write_out(f"first task: {slot.task.key} (digest {slot.task.digest})")
    slots = [collection.plan.slot(number) for number in range(min(4, len(collection.plan)))]
    ids = [episode_id(slot.group, slot.sample) if resolved.matches else slot.id for slot in slots]
    write_out(f"first {what}: {', '.join(ids)}")
    if isinstance(env, Env) and setup.env.__module__.startswith("windrow.") and not env.connects:
        observation = asyncio.run(env.reset(slot.task))
        write_out("first prompt:")
        for message in observation.messages:
            role, content = (
                (message["role"], message.get("content"))
                if isinstance(message, dict)
                else (message.role, message.text)
            )
            write_out(f"  [{role}] {content}")
    else:
        write_out(f"first prompt: made by {setup.env_name} when it runs")
    return 0
