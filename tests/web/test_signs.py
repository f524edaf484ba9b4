"""What can be used on a page though only a listener, a style sheet or a drawing says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.web.playing import pages, visited
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
