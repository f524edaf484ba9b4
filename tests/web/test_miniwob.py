"""MiniWoB++ in a real Chromium: what the page gives is the reward, and a seed decides what is to be seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import answering, collected
from tests.support.task_loading import refusal, tasks_of
from tests.web.oracle import TASKS, oracle, seen
from windrow import Rollout
from windrow.integrations.miniwob.tasks import NOT_DONE, games
from windrow.policies.base import Request

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def played(
    out: Path, source: Any, policy: Callable[[Request], str], **options: Any
) -> dict[str, Rollout]:
    """The rollouts of a source, by task."""
    options = {
        "env": "web",
        "out": str(out),
        "concurrency": 6,
        "sets": ["env.settings.browsers=1", "limits.max_turns=14"],
        **options,
    }
    found = await collected(source, policy=answering(policy), **options)
    return {rollout.task.key: rollout for rollout in found}


async def test_a_policy_that_reads_what_it_is_shown_is_rewarded_by_the_page(tmp_path: Path) -> None:
    rows = [{"id": game, "env": "web", "page_reward": "miniwob", "game": game, "seed": 1} for game in TASKS]
    found = await played(tmp_path / "run", rows, oracle)
    ends = {game: (rollout.reward, rollout.stop) for game, rollout in found.items()}
    assert ends == dict.fromkeys(TASKS, (1.0, "env_done"))
    assert len(TASKS) >= 20


async def test_a_policy_that_does_something_else_gets_what_the_page_gives(tmp_path: Path) -> None:
    def other(request: Request) -> str:
        """Clicks the button that was not meant."""
        view = seen(request)
        wanted = "ONE" if "ONE" in view.task else "TWO"
        return f"Action: click({next(e.number for e in view.elements if e.name != wanted)})"

    found = await played(tmp_path / "other", "miniwob:click-test-2?n=3", other)
    assert [(rollout.reward, rollout.stop) for rollout in found.values()] == [(-1.0, "env_done")] * 3
    given_up = await played(tmp_path / "none", "miniwob:click-test-2?n=2", lambda request: "Action: answer()")
    assert [(rollout.reward, rollout.stop) for rollout in given_up.values()] == [(NOT_DONE, "answered")] * 2


async def test_a_seed_shows_the_same_whatever_the_page_was_used_for_before(tmp_path: Path) -> None:
    def shown(found: dict[str, Rollout]) -> dict[str, list[Any]]:
        return {key: [message.content for message in rollout.messages] for key, rollout in found.items()}

    source = "miniwob:click-checkboxes?n=6"
    in_one_page = await played(tmp_path / "one", source, oracle, concurrency=1)
    side_by_side = await played(tmp_path / "six", source, oracle, concurrency=6)
    assert shown(in_one_page) == shown(side_by_side)
    assert len({str(messages) for messages in shown(in_one_page).values()}) == 6


async def test_an_episode_cannot_go_back_to_the_one_before_it_in_its_page(tmp_path: Path) -> None:
    found = await played(
        tmp_path / "run",
        "miniwob:click-t*?n=1",
        lambda request: "Action: back()",
        concurrency=1,
        sets=["env.settings.browsers=1", "limits.max_turns=2"],
    )
    assert len(found) > 3
    for rollout in found.values():
        told = [message.text for message in rollout.messages if message.origin == "env"]
        assert all(
            "there is no page to go back to" in text or f"/{rollout.task['game']}.html" in text
            for text in told
        )
        assert all(call.failed for turn in rollout.turns for call in turn.tool_calls)


def test_all_tasks_are_found_by_name_or_pattern() -> None:
    rows = tasks_of("miniwob:*?n=2&seed=5")
    assert len(rows) == 2 * len(games()) == 260
    assert Counter(row["seed"] for row in rows) == {5: 130, 6: 130}
    assert {row["game"] for row in tasks_of("miniwob:enter-*?n=1")} == {
        game for game in games() if game.startswith("enter-")
    }
    assert "click-test" in refusal("miniwob:clik-test")
    assert "has no parameter 'seeds'" in refusal("miniwob:click-test?seeds=3")
