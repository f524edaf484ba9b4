"""The process that runs math-verify: it reads one question per line on standard input and writes one verdict per
line.

The module imports only the standard library and math-verify. Arithmetic on a model's reply may take forever or use
all memory (`9^{9^{9}}`) inside one call into C, which no timer of ours could stop. So the kernel limits the process,
and the caller sees it end.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import time
from typing import Any

MEMORY_BYTES = 2**30


def last_boxed(text: str) -> str | None:
    """Return the content of the last closed \\boxed{…}."""
    end = len(text)
    while (start := text.rfind("\\boxed{", 0, end)) >= 0:
        depth = 0
        for position in range(start + len("\\boxed"), len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return text[start + len("\\boxed{") : position]
        end = start
    return None


def judge(reply: str, answers: list[str], math_verify: Any) -> dict[str, Any]:
    """Compare the reply's final expression with the answers, and tell whether there was one to compare."""
    boxed = last_boxed(reply)
    final_expression = reply if boxed is None else boxed
    wanted = [(last_boxed(answer) or answer).strip() for answer in answers]
    if final_expression.strip() in wanted:
        return {"correct": True, "formed": True, "said": final_expression.strip()}
    golds = [_parse(math_verify, f"\\boxed{{{answer}}}") for answer in wanted]
    if not all(golds):
        unread = wanted[golds.index([])][:80]
        return {"error": f"the answer {unread!r} holds no mathematics that math-verify can parse"}
    parsed = _parse(math_verify, reply if boxed is None else f"\\boxed{{{boxed}}}")
    equal = (
        answer
        for answer, gold in zip(wanted, golds, strict=True)
        if math_verify.verify(gold, parsed, timeout_seconds=None)
    )
    answer = next(equal, None)
    correct = answer is not None
    return {"correct": correct, "formed": bool(parsed), "said": answer if correct else _written(parsed)}


def _written(parsed: list[Any]) -> str | None:
    """Return an expression as sympy writes it; None if there is none, or if it cannot be written."""
    try:
        return str(parsed[0]) if parsed else None
    except ValueError:  # a whole number of more digits than Python writes
        return None


def _parse(math_verify: Any, text: str) -> list[Any]:
    # Its time limits are signals, which only a main thread may set and which do not stop a call into C: ours do.
    parsed: list[Any] = math_verify.parse(text, parsing_timeout=None)
    return parsed


def _limit(kind: int, amount: int) -> None:
    """Lower a soft limit, as far as the system supports and permits it."""
    _, hard = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (amount if hard == resource.RLIM_INFINITY else min(amount, hard), hard))
    except (OSError, ValueError):
        return


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the parser's generated code prints: that is no verdict
    logging.disable(logging.CRITICAL)
    import math_verify  # type: ignore[import-untyped]

    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    for line in sys.stdin.buffer:
        question = json.loads(line)
        _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + question["cpu_s"])
        try:
            verdict = judge(question["reply"], question["answers"], math_verify)
        except Exception as problem:  # it belongs to this question, not to the next
            verdict = {"error": f"{type(problem).__name__}: {problem}"}
        answers.write(json.dumps(verdict) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
