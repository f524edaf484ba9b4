"""`play_match`: one attempt at a game, a rollout a seat.

Each seat is played as any episode is: by an agent, through a session, into a recorder of its own. What ends one badly
ends all: a seat that fails fails the episode, and it is tried again as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, nullcontext
from functools import partial

import msgspec

from windrow.agents import find_agent
from windrow.engine.auxiliary_models import Asking
from windrow.engine.context import EpisodeSetup, Model, RunContext
from windrow.engine.episode import Interrupted, OpenEnv, OwnScore, run_tools_of, score
from windrow.engine.recorder import Recorder, Seat
from windrow.engine.referee import Place, SeatEnv, Table
from windrow.engine.session import EpisodeSession
from windrow.envs import Match
from windrow.envs.seating import opponent
from windrow.errors import EnvError, error_record
from windrow.identity import episode_id, rollout_id, seed_of
from windrow.records import OPPONENT, ErrorRecord, Json, Owner, PolicyRecord, Rollout
from windrow.tasks.plan import Slot
from windrow.util.cancellation import is_ours
from windrow.util.deadlines import Deadline
from windrow.util.freeze import copied_task
from windrow.util.guard import guarded_method


class Player(msgspec.Struct, frozen=True):
    """Who plays one seat, and what is written down of it; `model` is that of an opponent."""

    slot: Slot
    setup: EpisodeSetup
    model: Model | None
    recorder: Recorder


class _SeatFailed(Exception):
    def __init__(self, seat: int) -> None:
        self.seat = seat


class _GameFailed(Exception):
    """Carries what the game raised, which in a task of its own might end the loop."""

    def __init__(self, problem: BaseException) -> None:
        self.problem = problem


async def play_match(slot: Slot, context: RunContext, setup: EpisodeSetup) -> tuple[Rollout, ...]:
    """The rollouts of one attempt, in the order of the seats. Cancellation is raised with them in `Interrupted`."""
    try:
        players = _players(slot, context, setup)
    except Exception as problem:  # prepare has asked every row, and got an answer then
        players = [_player(slot, context, setup, 0, 1, None)]
        players[0].recorder.fail(error_record(problem, owner="env", phase="setup"))
        return (players[0].recorder.rollout(),)
    try:
        await _run(slot, context, setup, players)
    except asyncio.CancelledError:
        for player in players:
            player.recorder.overrule("cancelled", "cancelled", reason="interrupted")
        raise Interrupted(tuple(player.recorder.rollout() for player in players)) from None
    return tuple(player.recorder.rollout() for player in players)


def _players(slot: Slot, context: RunContext, setup: EpisodeSetup) -> list[Player]:
    row: Mapping[str, Json] = slot.task.data or {}
    assert issubclass(setup.env, Match)
    count = setup.env.count_seats(setup.env_settings, row)
    numbers = setup.seating.players(count, sample=slot.sample, row=row)
    return [_player(slot, context, setup, seat, count, number) for seat, number in enumerate(numbers)]


def _player(
    slot: Slot, context: RunContext, setup: EpisodeSetup, seat: int, count: int, number: int | None
) -> Player:
    """The player of one seat: the run's policy and agent, or opponent `number`."""
    id = rollout_id(slot.group, slot.sample, seat)
    own = msgspec.structs.replace(slot, id=id, seed=seed_of(id, slot.attempt))
    capture = context.capture(setup.env)
    if number is None:
        model, sampling = context.player, context.sampling(slot.task)
    else:
        model = context.models[opponent(number)]
        sampling = model.sampling
        agent = find_agent("chat")({})
        setup = msgspec.structs.replace(setup, agent=agent, agent_name=OPPONENT, scorers=(), before_commit=())
        capture = "none" if capture == "none" else model.policy.default_capture
    recorder = Recorder(
        own,
        env=setup.env_name,
        agent=setup.agent_name,
        policy=PolicyRecord(model=model.policy.model, sampling=sampling, fingerprint=context.behaviour),
        grading=context.grading,
        capture=capture,
        seat=Seat(episode_id(slot.group, slot.sample), seat, count),
    )
    return Player(own, setup, None if number is None else model, recorder)


async def _run(slot: Slot, context: RunContext, setup: EpisodeSetup, players: Sequence[Player]) -> None:
    """Play the game to its end, whatever that end is; the recorders hold the outcome."""
    recorders = [player.recorder for player in players]
    try:
        async with OpenEnv(_made(slot, context, setup, recorders), context, recorders) as match:
            failed = await _play(match, context, players)
            if failed is not None:
                _fail(recorders, failed)
                return
            for player in players:
                await score(context, player.setup, player.recorder, _own_score(match, player.recorder))
    except BaseException as problem:
        # Whatever a game raises is a failed attempt, never a failed run.
        if is_ours(problem):
            raise
        error = error_record(problem, owner="env", phase=recorders[0].phase)
        for recorder in recorders:
            recorder.overrule("failed", "error", error=error)


def _made(slot: Slot, context: RunContext, setup: EpisodeSetup, recorders: Sequence[Recorder]) -> Match:
    """The game; it is named by the episode, and its randomness belongs to the attempt as a whole."""
    id = episode_id(slot.group, slot.sample)
    own = msgspec.structs.replace(slot, id=id, seed=seed_of(id, slot.attempt))
    env_context = context.env_context(own, Asking(own, context, recorders[0]))
    match = setup.env(setup.env_settings, msgspec.structs.replace(env_context, seats=len(recorders)))
    assert isinstance(match, Match)
    return match


async def _play(match: Match, context: RunContext, players: Sequence[Player]) -> int | None:
    """Until the game is over or its time is up. Returns the seat that failed, if one did."""
    limit = context.limits.episode_timeout_s
    deadline = Deadline(limit) if limit is not None else None
    begun = False
    try:
        with deadline or nullcontext():
            with ExitStack() as stack:
                for player in players:
                    stack.enter_context(player.recorder.timed("setup"))
                await guarded_method(match, "reset", match.reset(copied_task(players[0].slot.task)))
            begun = True
            return await _seats(match, context, players)
    except TimeoutError:
        if deadline is None or not deadline.expired():
            raise  # the game's own, not the episode's
        if not begun:
            raise EnvError(f"reset() did not finish within {limit:g} s", kind="timeout") from None
        for player in players:
            player.recorder.end("truncated", "timeout")
        return None


async def _seats(match: Match, context: RunContext, players: Sequence[Player]) -> int | None:
    table = Table(match, [player.recorder for player in players])
    failures: list[_SeatFailed | _GameFailed] = []  # what came after the first was cancelled for it
    tasks: list[asyncio.Task[None]] = []

    async def alone(work: Callable[[], Awaitable[None]]) -> None:
        # A task that raised would have the group cancel the one that waits here, and leave that counted.
        try:
            await work()
        except (_SeatFailed, _GameFailed) as problem:
            failures.append(problem)
            for task in tasks:
                task.cancel()

    for player in players:
        player.recorder.phase = "env"
    async with asyncio.TaskGroup() as group:
        tasks.append(group.create_task(alone(partial(_referee, table))))
        for player, place in zip(players, table.places, strict=True):
            tasks.append(group.create_task(alone(partial(_sit, table, place, context, player))))
    failed = failures[0] if failures else None
    if isinstance(failed, _GameFailed):
        raise failed.problem
    return failed.seat if failed is not None else None


async def _referee(table: Table) -> None:
    try:
        await table.referee()
    except BaseException as problem:
        if is_ours(problem):
            raise
        raise _GameFailed(problem) from None


async def _sit(table: Table, place: Place, context: RunContext, player: Player) -> None:
    """Play one seat until it has ended; raises _SeatFailed where it failed."""
    recorder, setup = player.recorder, player.setup
    try:
        with recorder.timed("env"):
            opening = await place.told()
        if opening.stop is not None:  # the game was over before it had a turn
            recorder.end("completed", opening.stop)
            return
        async with AsyncExitStack() as stack:
            run_tools = (
                await stack.enter_async_context(run_tools_of(context, recorder))
                if player.model is None
                else ()
            )
            env = SeatEnv(table, place, opening)
            session = EpisodeSession(player.slot, env, context, recorder, run_tools, player.model)
            await session.reset()
            await guarded_method(setup.agent, "run", setup.agent.run(session))
            await session.finish()
    except BaseException as problem:
        if is_ours(problem):
            raise
        owner: Owner = "policy" if recorder.phase == "policy" else "env"
        recorder.fail(error_record(problem, owner=owner, phase=recorder.phase))
    finally:
        place.leave()
    if recorder.status == "failed":
        raise _SeatFailed(place.number)


def _fail(recorders: Sequence[Recorder], failed: int) -> None:
    """One seat has failed, and with it the others."""
    error = recorders[failed].error
    assert error is not None
    others = ErrorRecord(
        owner=error.owner,
        kind="seat",
        message=f"seat {failed} failed, and with it the episode: {error.kind}: {error.message}",
        phase=error.phase,
        retryable=error.retryable,
    )
    for seat, recorder in enumerate(recorders):
        recorder.overrule("failed", "error", error=error if seat == failed else others)


def _own_score(match: Match, recorder: Recorder) -> OwnScore | None:
    if type(match).score is Match.score:
        return None
    assert recorder.seat is not None
    seat = recorder.seat.number
    return lambda episode: guarded_method(match, "score", match.score(seat, episode))
