"""One match: an attempt at a game with several seats, which gives one rollout per seat.

Each seat is played like any episode: by an agent, through a session, into a recorder of its own. A failure of one seat
fails the whole episode, and the whole episode is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, nullcontext
from functools import partial

import msgspec

from windrow.agents import find_agent
from windrow.engine.auxiliary_models import AuxiliaryModels
from windrow.engine.context import EpisodeSetup, RunContext
from windrow.engine.episode import Interrupted
from windrow.engine.episode_resources import OpenEnv, open_run_tools
from windrow.engine.episode_scoring import EnvScore, score_episode
from windrow.engine.models import Model
from windrow.engine.record_building import build_rollout
from windrow.engine.recorder import Recorder, Seat
from windrow.engine.referee import Referee, SeatChannel, SeatEnv
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
    """The player of one seat and its recorder. `opponent` is None for the run's own policy."""

    slot: Slot
    setup: EpisodeSetup
    opponent: Model | None
    recorder: Recorder


class _SeatFailed(Exception):
    def __init__(self, seat: int) -> None:
        self.seat = seat


class _GameFailed(Exception):
    """Carries the exception of a game, which could end the loop if a task raised it."""

    def __init__(self, problem: BaseException) -> None:
        self.problem = problem


async def play_match(slot: Slot, context: RunContext, setup: EpisodeSetup) -> tuple[Rollout, ...]:
    """The rollouts of one attempt, by seat. A cancellation is raised as `Interrupted`, which carries them."""
    try:
        players = _make_players(slot, context, setup)
    except Exception as problem:  # the row could be seated when the run was prepared, and cannot now
        players = [_make_player(slot, context, setup, 0, 1, None)]
        players[0].recorder.outcome.fail(error_record(problem, owner="env", phase="setup"))
        return _rollouts(players)
    try:
        await _run_match(slot, context, setup, players)
    except asyncio.CancelledError:
        for player in players:
            player.recorder.outcome.overrule("cancelled", "cancelled", reason="interrupted")
        raise Interrupted(_rollouts(players)) from None
    return _rollouts(players)


def _rollouts(players: Sequence[Player]) -> tuple[Rollout, ...]:
    return tuple(build_rollout(player.recorder) for player in players)


def _make_players(slot: Slot, context: RunContext, setup: EpisodeSetup) -> list[Player]:
    row: Mapping[str, Json] = slot.task.data or {}
    assert issubclass(setup.env, Match)
    count = setup.env.count_seats(setup.env_settings, row)
    opponents = setup.seating.players(count, sample=slot.sample, row=row)
    return [
        _make_player(slot, context, setup, seat, count, opponent_number)
        for seat, opponent_number in enumerate(opponents)
    ]


def _make_player(
    slot: Slot, context: RunContext, setup: EpisodeSetup, seat: int, count: int, opponent_number: int | None
) -> Player:
    """The player of one seat: the run's policy and agent, or the opponent of this number."""
    id = rollout_id(slot.group, slot.sample, seat)
    seat_slot = msgspec.structs.replace(slot, id=id, seed=seed_of(id, slot.attempt))
    capture = context.capture(setup.env)
    if opponent_number is None:
        model, sampling = context.player, context.sampling(slot.task)
    else:
        model = context.models[opponent(opponent_number)]
        sampling = model.sampling
        agent = find_agent("chat")({})
        setup = msgspec.structs.replace(setup, agent=agent, agent_name=OPPONENT, scorers=(), before_commit=())
        capture = "none" if capture == "none" else model.policy.default_capture
    recorder = Recorder(
        seat_slot,
        env=setup.env_name,
        agent=setup.agent_name,
        policy=PolicyRecord(model=model.policy.model, sampling=sampling, fingerprint=context.behaviour),
        grading=context.grading,
        capture=capture,
        seat=Seat(episode_id(slot.group, slot.sample), seat, count),
    )
    return Player(seat_slot, setup, None if opponent_number is None else model, recorder)


async def _run_match(slot: Slot, context: RunContext, setup: EpisodeSetup, players: Sequence[Player]) -> None:
    """Play the game to its end, whatever that end is. The recorders hold the outcome."""
    recorders = [player.recorder for player in players]
    try:
        async with OpenEnv(_make_match(slot, context, setup, recorders), context, recorders) as match:
            failed_seat = await _play(match, context, players)
            if failed_seat is not None:
                _fail_all(recorders, failed_seat)
                return
            for player in players:
                await score_episode(context, player.setup, player.recorder, _score_of(match, player.recorder))
    except BaseException as problem:
        # An exception of a game fails the attempt, never the run.
        if is_ours(problem):
            raise
        error = error_record(problem, owner="env", phase=recorders[0].phase)
        for recorder in recorders:
            recorder.outcome.overrule("failed", "error", error=error)


def _make_match(slot: Slot, context: RunContext, setup: EpisodeSetup, recorders: Sequence[Recorder]) -> Match:
    """The game. It has the id of the episode and a seed for the attempt as a whole."""
    id = episode_id(slot.group, slot.sample)
    episode_slot = msgspec.structs.replace(slot, id=id, seed=seed_of(id, slot.attempt))
    models = AuxiliaryModels(episode_slot, context, recorders[0])
    env_context = context.env_context(episode_slot, models)
    match = setup.env(setup.env_settings, msgspec.structs.replace(env_context, seats=len(recorders)))
    assert isinstance(match, Match)
    return match


async def _play(match: Match, context: RunContext, players: Sequence[Player]) -> int | None:
    """Play until the game is over or its time is up. Returns the seat that failed, if one did."""
    limit = context.limits.episode_timeout_s
    deadline = Deadline(limit) if limit is not None else None
    was_reset = False
    try:
        with deadline or nullcontext():
            with ExitStack() as stack:
                for player in players:
                    stack.enter_context(player.recorder.timed("setup"))
                await guarded_method(match, "reset", match.reset(copied_task(players[0].slot.task)))
            was_reset = True
            return await _play_seats(match, context, players)
    except TimeoutError:
        if deadline is None or not deadline.expired():
            raise  # of the game, not of the episode
        if not was_reset:
            raise EnvError(f"reset() did not finish within {limit:g} s", kind="timeout") from None
        for player in players:
            player.recorder.outcome.end("truncated", "timeout")
        return None


async def _play_seats(match: Match, context: RunContext, players: Sequence[Player]) -> int | None:
    """Run the referee and every seat in tasks of their own. Returns the seat that failed, if one did."""
    referee = Referee(match, [player.recorder for player in players])
    failures: list[_SeatFailed | _GameFailed] = []  # the first is the cause; the others were cancelled for it
    tasks: list[asyncio.Task[None]] = []

    async def run_task(work: Callable[[], Awaitable[None]]) -> None:
        # If a task raised, the group would cancel the task that waits here, and that would stay counted there.
        try:
            await work()
        except (_SeatFailed, _GameFailed) as problem:
            failures.append(problem)
            for task in tasks:
                task.cancel()

    for player in players:
        player.recorder.phase = "env"
    async with asyncio.TaskGroup() as group:
        tasks.append(group.create_task(run_task(partial(_run_referee, referee))))
        for player, seat in zip(players, referee.seats, strict=True):
            tasks.append(group.create_task(run_task(partial(_play_seat, match, seat, context, player))))
    cause = failures[0] if failures else None
    if isinstance(cause, _GameFailed):
        raise cause.problem
    return cause.seat if cause is not None else None


async def _run_referee(referee: Referee) -> None:
    try:
        await referee.run()
    except BaseException as problem:
        if is_ours(problem):
            raise
        raise _GameFailed(problem) from None


async def _play_seat(match: Match, seat: SeatChannel, context: RunContext, player: Player) -> None:
    """Play one seat until it has ended. Raises _SeatFailed if it failed."""
    recorder = player.recorder
    try:
        with recorder.timed("env"):
            opening = await seat.receive()
        if opening.stop is not None:  # the game was over before the seat had a turn
            recorder.outcome.end("completed", opening.stop)
            return
        await _run_agent(SeatEnv(match, seat, opening), context, player)
    except BaseException as problem:
        if is_ours(problem):
            raise
        owner: Owner = "policy" if recorder.phase == "policy" else "env"
        recorder.outcome.fail(error_record(problem, owner=owner, phase=recorder.phase))
    finally:
        seat.leave()
    if recorder.outcome.status == "failed":
        raise _SeatFailed(seat.number)


async def _run_agent(env: SeatEnv, context: RunContext, player: Player) -> None:
    """Let the agent of a seat act until the seat has ended. Opponents are not offered the run's own tools."""
    recorder, agent = player.recorder, player.setup.agent
    async with AsyncExitStack() as stack:
        run_tools = (
            await stack.enter_async_context(open_run_tools(context, recorder))
            if player.opponent is None
            else ()
        )
        session = EpisodeSession(player.slot, env, context, recorder, run_tools, player.opponent)
        await session.reset()
        await guarded_method(agent, "run", agent.run(session))
        await session.finish()


def _fail_all(recorders: Sequence[Recorder], failed_seat: int) -> None:
    """Fail every seat because one has failed."""
    error = recorders[failed_seat].outcome.error
    assert error is not None
    error_of_others = ErrorRecord(
        owner=error.owner,
        kind="seat",
        message=f"seat {failed_seat} failed, and with it the episode: {error.kind}: {error.message}",
        phase=error.phase,
        retryable=error.retryable,
    )
    for seat, recorder in enumerate(recorders):
        seat_error = error if seat == failed_seat else error_of_others
        recorder.outcome.overrule("failed", "error", error=seat_error)


def _score_of(match: Match, recorder: Recorder) -> EnvScore | None:
    if type(match).score is Match.score:
        return None
    assert recorder.seat is not None
    seat = recorder.seat.number
    return lambda episode: guarded_method(match, "score", match.score(seat, episode))
