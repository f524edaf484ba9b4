"""Show a run's tokens as training sequences: how turns merge, where they fork and why; with an ID, each sequence."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from windrow.cli.output import write_json, write_out
from windrow.cli.text import counts_text
from windrow.errors import UsageError
from windrow.exports.tokens.drift import Drift, DriftCounter
from windrow.exports.tokens.forks import REASONS, Fork, forks
from windrow.exports.tokens.linking import Merging
from windrow.exports.tokens.sequences import Forest, TrainingSequence, planted
from windrow.exports.tokens.text import Decode, as_ids, read_tokenizer
from windrow.records import Rollout, TurnRole
from windrow.store.reader import load

SHOWN_IDS = 8  # of a long piece without a tokenizer: at its beginning and at its end


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run directory")
    parser.add_argument("id", nargs="?", help="a rollout id, or its first characters")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="PATH", help="a tokenizer.json: shows text, not ids"
    )
    parser.add_argument(
        "--tolerant",
        action="store_true",
        help="merge also where a reply and the next prompt differ only in --end-of-turn ids",
    )
    parser.add_argument(
        "--end-of-turn", metavar="IDS", help="ids that end a reply, such as 151643,151645,198"
    )
    parser.add_argument("--roles", metavar="ROLES", default="agent", help="roles that are trained (agent)")
    parser.add_argument("--json", action="store_true", help="one JSON object, or with an ID one a sequence")


def run(arguments: argparse.Namespace) -> int:
    merging = merging_of(arguments)
    decode = read_tokenizer(arguments.tokenizer) if arguments.tokenizer is not None else None
    if arguments.id is None:
        counter = DriftCounter(merging)
        for rollout in load(arguments.run):
            counter.add(rollout)
        report = counter.report()
        if arguments.json:
            write_json(report)
        else:
            write_out(table(arguments.run, report))
        return 0
    matching = [rollout for rollout in load(arguments.run) if rollout.id.startswith(arguments.id)]
    if not matching:
        raise UsageError(f"no rollout of {arguments.run} begins with {arguments.id!r}")
    for rollout in matching:
        forest, sequences = planted(rollout, merging)
        if arguments.json:
            for sequence in sequences:
                write_json(plain(sequence))
        else:
            write_out("\n".join(details(rollout, forest, sequences, decode)))
    return 0


def merging_of(arguments: argparse.Namespace) -> Merging:
    roles = frozenset(arguments.roles.split(","))
    unknown = sorted(roles - set(get_args(TurnRole)))
    if unknown:
        raise UsageError(f"--roles {unknown[0]}: expected some of {', '.join(get_args(TurnRole))}")
    try:
        ids = frozenset(int(id) for id in (arguments.end_of_turn or "").split(",") if id.strip())
    except ValueError:
        raise UsageError(f"--end-of-turn {arguments.end_of_turn}: expected ids, such as 2,198") from None
    if arguments.tolerant and not ids:
        raise UsageError(
            "--tolerant needs --end-of-turn: the ids that end a reply, such as 151643,151645,198"
        )
    return Merging(roles=roles, tolerant=arguments.tolerant, end_of_turn=ids)


def table(run: str, drift: Drift) -> str:
    others = f", {counts_text(drift.others)}: no ids" if drift.others else ""
    broken = f", {drift.broken:,} broken (windrow verify)" if drift.broken else ""
    rows = [("run", run), ("rollouts", f"{drift.exact:,} exact{others}{broken}")]
    if drift.sequences:
        rows += [
            ("sequences", f"{drift.sequences:,} of {drift.turns:,} turns"),
            (
                "merged",
                f"{drift.turns_a_sequence:.2f} turns a sequence; a row a turn would be {drift.context_ratio:.2f} "
                f"times the tokens",
            ),
            ("tokens", f"{drift.tokens:,} in all, {drift.repeated:,} of them repeated by forks and branches"),
            ("trained", f"{drift.trained:,} of {drift.sampled:,} sampled, {drift.lost:,} lost"),
        ]
    if drift.other_roles:
        rows.append(("not trained", f"{counts_text(drift.other_roles)} tokens, by role"))
    if drift.spliced:
        rows.append(("spliced", f"{drift.spliced:,} times at the end of a turn"))
    rows.append(("forks", f"{sum(drift.forks.values()):,}"))
    rows += [(f"  {why}", f"{count:,}: {_reason(why)}") for why, count in drift.forks.items()]
    if drift.forks:
        rows.append(("spared", f"{drift.spared:,} sampled tokens that overwriting would have lost"))
    rows += [
        (f"  {example.rollout}.{example.attempt}", fork_text(example.fork)) for example in drift.examples
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _reason(why: str) -> str:
    return next(text for name, text in REASONS.items() if name == why)


def fork_text(fork: Fork) -> str:
    return f"turn {fork.turn} departs from turn {fork.after} at id {fork.position}: {_reason(fork.why)}"


def details(
    rollout: Rollout, forest: Forest, sequences: list[TrainingSequence], decode: Decode | None
) -> Iterator[str]:
    """A rollout's sequences, piece by piece: `+` is trained, `=` was sampled and is trained elsewhere."""
    reward = "not graded" if rollout.reward is None else f"reward {rollout.reward:g}"
    yield f"rollout {rollout.id}  attempt {rollout.attempt}  {rollout.status} ({rollout.stop}), {reward}"
    for fork in forks(rollout, forest):
        yield f"fork    {fork_text(fork)}"
    for sequence in sequences:
        trained = int(sequence.loss_mask.sum())
        unanswered = sequence.unanswered_tool_calls
        more = f", {unanswered} unanswered tool calls" if unanswered else ""
        yield ""
        yield f"── sequence {sequence.segment}: {len(sequence):,} tokens, {trained:,} trained{more}"
        at = 0
        for span in sequence.spans:
            if span.start > at:
                yield _piece(" ", at, sequence.input_ids[at : span.start].tolist(), "context", decode)
            ids = sequence.input_ids[span.start : span.stop].tolist()
            yield _piece("+" if span.trained else "=", span.start, ids, f"turn {span.turn}", decode)
            at = span.stop


def _piece(sign: str, at: int, ids: list[int], what: str, decode: Decode | None) -> str:
    if decode is not None:
        shown = repr(decode(ids))
    elif len(ids) > 2 * SHOWN_IDS:
        shown = f"{as_ids(ids[:SHOWN_IDS])} … {as_ids(ids[-SHOWN_IDS:])}"
    else:
        shown = as_ids(ids)
    return f"{sign} {at:>6}  {what:<8} {len(ids):>6}  {shown}"


def plain(sequence: TrainingSequence) -> dict[str, object]:
    """A sequence in JSON: arrays as lists, the mask as 0 and 1."""
    return {
        "rollout_id": sequence.rollout_id,
        "attempt": sequence.attempt,
        "segment": sequence.segment,
        "input_ids": sequence.input_ids.tolist(),
        "loss_mask": sequence.loss_mask.astype(int).tolist(),
        "logprobs": sequence.logprobs.tolist(),
        "versions": sequence.versions,
        "spans": [span._asdict() for span in sequence.spans],
        "logprob_kind": sequence.logprob_kind,
        "unanswered_tool_calls": sequence.unanswered_tool_calls,
        **sequence.facts._asdict(),
    }
