"""Show a run's rollouts, a line each, or one of them as a readable transcript."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from windrow.cli.output import write_json_bytes, write_out
from windrow.cli.text import score_text, shorten
from windrow.errors import UsageError
from windrow.identity import rollout_id
from windrow.records import Grading, Message, Rollout, ToolCall, encode
from windrow.store.blobs import FOLDER, path_of
from windrow.store.reader import RunReader, load
from windrow.store.where import parse_where
from windrow.util.blobs import is_blob

MOST_SEATS = 100  # that are listed by id


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run directory")
    parser.add_argument("id", nargs="?", help="a rollout id, or its first characters")
    parser.add_argument("--where", metavar="WHERE", help="such as status=failed,reward<0.5")
    parser.add_argument(
        "--attempts",
        choices=("final", "all"),
        default="final",
        help="the one that counts, or every line (final)",
    )
    parser.add_argument(
        "--judgements", action="store_true", help="with an id: what judges were asked, and what they said"
    )
    parser.add_argument("--json", action="store_true", help="the records themselves, one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    if arguments.judgements and arguments.id is None:
        raise UsageError("--judgements is for one rollout: give its id")
    rollouts = _selected(arguments)
    if arguments.json:
        for rollout in rollouts:
            write_json_bytes(encode(rollout) + b"\n")
        return 0
    if arguments.id is None:
        for rollout in rollouts:
            write_out(_line(rollout))
        return 0
    gradings = RunReader(arguments.run).gradings() if arguments.judgements else None
    for number, rollout in enumerate(rollouts):
        write_out("\n" * bool(number) + transcript(rollout, Path(arguments.run)))
        if gradings is not None:
            write_out(judgements_text(gradings.of(rollout.key)) or "\nno judge was asked")
    return 0


def _selected(arguments: argparse.Namespace) -> Iterator[Rollout]:
    where = parse_where(arguments.where) if arguments.where is not None else None
    selected = 0
    for rollout in load(arguments.run, attempts=arguments.attempts):
        if arguments.id is not None and not rollout.id.startswith(arguments.id):
            continue
        if where is not None and not where(msgspec.to_builtins(rollout)):
            continue
        selected += 1
        yield rollout
    if not selected and arguments.id is not None:
        raise UsageError(f"no rollout of {arguments.run} begins with {arguments.id!r}")


def _line(rollout: Rollout) -> str:
    reward = "     –" if rollout.reward is None else f"{rollout.reward:6.3f}"
    last_words = rollout.error.message if rollout.error else rollout.reply
    seat = "" if rollout.seat is None else f" seat {rollout.seat}{' *'[rollout.opponent]}"
    return (
        f"{rollout.id}  {rollout.sample:>3}.{rollout.attempt}{seat}  {rollout.status:<9} {reward}  "
        f"{shorten(rollout.task.key, 16):<16}  {shorten(last_words, 50)}"
    )


def transcript(rollout: Rollout, run: Path) -> str:
    """What happened, as a person reads it; an image is the path of its file."""
    reward = "not graded" if rollout.reward is None else f"reward {rollout.reward:g}"
    lines = [
        f"rollout {rollout.id}  attempt {rollout.attempt}  sample {rollout.sample}",
        f"task    {rollout.task.key}  ({rollout.task.source}{'/' + rollout.task.split if rollout.task.split else ''})",
        f"policy  {rollout.policy.model}  {rollout.policy.sampling or ''}".rstrip(),
        f"ended   {rollout.status} ({rollout.stop}), {reward}, {rollout.timing.total:.2f} s, "
        f"{rollout.usage.prompt_tokens} + {rollout.usage.completion_tokens} tokens",
    ]
    if rollout.episode is not None and rollout.seats is not None:
        lines.append(
            f"seat    {rollout.seat} of {rollout.seats}, played by {rollout.agent}, episode {rollout.episode}"
        )
        lines += [
            f"        seat {seat} is {rollout_id(rollout.group, rollout.sample, seat)}"
            for seat in range(min(rollout.seats, MOST_SEATS))
            if seat != rollout.seat
        ]
        if rollout.seats > MOST_SEATS:
            lines.append(f"        … and {rollout.seats - MOST_SEATS:,} more seats")
    if rollout.error:
        lines.append(
            f"error   {rollout.error.owner}/{rollout.error.kind} in {rollout.error.phase}: {rollout.error.message}"
        )
    for number, message in enumerate(rollout.messages):
        lines += ["", f"── {number} {message.role} ({message.origin})"]
        if message.reasoning:
            lines.append(f"(reasoning) {message.reasoning}")
        if message.content:
            lines.append(message.text)
        lines += images(message, run)
        lines += [f"→ {call.name}({call.arguments})  [{call.id}]" for call in message.tool_calls or ()]
        lines += [
            f"→ {call.name}({encode(call.arguments).decode()})  [{call.id}]"
            for call in acts(rollout, message)
        ]
    if rollout.scores:
        lines += ["", "── scores"]
        lines += [f"{name:<24} {score_text(score)}" for name, score in rollout.scores.items()]
    return "\n".join(lines)


def images(message: Message, run: Path) -> list[str]:
    """Where the images of a message are."""
    parts = message.content if isinstance(message.content, list) else []
    return [
        f"[{part.get('media_type')}, {part.get('width')} × {part.get('height')}] {path_of(run / FOLDER, part['blob'])}"
        for part in parts
        if is_blob(part)
    ]


def acts(rollout: Rollout, message: Message) -> list[ToolCall]:
    """What was done because a reply said so in words: the calls of its turn that it did not make as such."""
    if message.turn is None or message.turn >= len(rollout.turns):
        return []
    asked = {call.id for call in message.tool_calls or ()}
    return [call for call in rollout.turns[message.turn].tool_calls if call.id not in asked]


def judgements_text(gradings: Sequence[Grading]) -> str:
    """The prompts and replies of the judges behind the scores that count."""
    lines: list[str] = []
    for grading in gradings:
        for judgement in grading.judgements:
            about = f", {judgement.about}" if judgement.about else ""
            cached = ", asked before" if judgement.cached else ""
            lines += ["", f"── judge {judgement.model} for {grading.scorer}{about}{cached}"]
            lines += [f"[{message.role}] {message.text}" for message in judgement.messages]
            lines.append(f"→ {judgement.reply}")
            if judgement.problem:
                lines.append(f"(could not be read: {judgement.problem})")
    return "\n".join(lines)
