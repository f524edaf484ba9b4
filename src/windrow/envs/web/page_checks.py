"""The expectations of a row at the end of an episode: of the page's address, text and DOM, and of the answer.

    {"expect": {"url": "/orders/\\\\d+$", "text": ["2 apples"], "selector": "#done", "absent": ".error", "answer": "42"}}

`url`, `title` are regular expressions (without lookaround and backreferences) that are searched for; `text` must stand on the page; `selector` must match
something visible, `absent` nothing visible; `answer` is compared without regard to case and spaces. All must hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from windrow.records import Json, Score
from windrow.util.linear_patterns import linear_pattern

if TYPE_CHECKING:
    from playwright.async_api import Page

Several = str | list[str]


class Expect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str | None = None
    title: str | None = None
    text: Several | None = None
    selector: Several | None = None
    absent: Several | None = None
    answer: Several | None = None  # one of them


def expect_of(value: Json) -> Expect:
    """The expectations of a row; ValueError says what is wrong with them."""
    try:
        expect = msgspec.convert(value, Expect)
    except msgspec.ValidationError as problem:
        raise ValueError(f"'expect': {problem}") from None
    for name in ("url", "title"):
        try:
            linear_pattern(getattr(expect, name) or "")
        except ValueError as problem:
            raise ValueError(f"'expect.{name}': {problem}") from None
    if expect == Expect():
        raise ValueError("'expect' expects nothing: give url, title, text, selector, absent or answer")
    return expect


async def checked(expect: Expect, page: Page, answer: str | None) -> Score:
    """1 if all expectations hold, else 0. Each has its own score with weight 0; the page's values are the evidence."""
    held: dict[str, bool] = {}
    evidence: dict[str, Json] = {"url": page.url}
    if expect.url is not None:
        held["url"] = linear_pattern(expect.url).search(page.url) is not None
    if expect.title is not None:
        evidence["title"] = title = await page.title()
        held["title"] = linear_pattern(expect.title).search(title) is not None
    if expect.text is not None:
        text = _squeezed(str(await page.evaluate("document.body ? document.body.innerText : ''")))
        held["text"] = all(_squeezed(wanted) in text for wanted in _list(expect.text))
    if expect.selector is not None:
        held["selector"] = all([await _visible(page, css) for css in _list(expect.selector)])
    if expect.absent is not None:
        held["absent"] = not any([await _visible(page, css) for css in _list(expect.absent)])
    if expect.answer is not None:
        evidence["answer"] = answer
        normalized = _squeezed(answer or "").casefold()
        held["answer"] = answer is not None and normalized in [
            _squeezed(wanted).casefold() for wanted in _list(expect.answer)
        ]
    scores = {"expect": (float(all(held.values())), 1.0)}
    scores |= {f"expect.{name}": (float(holds), 0.0) for name, holds in held.items()}
    return Score(scores, evidence=evidence)


async def _visible(page: Page, css: str) -> bool:
    return await page.locator(css).filter(visible=True).count() > 0


def _list(value: Several) -> list[str]:
    return [value] if isinstance(value, str) else value


def _squeezed(text: str) -> str:
    return " ".join(text.split())
