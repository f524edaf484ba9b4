"""Regular expressions of the configuration, matched with `re` in processes that can be ended (see `pattern_worker`).

A process serves one reply after another, since it runs nothing but `re`. One that runs out of time is gone, and that verdict
has failed; the event loop never waits for a pattern.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from windrow.errors import ScorerError
from windrow.grading import answers
from windrow.grading.answers import AnswerMatch
from windrow.grading.verdict_processes import Places
from windrow.records import Json
from windrow.util.forked_calls import CallFailed, Child, ForkServer

T = TypeVar("T")

CPU_S = 5.0  # for one reply
REPLIES = 1000  # that a process serves, before another takes its place
_LIFE_CPU_S = int(REPLIES * CPU_S) + 1


class _Done(msgspec.Struct, frozen=True):
    result: Any = None
    wrong: str | None = None
    error: str | None = None


class _Worker:
    """A process, and how many replies it has served."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.served = 0


_server = ForkServer("windrow.grading.pattern_worker")
_idle: list[_Worker] = []
_places = Places(os.cpu_count() or 1)
os.register_at_fork(after_in_child=_idle.clear)  # a fork would read the other's answers


async def regex_judge(reply: str, answer: Json, settings: Mapping[str, Json]) -> AnswerMatch:
    """The scorer `regex`. A pattern of the row is matched in linear time, and needs no process."""
    pattern = settings.get("pattern")
    if pattern is None:
        return answers.regex(reply, answer, settings)
    return await matched("regex", AnswerMatch, reply=reply, pattern=pattern, answer=answer)


async def matched(job: str, kind: type[T], *, pattern: str, **arguments: Any) -> T:
    """Return what the job finds with the pattern. ValueError says what is wrong with the reply; ScorerError, that the
    pattern could not be matched.
    """
    question = msgspec.json.encode({"do": job, "pattern": pattern, **arguments})
    async with _places.taken():
        try:
            answer = await _answer(question)
        except CallFailed as problem:
            why = (
                f"was not matched within {CPU_S:g} s of processor time"
                if problem.out_of_time
                else f"failed: {problem}"
            )
            raise ScorerError(
                f"the pattern {pattern[:80]!r} {why}", kind="pattern", retryable=False
            ) from None
    done = msgspec.json.decode(answer, type=_Done)
    if done.wrong is not None:
        raise ValueError(done.wrong)
    if done.error is not None:
        raise ScorerError(f"the pattern {pattern[:80]!r}: {done.error}", retryable=False)
    return msgspec.convert(done.result, kind)


async def _answer(question: bytes) -> bytes:
    """Ask an idle process, or a new one. An idle one may have ended meanwhile."""
    while _idle:
        try:
            return await _asked(_idle.pop(), question)
        except CallFailed as problem:
            if problem.out_of_time:
                raise
    return await _asked(_Worker(await _server.child(cpu_s=_LIFE_CPU_S)), question)


async def _asked(worker: _Worker, question: bytes) -> bytes:
    try:
        answer = await worker.child.ask(question)
    except BaseException:  # also a time limit: what the process is at is of no use to anyone
        worker.child.close()
        raise
    worker.served += 1
    if worker.served < REPLIES:
        _idle.append(worker)
    else:
        worker.child.close()
    return answer
