"""Walls: pages that a site shows to robots instead of the requested one.

A page is a wall when the server refused it (403, 429), or when it is a short page that asks for a proof of being human
or says that access is denied. A captcha in a page with other content, such as a form, is no wall.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from windrow.envs.web.page_snapshot import PageSnapshot, short
from windrow.records import Json

Kind = Literal["refused", "captcha", "bot_wall"]

REFUSALS = (403, 429)
WALL_CHARS = 2_000  # a page with more text than this has content of its own
CAPTCHA_CHARS = 600
_TITLES = re.compile(
    r"^(just a moment|attention required|access denied|access to this page has been denied|pardon our interruption|"
    r"robot check|are you (a )?(human|robot)|security check|verify(ing)? (that )?you are (a )?human|"
    r"please verify you are (a )?human|human verification|bot verification|blocked|403 forbidden|forbidden|"
    r"too many requests)\b",
    re.IGNORECASE,
)
_PHRASES = re.compile(
    r"verify(ing)? (that )?you are (a )?human|are you a robot|i'?m not a robot|not a robot|unusual traffic from your|"
    r"complete the (security check|captcha)|solve the captcha|automated (access|requests|queries)|"
    r"enable javascript and cookies to continue|checking (if the site connection is secure|your browser before)|"
    r"you have been blocked|access (to this (page|site|resource) )?(is|has been) denied|bot (activity|traffic) (was )?detected|"
    r"prove (that )?you are (a )?human|press (&|and) hold to confirm",
    re.IGNORECASE,
)


class Wall(msgspec.Struct, frozen=True):
    kind: Kind
    url: str
    why: str

    def as_record(self) -> Json:
        return {"kind": self.kind, "url": self.url, "why": self.why}


def wall(snapshot: PageSnapshot) -> Wall | None:
    """The wall on this page, if there is one."""
    if snapshot.status in REFUSALS:
        return Wall("refused", snapshot.url, f"HTTP {snapshot.status}")
    if snapshot.captcha and snapshot.text_chars <= CAPTCHA_CHARS:
        return Wall("captcha", snapshot.url, "a captcha, and little else")
    if snapshot.text_chars > WALL_CHARS:
        return None
    match = _TITLES.match(snapshot.title.strip()) or _PHRASES.search(snapshot.beginning)
    return Wall("bot_wall", snapshot.url, short(match[0], 80)) if match else None
