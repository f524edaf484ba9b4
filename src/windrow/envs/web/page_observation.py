"""One observation of the current page, and its text for the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from windrow.envs.web.page_report import one_line
from windrow.envs.web.page_snapshot import MAX_TITLE_CHARS, MAX_URL_CHARS, PageSnapshot, short
from windrow.envs.web.screenshots import Picture

if TYPE_CHECKING:
    from playwright.async_api import Page

MAX_DIALOGS = 3  # reported per step


class PageObservation(msgspec.Struct, frozen=True, kw_only=True):
    """One observation of the current page. `snapshot` is None if the page does not answer."""

    url: str
    title: str
    text: str  # the page's address and state and, if wanted, its text
    snapshot: PageSnapshot | None
    picture: Picture | None
    tab: int
    tabs: int
    dialogs: tuple[str, ...]
    seconds: float


def observation_of(
    page: Page,
    pages: list[Page],
    snapshot: PageSnapshot | None,
    *,
    picture: Picture | None,
    dialogs: tuple[str, ...],
    unopened: int,
    state: str,
    has_text: bool,
    seconds: float,
) -> PageObservation:
    """The observation of `page`, one of the tabs `pages`. `state` is reported in place of a missing snapshot."""
    url = snapshot.url if snapshot is not None else page.url
    title = short(snapshot.title, MAX_TITLE_CHARS) if snapshot is not None else ""
    lines = [f"Page: {title or '(no title)'}", f"URL: {short(url, MAX_URL_CHARS)}"]
    if len(pages) > 1:
        tabs = (
            f"[{number}] {short(tab.url, 100)}{' (current)' * (tab == page)}"
            for number, tab in enumerate(pages, start=1)
        )
        lines.append(f"Tabs: {', '.join(tabs)}")
    if unopened:
        lines.append(f"(no room for {unopened} more tabs that the page opened: close one first)")
    lines += _dialog_lines(dialogs)
    if snapshot is None:
        lines.append(state)
    elif url.startswith("chrome-error:"):
        lines.append("The page could not be opened.")
    else:
        top, height, screen = snapshot.scroll
        if height > screen + 1:
            lines.append(f"Scrolled: {top} of {height - screen} pixels")
        if has_text:
            lines += ["", snapshot.body()]
    return PageObservation(
        url=url,
        title=title,
        text="\n".join(lines),
        snapshot=snapshot,
        picture=picture,
        tab=pages.index(page) + 1 if page in pages else 0,
        tabs=len(pages),
        dialogs=dialogs,
        seconds=seconds,
    )


def _dialog_lines(dialogs: tuple[str, ...]) -> list[str]:
    lines = [
        f"A dialog was closed, which said: {short(one_line(dialog), 500)}" for dialog in dialogs[:MAX_DIALOGS]
    ]
    if len(dialogs) > MAX_DIALOGS:
        lines.append(f"({len(dialogs) - MAX_DIALOGS} more dialogs were closed)")
    return lines
