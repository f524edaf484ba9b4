"""Run tasks against a policy and write every attempt down, graded. The same command again continues the run.

windrow collect tasks.jsonl --model M --base-url http://localhost:8000/v1 -k 4
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import get_args

from windrow.cli.merge import merged_text
from windrow.cli.progress import Display
from windrow.cli.report import closing, opening
from windrow.cli.signals import Signals
from windrow.cli.tracking import add_track_arguments
from windrow.collection import Collection, Summary, open_collection
from windrow.collector import run_collection
from windrow.config import OPTIONS, DialectName, load_config, parse_mcp, parse_tool
from windrow.engine.control import Control
from windrow.engine.loop import run_loop
from windrow.envs import Env
from windrow.errors import UsageError
from windrow.identity import episode_id
from windrow.joining import DEADLINE_S, Others
from windrow.prepare import Prepared, prepare
from windrow.ranking import is_unasked, launched
from windrow.store.directory import refuse_strangers
from windrow.tasks.loaders import FORMS
from windrow.tasks.mapping import MAP_HELP
from windrow.tasks.scan import list_problems
from windrow.trackers.names import trackers_of
from windrow.trackers.reporting import track

BUDGET_EXIT = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tasks", nargs="?", help=FORMS)
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
        "--merge-deadline", type=float, metavar="S", help=f"wait for so many seconds ({DEADLINE_S:,.0f})"
    )


def add_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The flags that say what a run is; returns the group of those that are about the run itself."""
    group = parser.add_argument_group("tasks")
    group.add_argument("--source", help="the data set's name (default: the file's stem)")
    group.add_argument(
        "--split", help="a label, part of the identity: train, test, …; with `datasets`, which of them"
    )
    group.add_argument(
        "--reuse-prepared",
        action="store_true",
        default=None,
        help="take what was loaded before, if its input is the same",
    )
    group.add_argument("--limit", type=int, metavar="N", help="only the first N tasks")
    group.add_argument("--shuffle", type=int, metavar="SEED", help="order the tasks by a seeded shuffle")
    group.add_argument("--skip-invalid", action="store_true", default=None, help="leave invalid rows out")
    group.add_argument(
        "--draw",
        choices=("uniform", "ratio"),
        help="only some, by chance; ratio: by `draw.ratio` of --config",
    )
    group.add_argument("--draw-n", type=int, metavar="N", help="how many are drawn")
    group.add_argument(
        "--draw-seed",
        type=int,
        metavar="SEED",
        help="of the draw (made from the source's name, and recorded)",
    )
    group.add_argument(
        "--blocklist",
        metavar="FILE",
        help="leave tasks on these domains out of split train: WebGym's JSON lines",
    )
    group.add_argument(
        "--blocklist-hours", type=float, metavar="H", help="how long a domain stays blocked (12)"
    )
    group.add_argument(
        "--blocklist-at", metavar="TIME", help="the time to go by, such as 2026-01-31T12:00Z (now)"
    )
    group.add_argument("--map", action="append", metavar="FIELD=SOURCE[|FILTER]", help=MAP_HELP)
    group.add_argument("--prompt", metavar="FILE", help="a prompt template: YAML with system, user, messages")
    group = parser.add_argument_group("policy")
    group.add_argument(
        "--model", help="the model's name at the endpoint; or local[:FILE.gguf], scripted:FILE"
    )
    group.add_argument(
        "--base-url",
        action="append",
        metavar="URL",
        help="an OpenAI-compatible endpoint, …/v1; repeats: more that serve the same model",
    )
    group.add_argument(
        "--api-key-env", metavar="NAME", help="the variable that holds the key (OPENAI_API_KEY)"
    )
    group.add_argument(
        "--dialect",
        choices=get_args(DialectName),
        help="what the endpoint speaks (auto: it is asked)",
    )
    group.add_argument("--temperature", type=float, metavar="T", help="of sampling (the endpoint's)")
    group.add_argument("--top-p", type=float, metavar="P", help="of sampling (the endpoint's)")
    group.add_argument(
        "--max-tokens", type=int, metavar="N", help="of one reply (the endpoint's; local: 512)"
    )
    group.add_argument("--seeds", choices=("none", "id", "sample"), help="the seed that is sent (none)")
    group.add_argument(
        "--capture",
        choices=("none", "text", "logprobs", "tokens"),
        help="how much of a reply's tokens is kept (text; tokens for local)",
    )
    group.add_argument(
        "--top-logprobs",
        type=int,
        metavar="K",
        help="keep the K likeliest tokens at each place of a reply (none)",
    )
    group.add_argument("--call-retries", type=int, metavar="N", help="retries of one model call (5)")
    group.add_argument("--requests-per-minute", type=float, metavar="N", help="at most so many model calls")
    group.add_argument(
        "--tokens-per-minute", type=float, metavar="N", help="at most so many, prompts included"
    )
    group.add_argument(
        "--max-outage", type=float, metavar="S", help="seconds to wait for endpoints that are all down (600)"
    )
    group.add_argument(
        "--tool-calls",
        choices=("auto", "native", "hermes", "llama", "xml", "react", "fenced"),
        help="how the model writes tool calls (auto: by its name, else native)",
    )
    group = parser.add_argument_group("episode")
    group.add_argument("--env", help="problem, prompt, tool, chat, or module:Class")
    group.add_argument(
        "--agent", help="chat, module:Class or function, or nemo-gym:URL of a head server of NeMo Gym"
    )
    group.add_argument(
        "--scorer",
        dest="scorers",
        action="append",
        metavar="NAME[=WEIGHT]",
        help="exact, contains, number, choice, regex, math or module:function; repeats",
    )
    add_judge_arguments(group)
    group.add_argument(
        "--tool",
        dest="tools",
        action="append",
        type=parse_tool,
        metavar="MODULE:FUNCTION",
        help="a tool; repeats",
    )
    group.add_argument(
        "--mcp",
        dest="tools",
        action="append",
        type=parse_mcp,
        metavar="COMMAND_OR_URL",
        help="the tools of an MCP server; repeats",
    )
    group.add_argument(
        "--allow-tool",
        dest="allow_tools",
        action="append",
        metavar="PATTERN",
        help="only these tools; repeats; * and ?",
    )
    group.add_argument(
        "--deny-tool",
        dest="deny_tools",
        action="append",
        metavar="PATTERN",
        help="not these tools, allowed or not",
    )
    group.add_argument("--max-turns", type=int, metavar="N", help="model calls in an episode (50)")
    group.add_argument("--max-episode-tokens", type=int, metavar="N", help="prompt and replies together")
    group.add_argument("--max-tool-calls", type=int, metavar="N", help="in an episode")
    group.add_argument("--call-timeout", type=float, metavar="S", help="seconds for one model call (600)")
    group.add_argument("--tool-timeout", type=float, metavar="S", help="seconds for one tool call (60)")
    group.add_argument("--score-timeout", type=float, metavar="S", help="seconds for one grading (60)")
    group.add_argument("--episode-timeout", type=float, metavar="S", help="seconds for an episode")
    group = parser.add_argument_group("run")
    group.add_argument("-k", "--samples", "--group-size", type=int, metavar="K", help="rollouts a task (1)")
    group.add_argument(
        "--pass",
        "--iteration",
        dest="pass_",
        type=int,
        metavar="N",
        help="an epoch or iteration number (0)",
    )
    group.add_argument(
        "--concurrency",
        type=_number_or_auto,
        metavar="N",
        help="episodes at a time (64; local: 16), or auto: as many as the endpoint bears",
    )
    group.add_argument(
        "--env-concurrency", action="append", metavar="NAME=N", help="of one environment; repeats"
    )
    group.add_argument("--agent-concurrency", action="append", metavar="NAME=N", help="of one agent; repeats")
    group.add_argument("--workers", type=int, metavar="N", help="processes that share the episodes (1)")
    group.add_argument(
        "--no-serve",
        "--no-services",
        dest="serve",
        action="store_false",
        default=None,
        help="start no `services`: they run already",
    )
    group.add_argument("--retries", type=int, metavar="N", help="new attempts of a failed rollout (1)")
    group.add_argument(
        "--min-group",
        type=float,
        metavar="R",
        help="judge a group together from this share of its samples on (1: all of them)",
    )
    group.add_argument(
        "--max-failure-rate",
        type=float,
        metavar="R",
        help="stop when more than this share fails, such as 0.2",
    )
    group.add_argument("--budget-tokens", type=int, metavar="N", help="stop after so many, prompts included")
    group.add_argument(
        "--budget-cost", type=float, metavar="X", help="stop after it, by the `prices` of --config"
    )
    group.add_argument(
        "--budget-seconds", type=float, metavar="S", help="stop after so long, and cut what runs"
    )
    group.add_argument(
        "--out",
        metavar="DIR",
        help="the run directory (runs/<source>-<model>-<fingerprint>); {rank} is the rank",
    )
    group.add_argument(
        "--no-lock", dest="lock", action="store_false", default=None, help="do not lock the run"
    )
    group.add_argument(
        "--config", action="append", default=[], metavar="FILE", help="YAML; repeats, later wins"
    )
    group.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="such as limits.max_turns=5"
    )
    return group


def add_judge_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--judge", metavar="MODEL", help="the model that scorers ask, such as rubric; or local"
    )
    group.add_argument("--judge-base-url", action="append", metavar="URL", help="where it is served; repeats")
    group.add_argument("--judge-api-key-env", metavar="NAME", help="the variable that holds its key")
    group.add_argument(
        "--judge-concurrency", type=int, metavar="N", help="calls of it at a time (64; local: 16)"
    )


def _number_or_auto(text: str) -> int | str:
    return text if text == "auto" else int(text)


def run(arguments: argparse.Namespace) -> int:
    options = {name: getattr(arguments, name, None) for name in OPTIONS}
    quiet = arguments.quiet or arguments.dry_run
    _check_merge(arguments)
    with Display(quiet=quiet, json=arguments.json and not arguments.dry_run) as display:
        display.status("reading the tasks")
        loaded = load_config(arguments.config, options, arguments.set)
        prepared = prepare(launched(loaded, os.environ))
        for note in prepared.notes:
            if not arguments.quiet or is_unasked(note):
                display.say(note)
        if prepared.source.invalid:
            display.say(f"left out {list_problems(prepared.source.invalid)}")
        if arguments.dry_run:
            return _dry_run(prepared)
        display.status("reading what is done")
        collection = open_collection(
            prepared,
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
    if arguments.merge is not None:
        refuse_strangers(Path(arguments.merge))


def _merges(collection: Collection, arguments: argparse.Namespace) -> bool:
    """Whether it is this call that merges. All ranks may be given the same flags."""
    rank = collection.prepared.rank
    return arguments.merge is not None and (rank is None or rank.number == 0)


def _merge(collection: Collection, control: Control, display: Display, arguments: argparse.Namespace) -> bool:
    """Make one run of all that the ranks have collected; whether nothing is missing in it."""
    if control.stopping:
        display.note(f"not merged into {arguments.merge}, since the run was stopped")
        return False
    joined = Others(collection).join(
        Path(arguments.merge),
        lock=collection.prepared.run.lock,
        on_warning=lambda text: display.say(f"warning: {text}"),
    )
    for line in joined.lacking:
        display.say(line)
    run = collection.prepared.run
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
            on_progress=display.on_progress,
            aggregate=arguments.aggregate,
            merged_later=_merges(collection, arguments),
        )
        if _merges(collection, arguments):
            deadline_s = DEADLINE_S if arguments.merge_deadline is None else arguments.merge_deadline
            await Others(collection).done(control, deadline_s, display.status)
    return summary, control


def _dry_run(prepared: Prepared) -> int:
    """The plan's size, the first prompt and the first ids; nothing is written or sent."""
    collection = open_collection(prepared, stored=False)
    if not len(collection.plan):
        print("no task is this rank's")
        return 0
    slot = collection.plan.slot(0)
    cast = prepared.world.cast(slot.task)
    env = cast.env(cast.env_settings, prepared.world.context(slot))
    what = "episodes" if prepared.matches else "rollouts"
    print(f"{len(collection.plan.tasks):,} tasks × {prepared.run.samples} = {len(collection.plan):,} {what}")
    print(f"run directory: {prepared.out}")
    print(f"behaviour: {prepared.behaviour.hash}")
    print(f"env {cast.env_name}, agent {cast.agent_name}, model {prepared.world.policy.model}")
    print(f"scorers: {', '.join(scorer.name for scorer in cast.scorers) or 'none'}")
    print(f"first task: {slot.task.key} (digest {slot.task.digest})")
    slots = [collection.plan.slot(number) for number in range(min(4, len(collection.plan)))]
    ids = [episode_id(slot.group, slot.sample) if prepared.matches else slot.id for slot in slots]
    print(f"first {what}: {', '.join(ids)}")
    if isinstance(env, Env) and cast.env.__module__.startswith("windrow.") and not env.connects:
        observation = asyncio.run(env.reset(slot.task))
        print("first prompt:")
        for message in observation.messages:
            role, content = (
                (message["role"], message.get("content"))
                if isinstance(message, dict)
                else (message.role, message.text)
            )
            print(f"  [{role}] {content}")
    else:
        print(f"first prompt: made by {cast.env_name} when it runs")
    return 0
