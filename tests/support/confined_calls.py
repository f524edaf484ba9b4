"""A module for a fork server: it evaluates what it is asked, as a verifier may do with a model's reply.

The argument of `prepare` is code too: it runs in the server, before anything is confined.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

STATE: dict[str, Any] = {}


def prepare(argument: str) -> None:
    exec(argument, {})


def warm(key: str) -> None:
    STATE["warmed"] = STATE.get("warmed", 0) + 1


def answer(question: bytes) -> bytes:
    """The value of an expression as text, or what it raised."""
    try:
        names = {"os": os, "sys": sys, "time": time, "STATE": STATE, "waits_for": waits_for}
        return str(eval(question.decode(), names)).encode()
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}".encode()


def waits_for(path: str) -> str:
    """Return once the file is there."""
    while not Path(path).exists():
        time.sleep(0.01)
    return "done"
