"""Reads the action of a text reply, strictly: anything but exactly one action is refused, with a reason for the policy.

The action is the line that begins with `Action:`, or the whole of a reply that is one line. It is written as a call,
`click(3)` or `type(element=4, text="two words")`; the arguments are numbers, texts in quotes, True and False.
"""

from __future__ import annotations

import ast
import re
import warnings

from windrow.envs.web.actions import Action, Pointing, allowed, fields_of, make_action
from windrow.envs.web.page_report import whole
from windrow.errors import ToolError
from windrow.records import Json

MAX_LINE_CHARS = 40_000
MARK = re.compile(r"^[\s>*_`#]*action[*_`]*\s*:[*_`]*(.*\S)", re.IGNORECASE)


def read_action(reply: str, pointing: Pointing) -> Action:
    """The action in a reply; ToolError tells the policy what is wrong with it."""
    name, arguments = _call(_line(reply), pointing)
    return make_action(name, arguments, pointing)


def _line(reply: str) -> str:
    answer_text = reply.rpartition("</think>")[2]  # some servers leave the reasoning in the reply
    lines = [
        line
        for line in answer_text.strip().splitlines()
        if line.strip() and not line.strip().startswith("```")
    ]
    marked = [match[1] for line in lines if (match := MARK.match(line))]
    if len(marked) > 1:
        raise _bad(f"there are {len(marked)} lines that begin with 'Action:'; give one action at a time")
    if marked:
        line = marked[0].strip().strip("`* ")
    elif len(lines) == 1:
        line = lines[0].strip("`* ")
    elif not lines:
        raise _bad("the reply is empty")
    else:
        raise _bad("no line begins with 'Action:'")
    if len(line) > MAX_LINE_CHARS:
        raise _bad(f"the action is longer than {MAX_LINE_CHARS:,} characters")
    return line


def _call(line: str, pointing: Pointing) -> tuple[str, dict[str, Json]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's warnings about escapes in the reply
            expression = ast.parse(line, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _bad(f"{_short(line)} is not an action; write it as a call, such as click(3)") from None
    if isinstance(expression, ast.Name) and expression.id in allowed(pointing):
        raise _bad(f"write {expression.id}() with its arguments in brackets")
    if not isinstance(expression, ast.Call) or not isinstance(expression.func, ast.Name):
        raise _bad(f"{_short(line)} is not an action; write it as a call, such as click(3)")
    name = expression.func.id
    kind = allowed(pointing).get(name)
    order = fields_of(kind, pointing) if kind else ()
    if kind and len(expression.args) > len(order):
        raise _bad(f"{name} takes {len(order)} arguments ({', '.join(order)}), not {len(expression.args)}")
    arguments: dict[str, Json] = {}
    for position, value in enumerate(expression.args if kind else ()):
        arguments[order[position]] = _literal(value, name)
    for keyword in expression.keywords if kind else ():
        if keyword.arg is None or keyword.arg in arguments:
            raise _bad(f"{name}: an argument is given twice, or without a name")
        arguments[keyword.arg] = _literal(keyword.value, name)
    return name, arguments


def _literal(value: ast.expr, name: str) -> Json:
    try:
        literal = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise _bad(f"{name}: an argument is a number, a text in quotes, True or False") from None
    if isinstance(literal, list) and all(isinstance(item, str) for item in literal):
        return [whole(item) for item in literal]
    if literal is not None and not isinstance(literal, str | int | float | bool):
        raise _bad(f"{name}: an argument is a number, a text in quotes, True or False, or a list of texts")
    return whole(literal) if isinstance(literal, str) else literal


def _short(line: str) -> str:
    return repr(line if len(line) <= 80 else f"{line[:80]}…")


def _bad(why: str) -> ToolError:
    return ToolError(why, kind="bad_action")
