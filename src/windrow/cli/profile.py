"""How hard each task of a run is for the policy: rewards and lengths task by task, difficulty bands, and a file of the
tasks that are worth running again.

windrow profile RUN --keep 0.2..0.8 --out learnable.jsonl
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import msgspec

from windrow.cli.output import write_error, write_json_bytes, write_out
from windrow.cli.text import parse_reward, shorten
from windrow.errors import UsageError
from windrow.exports.task_files import TaskFileSummary, keep_tasks
from windrow.stats.profile import LEARNABLE, Bin, Profile, Range, Shape, TaskProfile, parse_range, profile
from windrow.stats.tally import PASS_REWARD

SHOWN_TASKS = 20
KEY_CHARS = 32
BAR_CHARS = 40
HEAD = ("task", "n", "mean", "std", "min", "median", "max", "pass", "tokens", "longest", "band")
WORDS = {
    "pass_rate": "pass rate",
    "mean": "mean reward",
    "too_hard": "too hard",
    "too_easy": "too easy",
    "learnable": "learnable",
    "ungraded": "ungraded",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run directory")
    parser.add_argument("--json", action="store_true", help="one JSON object, with every task")
    parser.add_argument(
        "--pass-reward",
        type=parse_reward,
        default=PASS_REWARD,
        metavar="R",
        help="a rollout passes from this reward on (1)",
    )
    parser.add_argument(
        "--by",
        choices=("pass_rate", "mean"),
        default="pass_rate",
        help="what bands and --keep go by: the share of rollouts that pass, or the mean reward (pass_rate)",
    )
    parser.add_argument(
        "--learnable",
        metavar="LOW..HIGH",
        help="tasks below are too hard, above too easy (0.2..0.8, both ends included)",
    )
    parser.add_argument(
        "--limit", type=int, default=SHOWN_TASKS, metavar="N", help="tasks to list (20; 0: all)"
    )
    parser.add_argument("--keep", metavar="LOW..HIGH", help="the tasks to write to --out, such as 0.2..0.8")
    parser.add_argument("-o", "--out", metavar="FILE", help="a task file with the rows that --keep keeps")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it is there")


def run(arguments: argparse.Namespace) -> int:
    learnable = _range("--learnable", arguments.learnable) or LEARNABLE
    keep = _range("--keep", arguments.keep)
    if (keep is None) != (arguments.out is None):
        raise UsageError("--keep LOW..HIGH and --out FILE go together: which tasks, and where to write them")
    if arguments.limit < 0:
        raise UsageError(f"--limit {arguments.limit}: expected a number of tasks, or 0 for all")
    run_profile = profile(
        arguments.run, pass_reward=arguments.pass_reward, by=arguments.by, learnable=learnable
    )
    kept = None
    if keep is not None:
        kept = keep_tasks(arguments.run, run_profile, keep, arguments.out, overwrite=arguments.overwrite)
    if arguments.json:
        for piece in json_pieces(run_profile):
            write_json_bytes(piece.encode())
    else:
        for line in text_lines(run_profile, limit=arguments.limit):
            write_out(line)
    if kept is not None:
        write_error(kept_text(kept))
    return 0 if kept is None or kept.kept else 1


def _range(flag: str, text: str | None) -> Range | None:
    try:
        return None if text is None else parse_range(text)
    except UsageError as problem:
        raise UsageError(f"{flag} {problem}") from None


def json_pieces(run_profile: Profile) -> Iterator[str]:
    """The shape, and the tasks one at a time."""
    yield msgspec.json.encode(run_profile.shape()).decode().removesuffix("}") + ',"task_profiles":['
    between = ""
    for task in run_profile.tasks():
        yield between + msgspec.json.encode(task).decode()
        between = ","
    yield "]}\n"


def text_lines(run_profile: Profile, *, limit: int) -> Iterator[str]:
    shape = run_profile.shape()
    listed = list(itertools.islice(run_profile.tasks(), limit or None))
    if listed:
        yield from _table([HEAD, *map(_row, listed)])
    if len(listed) < shape.tasks:
        yield f"… and {shape.tasks - len(listed):,} more (--limit 0 lists all)"
    yield ""
    yield from _shape_lines(shape)


def kept_text(kept: TaskFileSummary) -> str:
    """How many, of how many, and why others could not be chosen."""
    text = f"wrote {kept.kept:,} of {kept.tasks:,} tasks to {kept.path}"
    if not kept.kept:
        text = f"none of {kept.tasks:,} tasks lies in the range of --keep: {kept.path} is not written"
    return f"{text}; {kept.ungraded:,} without a reward are left out" if kept.ungraded else text


def _row(task: TaskProfile) -> tuple[str, ...]:
    numbers = (task.mean, task.std, task.min, task.median, task.max, task.pass_rate)
    lengths = task.reply_tokens
    return (
        shorten(task.key, KEY_CHARS),
        f"{task.n}/{task.rollouts}",
        *("–" if number is None else f"{number:.3g}" for number in numbers),
        "–" if lengths.mean is None else f"{lengths.mean:,.0f}",
        "–" if lengths.max is None else f"{lengths.max:,}",
        WORDS[task.band] + (", all the same" if task.zero_variance else ""),
    )


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    for row in rows:
        cells = [
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _shape_lines(shape: Shape) -> Iterator[str]:
    what = f"reward ≥ {shape.pass_reward:g}" if shape.by == "pass_rate" else "reward"
    untried = f"; {shape.untried:,} more were not tried" if shape.untried else ""
    yield f"tasks   {shape.tasks:,}, {shape.rollouts:,} rollouts, {shape.graded:,} graded{untried}"
    yield f"bands   by {WORDS[shape.by]} ({what}), learnable from {shape.learnable.low:g} to {shape.learnable.high:g}"
    bands = [(WORDS[band], tasks) for band, tasks in shape.bands.items() if tasks or band != "ungraded"]
    yield from _bars(bands, shape.tasks)
    if shape.groups.n:
        alike = f"{shape.groups.zero_variance:,} of {shape.groups.n:,}"
        yield f"groups  {alike} with rewards that are all the same (zero variance)"
    if shape.histogram:
        yield WORDS[shape.by]
        yield from _bars([(_bin_text(bin_), bin_.tasks) for bin_ in shape.histogram], shape.tasks)
    if shape.bad_lines:
        yield f"bad lines  {shape.bad_lines:,} left out"


def _bin_text(bin_: Bin) -> str:
    return f"{bin_.low:.3g}" if bin_.low == bin_.high else f"{bin_.low:.3g} – {bin_.high:.3g}"


def _bars(counts: list[tuple[str, int]], whole: int) -> Iterator[str]:
    """A bar as long as its share of the longest."""
    width = max(len(name) for name, _ in counts)
    digits = max(len(f"{count:,}") for _, count in counts)
    most = max(count for _, count in counts)
    for name, count in counts:
        bar = "█" * (-(-BAR_CHARS * count // most) if most else 0)
        share = count / whole if whole else 0.0
        yield f"  {name:<{width}}  {count:>{digits},}  {share:>6.1%}  {bar}".rstrip()
