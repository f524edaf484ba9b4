"""What can be used on a page though only a listener, a style sheet or a drawing says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.web.playing import pages, results, visited
from tests.web.sites import Sites

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_what_only_listens_or_hovers_has_a_number_and_words_of_a_drawing_are_text(
    tmp_path: Path,
) -> None:
    numbers = {"heard": 1, "set": 2, "item": 4, "circle": 6}
    with Sites() as sites:
        played = await visited(
            sites,
            tmp_path / "run",
            {
                **{name: [f"Action: click({number})"] for name, number in numbers.items()},
                "menu": ["Action: hover(5)"],
            },
            rows={name: {"start_url": sites.url("/signs")} for name in (*numbers, "menu")},
        )
    assert pages(played["heard"])[0].splitlines()[3:] == [
        '[1] div "Heard"',
        '[2] div "Set"',
        "Plain",
        '[3] li "first"',
        '[4] li "second"',
        '[5] div "Menu"',
        "Drawn words",
        "[6] circle (rgb(255, 0, 0), 20 × 20)",
        "nothing yet",
    ]
    last = {name: pages(played[name])[-1].splitlines()[-1] for name in numbers}
    assert last == {"heard": "heard it", "set": "set it", "item": "item second", "circle": "circle"}
    assert 'link "Apples below"' in pages(played["menu"])[1]


async def test_several_options_are_chosen_at_once_and_tabs_are_closed_and_counted(tmp_path: Path) -> None:
    with Sites() as sites:
        played = await visited(
            sites,
            tmp_path / "run",
            {
                "lists": ["Action: select(1, ['apple', 'plum'])", "Action: select(2, ['a', 'b'])", "Action: click(3)"],
                "tabs": [
                    "Action: click(1)", "Action: close(2)", "Action: close(1)", "Action: close(5)",
                    "Action: click(2)", "Action: close(8)", "Action: wait(0.1)",
                ],
            },
            rows={name: {"start_url": sites.url(f"/{name}")} for name in ("lists", "tabs")},
        )  # fmt: skip
    assert "f=apple&f=plum&one=a" in pages(played["lists"])[-1]
    assert "takes one option, not 2" in results(played["lists"])[1]
    told, shown = results(played["tabs"]), pages(played["tabs"])
    assert "Tabs: [1]" in shown[1]
    assert told[1] == "Closed tab 2."
    assert "Page: Tabs" in shown[2]
    assert "Tabs:" not in shown[2]
    assert "this is the only tab" in told[2]
    assert "there is no tab 5; there are 1" in told[3]
    assert "[8]" in shown[5]
    assert "[9]" not in shown[5]
    assert "(no room for 5 more tabs that the page opened: close one first)" in shown[5]
    assert "[8]" not in shown[6]
    assert played["tabs"].state["tabs"] == 7


async def test_dialogs_are_answered_as_the_settings_say_and_a_loop_of_them_can_be_left(
    tmp_path: Path,
) -> None:
    with Sites() as sites:
        rows = {"ask": {"start_url": sites.url("/popup")}, "loop": {"start_url": sites.url("/alerts")}}
        played = await visited(
            sites,
            tmp_path / "run",
            {"ask": ["Action: click(4)"], "loop": ["Action: click(1)", "Action: goto('/apples')"]},
            rows=rows,
            settings={"dialogs": "accept", "action_s": 2, "observe_s": 10},
        )
    assert 'button "yes"' in pages(played["ask"])[1]
    loop = played["loop"]
    assert (loop.status, loop.stop) == ("completed", "answered")
    assert "(47 more dialogs were closed)" in pages(loop)[1]
    assert "The page does not answer." in pages(loop)[1]
    assert "Page: Apples" in pages(loop)[-1]
