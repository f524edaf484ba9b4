"""The scorer `math`: is the reply's final expression mathematically equal to the answer? (math-verify, extra `math`)

The last \\boxed{…} counts, else the last LaTeX or plain expression. `math.format` says whether there was one that
could be compared. A comparison that takes more than `cpu_s` seconds of processor time could not: it counts as neither
equal nor well formed. That is processor time, so a busy machine changes no verdict. What equals an answer is that
answer; other replies say the same when sympy writes their expressions alike.

What the text alone does not decide is judged in a confined process of its own (see `math_worker`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec

import msgspec

from windrow.errors import ScorerError
from windrow.grading.answers import AnswerMatch, answers_of
from windrow.grading.math_worker import judge_text
from windrow.grading.verdict_processes import Processes, decoded
from windrow.records import Json
from windrow.registry import extra_needed
from windrow.util.forked_calls import ForkServer

CPU_S = 5
SHORT_CHARS = 20_000  # of a reply that is looked at here, on the event loop

_workers = Processes(
    ForkServer("windrow.grading.math_worker"), who="scorer 'math'", at_once=os.cpu_count() or 1
)


class _Verdict(msgspec.Struct, frozen=True):
    correct: bool = False
    formed: bool = False
    said: str | None = None
    error: str | None = None


def check_installed() -> None:
    if find_spec("math_verify") is None:
        raise extra_needed("math", "scorer 'math'")


async def math_judge(reply: str, answer: Json, settings: Mapping[str, Json]) -> AnswerMatch:
    if len(reply) <= SHORT_CHARS and (decided := judge_text(reply, answers_of(answer))) is not None:
        return AnswerMatch(decided["correct"], decided["formed"], decided["said"])
    cpu_s = int(settings.get("cpu_s", CPU_S))
    said = await _workers.ask({"reply": reply, "answers": answers_of(answer)}, cpu_s=cpu_s + 1)
    if said is None:
        return AnswerMatch(False, False)
    verdict = decoded(said, _Verdict, "scorer 'math'")
    if verdict.error is not None:
        raise ScorerError(f"scorer 'math': {verdict.error}", retryable=False)
    return AnswerMatch(verdict.correct, verdict.formed, verdict.said)
