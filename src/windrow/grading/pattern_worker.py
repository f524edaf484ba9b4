"""The part of grading that runs configured regular expressions, in a confined process (`util/fork_server.py`).

`re` backtracks: a pattern and a reply can keep it busy for ever, in one call that holds the interpreter. Here the kernel ends
it. Each job does what the same function would do in the run's own process, so verdicts do not depend on where they are made.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import msgspec

from windrow.grading.answers import AnswerMatch, regex
from windrow.grading.judge_replies import Mark, configured_pattern, read_mark
from windrow.grading.pattern_processes import CPU_S
from windrow.grading.preference import Preference, read_preference
from windrow.records import Json
from windrow.tasks.rubrics import Scale


def _regex(reply: str, pattern: str, answer: Json) -> AnswerMatch:
    return regex(reply, answer, {"pattern": pattern})


def _mark(reply: str, pattern: str, scale: Any) -> Mark:
    return read_mark(reply, pattern, msgspec.convert(scale, Scale), configured=True)


def _preference(reply: str, pattern: str, verdict: str) -> Preference:
    return read_preference(reply, configured_pattern(pattern), verdict)


_JOBS: dict[str, Callable[..., Any]] = {"regex": _regex, "mark": _mark, "preference": _preference}


def prepare(argument: str) -> None:
    """Nothing is to be made ready."""


def answer(question: bytes) -> bytes:
    """`{do, reply, pattern, …}` → `{result}`, or `{wrong}` if the reply is not in the form that was asked for."""
    asked = msgspec.json.decode(question)
    job = _JOBS[asked.pop("do")]
    signal.setitimer(signal.ITIMER_PROF, CPU_S)  # nothing handles its signal, which ends the process
    try:
        done = {"result": job(**asked)}
    except ValueError as wrong:
        done = {"wrong": str(wrong)}
    except Exception as problem:
        done = {"error": f"{type(problem).__name__}: {problem}"}
    signal.setitimer(signal.ITIMER_PROF, 0)
    return msgspec.json.encode(done)
