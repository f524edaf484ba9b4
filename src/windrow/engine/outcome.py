"""An outcome: what of a finished attempt is counted. A rollout is one; so is what a worker reports of it."""

from __future__ import annotations

from typing import Protocol

from windrow.records import ErrorRecord, Grade, Reason, Status, Usage


class Outcome(Protocol):
    """How one seat of an attempt has ended, what it got, and what it cost."""

    @property
    def agent(self) -> str: ...
    @property
    def status(self) -> Status: ...
    @property
    def reason(self) -> Reason | None: ...
    @property
    def error(self) -> ErrorRecord | None: ...
    @property
    def grade(self) -> Grade: ...
    @property
    def reward(self) -> float | None: ...
    @property
    def usage(self) -> Usage: ...
    @property
    def done(self) -> bool: ...
    @property
    def opponent(self) -> bool: ...
