"""An agent written for the former name of `external` plays as it did."""

from __future__ import annotations

import pytest

from tests.support.collect_helpers import collected
from windrow import agents
from windrow.agents import Agent, Played, Session
from windrow.errors import UsageError


class Elsewhere(Agent):
    plays_itself = True

    async def run(self, session: Session) -> None:
        session.record(Played(stop="answered"))


async def test_an_agent_that_plays_itself_is_external_and_no_policy_is_asked(tmp_path) -> None:
    [rollout] = await collected([{"prompt": "?"}], agent=Elsewhere, env="prompt", out=str(tmp_path / "run"))
    assert (rollout.status, rollout.stop, rollout.policy.model) == ("completed", "answered", "remote")
    with pytest.raises(UsageError, match="plays by itself"):
        await collected([{"prompt": "?"}], agent=Elsewhere, env="prompt", model="m", out=str(tmp_path / "b"))


def test_either_name_may_be_set_and_both_are_read() -> None:
    class Now(Agent):
        external = True

    class Mixin:
        plays_itself = True

    class Mixed(Mixin, Agent):
        pass

    class Heir(Elsewhere):
        pass

    class Home(Elsewhere):
        external = False

    class HomeAsBefore(Now):
        plays_itself = False

    names = {kind: (kind.external, kind.plays_itself) for kind in (Now, Elsewhere, Mixed, Heir)}
    assert set(names.values()) == {(True, True)}
    names = {kind: (kind.external, kind.plays_itself) for kind in (Agent, Home, HomeAsBefore)}
    assert set(names.values()) == {(False, False)}


def test_the_parts_of_an_episode_played_elsewhere_have_their_former_names_too() -> None:
    assert (agents.Said, agents.Heard) == (agents.ModelTurn, agents.InputMessage)
