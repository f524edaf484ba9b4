"""The settings of a browser pool: part of the settings of the environment that uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from windrow.envs.web.network_policy import NetworkPolicy

Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing here changes what a policy sees, but for `allow` and `max_traffic_mb`."""

    browsers: Count = 2  # processes (or connections to `cdp_url`) at most
    contexts: Count = 32  # leases at a time in each
    starts: Count = 4  # contexts that are made at a time
    navigations: Count = 8  # pages that load at a time
    commands: Count = 16  # other commands at a time
    max_uses: Count = 1_000  # leases of a browser before another takes its place
    max_age_s: Seconds = 3_600.0
    max_memory_mb: Count = 4_096  # of a browser's own; at twice that it is killed
    start_timeout_s: Seconds = 60.0
    navigate_timeout_s: Seconds = 30.0
    command_timeout_s: Seconds = 30.0
    max_pages: Count = 8  # tabs of a lease; further ones are closed
    max_traffic_mb: Count = 512  # that the pages of a lease may load
    allow: tuple[str, ...] = ()  # addresses that are not public, and may be visited all the same
    cdp_url: tuple[str, ...] | str | None = None  # browsers that run elsewhere
    chromium: str | None = None  # the executable, where it is not the one that is found
    chromium_args: tuple[str, ...] = ()
    sandbox: bool | None = None  # Chromium's own; None: on, unless we are root, whom it does not serve

    @property
    def urls(self) -> tuple[str, ...]:
        if self.cdp_url is None:
            return ()
        return (self.cdp_url,) if isinstance(self.cdp_url, str) else self.cdp_url


POOL_FIELDS = frozenset(PoolSettings.__struct_fields__)


def pool_settings(settings: Mapping[str, Any] | PoolSettings) -> PoolSettings:
    """The pool's part of an environment's settings; raises ValueError where one is wrong."""
    if isinstance(settings, PoolSettings):
        settings = {name: getattr(settings, name) for name in POOL_FIELDS}
    pool_part = {name: value for name, value in settings.items() if name in POOL_FIELDS}
    try:
        converted = msgspec.convert(pool_part, PoolSettings, strict=True)
        NetworkPolicy(converted.allow)
    except (msgspec.ValidationError, ValueError) as problem:
        raise ValueError(str(problem)) from None
    return converted
