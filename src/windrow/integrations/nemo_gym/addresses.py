"""The spelling of a head server after the name of the agent or the scorer: `nemo-gym:URL`."""

from __future__ import annotations

import re

from windrow.records import Json

_HEAD_AND_AGENT = re.compile(
    r"((?:\w+://)?(?:\$\{[^}]*\}|[^/])*)(.*)", re.S
)  # an address, and a name after a slash


def agent_settings(address: str) -> dict[str, Json]:
    """Read `URL[/AGENT]`: the head server, and the agent for rows that name none."""
    match = _HEAD_AND_AGENT.fullmatch(address)
    assert match is not None
    head, agent = match[1], match[2].strip("/")
    return {"head": head, **({"agent": agent} if agent else {})}


def scorer_settings(address: str) -> dict[str, Json]:
    return {"head": address}
