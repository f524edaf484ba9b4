"""An episode that was played elsewhere, as far as it is known here: what a session writes down of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from windrow.errors import WindrowError
from windrow.policies import Completion
from windrow.records import Json, Message, Stop


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """What names an attempt to whoever plays it, and what is asked of them.

    `retries` and `backoff_s` are for a connection that nobody takes; whatever was sent is an attempt of its own.
    """

    id: str
    attempt: int
    sample: int
    sampling: Mapping[str, Json]
    retries: int
    backoff_s: float


class Said(msgspec.Struct, frozen=True):
    """A model call: its reply, with the tokens as they were given (the whole prompt). `info` is kept as it is."""

    completion: Completion
    info: Json = None


class Heard(msgspec.Struct, frozen=True):
    """What came between model calls: a tool's result (role `tool`), or a message of the environment."""

    message: Message


Piece = Said | Heard


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """How an episode went. It ended with `stop`, unless it failed (`error`) or is to be played again (`interrupted`).

    `tools` are the schemas that the model was shown, `state` is what scorers find in the episode's.
    """

    tools: tuple[Mapping[str, Json], ...] = ()
    pieces: tuple[Piece, ...] = ()
    stop: Stop = "answered"
    error: WindrowError | None = None
    interrupted: bool = False
    state: Json = None
    metrics: Mapping[str, float] = {}
