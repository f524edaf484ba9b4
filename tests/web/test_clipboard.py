"""A clipboard for each context: what one episode copies, no other one pastes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.collect_helpers import collected
from tests.web.oracle import seen
from tests.web.playing import pages, visited
from tests.web.sites import Sites
from windrow.policies.base import Request
from windrow.policies.scripted import CallablePolicy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COPY = ("click({full})", "press('Control+a')", "press('Control+c')")
PASTE = ("click({empty})", "press('Control+v')", "click(3)")


async def test_eight_episodes_at_a_time_copy_and_paste_each_their_own_text(tmp_path: Path) -> None:
    all_copied = asyncio.Barrier(8)

    async def copying(request: Request) -> str:
        view = seen(request)
        full = 1 if "value=" in view.elements[0].rest else 2
        step = len(view.done)
        if step == len(COPY):
            await all_copied.wait()  # nobody pastes before the last one has copied
        return f"Action: {[*COPY, *PASTE][step].format(full=full, empty=3 - full)}"

    played = await collected(
        "miniwob:copy-paste?n=8",
        env="web",
        policy=CallablePolicy(copying, name="copying"),
        out=str(tmp_path / "run"),
        concurrency=8,
        sets=["env.settings.browsers=1"],
    )
    assert [rollout.reward for rollout in played] == [1.0] * 8


async def test_what_a_page_copies_is_pasted_on_another_page_and_in_no_other_episode(tmp_path: Path) -> None:
    with Sites() as sites:
        rows = {
            name: {"start_url": sites.url("/copy")} for name in ("button", "cut", "twice", "nothing copied")
        }
        played = await visited(
            sites,
            tmp_path / "run",
            {
                "button": ["Action: click(2)", "Action: goto('/form')", "Action: click(1)", "Action: press('Control+v')"],
                "cut": [
                    "Action: click(1)", "Action: press('Control+a')", "Action: press('Control+x')",
                    "Action: goto('/form')", "Action: click(4)", "Action: press('Shift+Insert')",
                ],
                "twice": [
                    "Action: click(1)", "Action: press('Control+a')", "Action: press('Control+c')",
                    "Action: press('End')", "Action: press('Control+v')", "Action: press('Control+v')",
                ],
                "nothing copied": ["Action: goto('/form')", "Action: click(1)", "Action: press('Control+v')"],
            },
            rows=rows,
        )  # fmt: skip
    assert '[1] textbox "Your name" value="made by the page" (required)' in pages(played["button"])[-1]
    assert '[4] textbox "A note" value="some words"' in pages(played["cut"])[-1]
    assert '[1] textbox "Words"\n' in pages(played["cut"])[3]
    assert 'value="some wordssome wordssome words"' in pages(played["twice"])[-1]
    assert '[1] textbox "Your name" (required)' in pages(played["nothing copied"])[-1]
