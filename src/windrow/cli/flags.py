"""The flags that say what a run is, for the commands that make one or continue it."""

from __future__ import annotations

import argparse
from typing import get_args

from windrow.config import DialectName, parse_mcp, parse_tool
from windrow.registry import declared
from windrow.tasks.mapping import MAP_HELP


def add_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """All of them, in their groups; returns the group of those that are about the run itself."""
    _add_tasks_options(parser.add_argument_group("tasks"))
    _add_policy_options(parser.add_argument_group("policy"))
    _add_episode_options(parser.add_argument_group("episode"))
    group = parser.add_argument_group("run")
    _add_run_options(group)
    _add_aliases(parser)
    return group


def _add_aliases(parser: argparse.ArgumentParser) -> None:
    """Spellings that other collectors have for the same thing. They are taken and not shown."""
    for flag, field, kind in (
        ("--max-steps", "max_turns", int),
        ("--max-concurrent", "concurrency", _concurrency),
        ("--num-samples-in-parallel", "concurrency", _concurrency),
        ("--num-repeats", "samples", int),
    ):
        parser.add_argument(flag, dest=field, type=kind, default=None, help=argparse.SUPPRESS)
    for flag, field in (("--allowed-tools", "allow_tools"), ("--disallowed-tools", "deny_tools")):
        parser.add_argument(flag, dest=field, action="extend", type=_names, help=argparse.SUPPRESS)


def _names(text: str) -> list[str]:
    """Names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _add_tasks_options(group: argparse._ArgumentGroup) -> None:
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
    add_trust_argument(group)
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
        help="leave tasks on these domains out of split train: JSON lines with domain and blocked_at",
    )
    group.add_argument(
        "--blocklist-hours", type=float, metavar="H", help="how long a domain stays blocked (12)"
    )
    group.add_argument(
        "--blocklist-at", metavar="TIME", help="the time to go by, such as 2026-01-31T12:00Z (now)"
    )
    group.add_argument("--map", action="append", metavar="FIELD=SOURCE[|FILTER]", help=MAP_HELP)
    group.add_argument("--prompt", metavar="FILE", help="a prompt template: YAML with system, user, messages")


def _add_policy_options(group: argparse._ArgumentGroup) -> None:
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


def _add_episode_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--env",
        help=", ".join(
            (
                "problem, prompt, tool, chat, rubric, preference, web, or module:Class",
                *(f"or {name}:module:Class" for name in declared("env_addresses")),
            )
        ),
    )
    group.add_argument(
        "--agent",
        help=", ".join(
            (
                "chat, module:Class or function",
                *(f"or {name}:URL" for name in declared("agent_addresses")),
            )
        ),
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


def _add_run_options(group: argparse._ArgumentGroup) -> None:
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
        type=_concurrency,
        metavar="N",
        help="episodes at a time (64; local: 16), auto: as many as the endpoint bears, or unlimited",
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
        "--shared",
        action="store_true",
        default=None,
        help="let other users read a new run, as the umask allows (only this user can)",
    )
    group.add_argument(
        "--config", action="append", default=[], metavar="FILE", help="YAML; repeats, later wins"
    )
    group.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="such as limits.max_turns=5"
    )


def add_trust_argument(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--trust-rows",
        action="store_true",
        default=None,
        help="let rows name modules, commands, hosts and variables (`trust` of --config lists single ones)",
    )


def add_trust_run_argument(group: argparse._ActionsContainer, what: str) -> None:
    group.add_argument(
        "--trust-run", action="store_true", help=f"{what}, though the run is not one of your own"
    )


def add_judge_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--judge", metavar="MODEL", help="the model that scorers ask, such as rubric; or local"
    )
    group.add_argument("--judge-base-url", action="append", metavar="URL", help="where it is served; repeats")
    group.add_argument("--judge-api-key-env", metavar="NAME", help="the variable that holds its key")
    group.add_argument(
        "--judge-concurrency", type=int, metavar="N", help="calls of it at a time (64; local: 16)"
    )


def _concurrency(text: str) -> int | str:
    return text if text in ("auto", "unlimited") else int(text)
