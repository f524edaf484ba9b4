"""The selection of the tasks of a run: tasks on blocked domains are left out, the rest is drawn, shuffled and
limited.

A `Draw` records the selection in run.json for each pass. A call that continues the pass follows that record: domains
that were blocked then stay left out, even if their time is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from windrow.config import BlocklistConfig, DrawConfig, LoadedConfig, expand
from windrow.errors import UsageError
from windrow.tasks.blocklist import read_blocklist, time_of
from windrow.tasks.sampling import (
    Category,
    Draw,
    TraitTable,
    draw_by_ratio,
    draw_uniform,
    made_seed,
    ranking,
)
from windrow.tasks.scan import Selection, Source

TRAIN = "train"  # the split that a blocklist is for
EXAMPLE = (
    "draw: {how: ratio, n: 100, ratio: {easy: {range: [1, 3], weight: 2}, hard: {range: [7, 99], weight: 1}}}"
)


class _Draws(Protocol):
    @property
    def draws(self) -> list[Draw]: ...


class SelectedTasks(msgspec.Struct, frozen=True):
    """The tasks of a run, and the draw that selected them; without a draw they follow the source."""

    tasks: Selection
    draw: Draw | None = None
    notes: tuple[str, ...] = ()


class TaskSelector:
    """Selects the tasks of a run, afresh or again by the recorded draw."""

    def __init__(self, loaded: LoadedConfig) -> None:
        self._loaded = loaded
        self._run = loaded.run
        self.wanted = _checked(loaded)
        self.table = TraitTable()  # to be filled as the rows are read, if a choice is `wanted`

    def select(self, source: Source, before: _Draws | None = None) -> SelectedTasks:
        """Select from the source; `before` is the run that this call continues."""
        tasks = self._run.tasks
        if not self.wanted:
            return SelectedTasks(source.select(limit=tasks.limit, shuffle=tasks.shuffle))
        draw, notes = self._blocked(source, before)
        positions: Sequence[int] = range(len(source))
        if draw.blocked:
            positions = self.table.not_on(draw.blocked.__contains__)
            draw = msgspec.structs.replace(draw, left_out=len(source) - len(positions))
            notes.append(_left_out(draw))
        if not positions:
            raise UsageError(f"every task of {source.name} is on a domain of --blocklist")
        draw = msgspec.structs.replace(draw, tasks=len(positions), of=len(positions))
        if self._run.draw.how is not None:
            positions, draw = self._drawn(source, positions, draw)
            notes += _drawn_notes(draw)
        selection = source.select(of=positions, limit=tasks.limit, shuffle=tasks.shuffle)
        return SelectedTasks(selection, draw, tuple(notes))

    def _blocked(self, source: Source, before: _Draws | None) -> tuple[Draw, list[str]]:
        """Return a draw with the blocked domains: those recorded for this pass, or else those in the file now."""
        config, pass_ = self._run.blocklist, self._run.pass_
        if config.path is None:
            return Draw(pass_=pass_), []
        if source.split is None:
            raise UsageError(
                "--blocklist is for training: give --split train (tasks of a test are never left out)"
            )
        if source.split != TRAIN:
            return Draw(pass_=pass_), [
                f"--blocklist leaves nothing out of split {source.split!r}, only of 'train'"
            ]
        earlier = next((draw for draw in before.draws if draw.pass_ == pass_), None) if before else None
        if earlier is not None and earlier.at is not None:
            return Draw(pass_=pass_, blocked=earlier.blocked, at=earlier.at), []
        at = _at(config)
        path = expand(config.path, where="blocklist.path")
        until = at if config.at is not None else None  # ranks that read a growing file find the same
        blocked = read_blocklist(path, hours=config.hours, at=at, until=until)
        return Draw(pass_=pass_, blocked=blocked, at=at.timestamp()), []

    def _drawn(self, source: Source, positions: Sequence[int], draw: Draw) -> tuple[list[int], Draw]:
        config, table = self._run.draw, self.table
        assert config.n is not None
        seed = made_seed(source.name, source.split) if config.seed is None else config.seed
        rank = ranking(source.identity, seed, self._run.pass_)
        once = [position for position in positions if not table.is_repeated(position)]
        categories: dict[str, Category] = {}
        if config.how == "uniform":
            drawn = draw_uniform(once, config.n, rank)
        else:
            ratio = {name: Category(part.range, part.weight) for name, part in config.ratio.items()}
            drawn, categories = draw_by_ratio(once, config.n, ratio, rank, table.difficulty)
        if not drawn:
            raise UsageError(f"no task of {source.name} has a difficulty in a range of `draw.ratio`")
        how = {"how": config.how, "n": config.n, "seed": seed, "ratio": categories}
        return drawn, msgspec.structs.replace(draw, **how, tasks=len(drawn))


def with_draw(draws: Sequence[Draw], draw: Draw | None) -> list[Draw]:
    """Return the draws of a run with the draw of one pass added or replaced."""
    if draw is None:
        return list(draws)
    others = [recorded for recorded in draws if recorded.pass_ != draw.pass_]
    return sorted([*others, draw], key=lambda recorded: recorded.pass_)


def refuse_other_draw(draws: Sequence[Draw], draw: Draw | None) -> None:
    """Refuse a second, different draw for a pass: its record has to describe all of its tasks. The size may change."""
    recorded = next(
        (recorded for recorded in draws if draw is not None and recorded.pass_ == draw.pass_), None
    )
    if (
        draw is None
        or recorded is None
        or None in (draw.how, recorded.how)
        or _chance(recorded) == _chance(draw)
    ):
        return
    raise UsageError(
        f"pass {draw.pass_} of this run was drawn otherwise ({_described(recorded)}; now {_described(draw)}). Draw as before, or give "
        f"another --pass or --out"
    )


def _chance(draw: Draw) -> tuple[object, ...]:
    return draw.how, draw.seed, {name: (part.range, part.weight) for name, part in draw.ratio.items()}


def _described(draw: Draw) -> str:
    ranges = (
        f", {name} {part.range[0]:g}-{part.range[1]:g}: {part.weight:g}" for name, part in draw.ratio.items()
    )
    return f"{draw.how}, seed {draw.seed}{''.join(ranges)}"


def changed_blocks(draw: Draw | None, as_configured: Draw | None) -> Iterator[str]:
    """Yield a warning if a pass goes on with other blocked domains than the file lists now."""
    if draw is not None and as_configured is not None and draw.blocked != as_configured.blocked:
        yield (
            f"the blocklist has changed; pass {draw.pass_} goes on without the {len(draw.blocked):,} domains that it was "
            f"begun without ({draw.left_out:,} tasks)"
        )


def _checked(loaded: LoadedConfig) -> bool:
    """Return whether tasks are to be drawn or left out; refuse incomplete settings."""
    draw, blocklist = loaded.run.draw, loaded.run.blocklist
    if draw.how is None:
        _refuse_alone(loaded, draw, "draw.", "there is no draw without --draw uniform or --draw ratio")
    if blocklist.path is None:
        _refuse_alone(loaded, blocklist, "blocklist.", "there is no --blocklist FILE")
    _at(blocklist)
    if draw.how is not None and draw.n is None:
        raise UsageError(f"--draw {draw.how}: how many are to be drawn? Give --draw-n N")
    if draw.how == "ratio":
        _check_ratio(draw)
    return draw.how is not None or blocklist.path is not None


def _refuse_alone(loaded: LoadedConfig, section: DrawConfig | BlocklistConfig, prefix: str, why: str) -> None:
    usual = type(section)()
    for name in section.__struct_fields__:
        if getattr(section, name) != getattr(usual, name):
            raise UsageError(
                f"{loaded.origins.get(prefix + name, prefix + name)}: {why}, so it would be ignored"
            )


def _check_ratio(draw: DrawConfig) -> None:
    if not draw.ratio:
        raise UsageError(
            f"--draw ratio needs the ranges and their weights in the configuration, such as\n{EXAMPLE}"
        )
    if not sum(part.weight for part in draw.ratio.values()):
        raise UsageError("draw.ratio: at least one weight must be over 0")
    last: tuple[str, tuple[float, float]] | None = None
    for name, part in sorted(draw.ratio.items(), key=lambda item: item[1].range):
        low, high = part.range
        if low > high:
            raise UsageError(
                f"draw.ratio.{name}.range: [{low:g}, {high:g}] goes from its lowest number to its highest"
            )
        if last is not None and low <= last[1][1]:
            raise UsageError(
                f"draw.ratio: {last[0]!r} and {name!r} overlap at {low:g}; a task is drawn for one of them"
            )
        last = name, part.range


def _at(config: BlocklistConfig) -> datetime:
    if config.at is None:
        return datetime.now(UTC)
    try:
        return time_of(config.at)
    except ValueError as problem:
        raise UsageError(f"--blocklist-at: {problem}") from None


def _left_out(draw: Draw) -> str:
    count = "1 domain is" if len(draw.blocked) == 1 else f"{len(draw.blocked):,} domains are"
    return f"{count} blocked: {draw.left_out:,} tasks are left out"


def _drawn_notes(draw: Draw) -> list[str]:
    notes = [f"drew {draw.tasks:,} of {draw.of:,} tasks ({draw.how}, seed {draw.seed}, pass {draw.pass_})"]
    if draw.ratio:
        parts = (f"{name} {part.drawn:,} of {part.asked:,}" for name, part in draw.ratio.items())
        notes.append(f"drawn by range: {', '.join(parts)}")
    elif draw.n is not None and draw.tasks < draw.n:
        notes.append(f"{draw.n:,} were asked for; there are no more")
    return notes
