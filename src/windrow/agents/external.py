"""An episode that was played elsewhere, as the agent hands it to its session (`Session.record`)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from windrow.errors import WindrowError
from windrow.policies import Completion
from windrow.records import Json, Message, Stop


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt that is to be played elsewhere: its name, and the sampling that the run asks for.

    `retries` and `backoff_s` are for connections that are refused. A request that was sent is never repeated within
    the attempt.
    """

    id: str
    attempt: int
    sample: int
    sampling: Mapping[str, Json]
    retries: int
    backoff_s: float


class ModelTurn(msgspec.Struct, frozen=True):
    """A model call: its completion, with the tokens of the whole prompt. `info` is recorded as it is."""

    completion: Completion
    info: Json = None


class InputMessage(msgspec.Struct, frozen=True):
    """A message that the model read between its calls: a tool's result (role `tool`), or one of the environment."""

    message: Message


Piece = ModelTurn | InputMessage
Said, Heard = ModelTurn, InputMessage  # their former names


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """How an episode went. It ended with `stop`, unless it failed (`error`) or is to be played again (`interrupted`).

    `tools` are the schemas that the model was shown; `state` becomes the episode's state, which scorers read.
    """

    tools: tuple[Mapping[str, Json], ...] = ()
    pieces: tuple[Piece, ...] = ()
    stop: Stop = "answered"
    error: WindrowError | None = None
    interrupted: bool = False
    state: Json = None
    metrics: Mapping[str, float] = {}
