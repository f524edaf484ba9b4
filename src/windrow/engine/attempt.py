"""An attempt: one try at a slot, played as an episode or, for a game with several seats, as a match."""

from __future__ import annotations

from windrow.engine.context import RunContext
from windrow.engine.episode import play_episode
from windrow.engine.match import play_match
from windrow.envs import Match
from windrow.records import Rollout
from windrow.tasks.plan import Slot


async def attempt(slot: Slot, context: RunContext) -> tuple[Rollout, ...]:
    """The rollouts of one attempt, one per seat. A cancellation is raised as `Interrupted`, which carries them."""
    setup = context.task_setup(slot.task)
    if issubclass(setup.episode.env, Match):
        return await play_match(slot, context, setup.episode)
    return (await play_episode(slot, context, setup),)
