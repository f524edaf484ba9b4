"""The settings of the environment `web`, without those of its browsers (`pool_settings`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from windrow.config import nearest
from windrow.envs.web.actions import Pointing
from windrow.envs.web.page_snapshot import SnapshotLimits
from windrow.envs.web.pool_settings import POOL_FIELDS, pool_settings
from windrow.envs.web.screenshots import Format
from windrow.records import Json

Observe = Literal["text", "screenshot", "marks", "text+screenshot", "text+marks"]
Side = Annotated[int, Meta(ge=64, le=4096)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Count = Annotated[int, Meta(ge=1)]
Some = Annotated[int, Meta(ge=0)]

# Locations: they do not shape behaviour.
ELSEWHERE = frozenset({"blocklist", "base_url"})


class WebOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    observe: Observe = "text"
    actions: Literal["text", "tools"] = "text"
    history: Count | None = 3  # pages that stay in view, the current one among them; None: all
    dialogs: Literal["dismiss", "accept"] = "dismiss"  # how those of a page are answered
    coordinates: Literal["pixels", "thousandths"] = "pixels"
    viewport: tuple[Side, Side] = (1280, 768)
    image: Format = "png"
    max_chars: Annotated[int, Meta(ge=200, le=1_000_000)] = 8_000
    max_elements: Count = 200
    max_nodes: Count = 50_000
    action_s: Seconds = 3.0  # for an element to become usable
    settle_s: Seconds = 5.0  # for a page to come to rest
    quiet_s: Annotated[float, Meta(ge=0, le=10)] = 0.05  # without a change: at rest
    observe_s: Seconds = 15.0
    max_wait_s: Seconds = 10.0  # that a policy may ask for at once
    max_bad_actions: Some = 3  # in a row that are corrected; the next one ends the episode
    max_blocked: Count = 3  # walls in a row
    max_homepage_backs: Count = 3  # in a row
    lease_s: Annotated[float, Meta(gt=0)] = 3600.0
    base_url: str | None = None  # where a row's start_url that is only a path begins
    blocklist: str | None = None
    page_reward: str | None = None

    @property
    def has_text(self) -> bool:
        return self.observe.startswith("text")

    @property
    def picture(self) -> bool:
        return self.observe != "text"

    @property
    def marked(self) -> bool:
        return self.observe.endswith("marks")

    @property
    def pointing(self) -> Pointing:
        """A policy that sees numbers uses them; one that sees the screen may use coordinates."""
        if self.observe == "screenshot":
            return "coordinates"
        return "both" if self.observe == "text+screenshot" else "elements"

    @property
    def caps(self) -> SnapshotLimits:
        return SnapshotLimits(
            walk=self.observe != "screenshot",  # which shows neither text nor numbers
            max_chars=self.max_chars,
            max_elements=self.max_elements,
            max_nodes=self.max_nodes,
        )

    @property
    def scale(self) -> tuple[float, float]:
        """The factors from the policy's coordinates to pixels."""
        if self.coordinates == "pixels":
            return 1.0, 1.0
        return self.viewport[0] / 1000, self.viewport[1] / 1000


def web_options(settings: Mapping[str, Json]) -> WebOptions:
    """The environment's part of the settings; ValueError says what is wrong with either part."""
    names = {*WebOptions.__struct_fields__, *POOL_FIELDS}
    for name in settings:
        if name not in names:
            raise ValueError(f"'web' has no setting {name!r}{nearest(name, sorted(names))}")
    pool_settings(settings)
    web_part = {name: value for name, value in settings.items() if name not in POOL_FIELDS}
    try:
        return msgspec.convert(web_part, WebOptions)
    except msgspec.ValidationError as problem:
        raise ValueError(str(problem)) from None


def shaping(settings: Mapping[str, Json]) -> dict[str, Json]:
    """The settings that shape behaviour: those of the browsers do not."""
    return {name: value for name, value in settings.items() if name not in POOL_FIELDS | ELSEWHERE}
