"""The part of the scorer `math` that runs in processes of a fork server (`util/fork_server.py`): it runs math-verify.

The module imports only the standard library and math-verify. Arithmetic on a model's reply may take forever or use
all memory (`9^{9^{9}}`) inside one call into C, which no timer of ours could stop. So the kernel limits the process,
and the caller sees it end.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any

_BOXED = "\\boxed"
_BRACE = re.compile(r"[{}]")
_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,14}")


def last_boxed(text: str) -> str | None:
    """Return the content of the last closed \\boxed{…}."""
    if f"{_BOXED}{{" not in text:
        return None
    opened: list[int] = []
    start = end = -1
    for brace in _BRACE.finditer(text):
        if brace.group() == "{":
            opened.append(brace.end())
        elif opened and (content := opened.pop()) > start and text.endswith(_BOXED, 0, content - 1):
            start, end = content, brace.start()
    return None if start < 0 else text[start:end]


def judge_text(reply: str, answers: list[str]) -> dict[str, Any] | None:
    """The verdict, where the text alone gives it: the same text is equal, and plain whole numbers differ if their text does."""
    boxed = last_boxed(reply)
    final_expression = (reply if boxed is None else boxed).strip()
    wanted = _wanted(answers)
    if final_expression in wanted:
        return {"correct": True, "formed": True, "said": final_expression}
    if all(map(_WHOLE_NUMBER.fullmatch, [final_expression, *wanted])):
        return {"correct": False, "formed": True, "said": final_expression}
    return None


def judge(reply: str, answers: list[str], math_verify: Any) -> dict[str, Any]:
    """Compare the reply's final expression with the answers, and tell whether there was one to compare."""
    if (verdict := judge_text(reply, answers)) is not None:
        return verdict
    boxed = last_boxed(reply)
    wanted = _wanted(answers)
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


def _wanted(answers: list[str]) -> list[str]:
    return [(last_boxed(answer) or answer).strip() for answer in answers]


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


# The parser remembers each character that it has met in each place: so every digit and letter, and the usual commands.
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WARM_UP = (
    (f"\\boxed{{{'+'.join(_LETTERS)}}}", "1"),
    (f"\\boxed{{{'+'.join(_LETTERS.upper())}}}", "1"),
    ("\\boxed{0+1+2+3+4+5+6+7+8+9}", "10"),
    ("\\boxed{0.123456789}", "9876543210"),
    ("\\boxed{\\frac{1}{2}}", "0.5"),
    ("$\\frac{2}{4}$", "\\frac12"),
    ("The final answer is $(x+1)^2$.", "x^2 + 2x + 1"),
    ("\\boxed{\\{2, 1\\}}", "\\{1, 2\\}"),
    ("it is 1,000 dollars", "1000"),
    ("\\boxed{-2\\sqrt{3}+\\pi}", "\\pi-2\\sqrt 3"),
    ("\\boxed{(1, 2]}", "[1, 2)"),
    ("\\boxed{x < 3}", "x \\le 3"),
    ("\\boxed{\\begin{pmatrix}1\\\\2\\end{pmatrix}}", "\\begin{pmatrix}1\\\\3\\end{pmatrix}"),
    ("\\boxed{50\\%}", "\\text{half}"),
    ("\\boxed{\\log_2 8+\\sin x \\cdot \\cos y \\times 3}", "4"),
    ("It is 17, I think: 3 * 4 = 12", "18"),
)


def prepare(argument: str) -> None:
    """Import math-verify and compare a few expressions: its parser and sympy work out much the first time only."""
    logging.disable(logging.CRITICAL)
    for reply, expected in _WARM_UP:
        answer(json.dumps({"reply": reply, "answers": [expected]}).encode())


def answer(question: bytes) -> bytes:
    import math_verify  # type: ignore[import-untyped]

    asked = json.loads(question)
    try:
        verdict = judge(asked["reply"], asked["answers"], math_verify)
    except Exception as problem:
        verdict = {"error": f"{type(problem).__name__}: {problem}"}
    return json.dumps(verdict).encode()
