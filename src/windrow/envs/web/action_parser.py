"""One action out of a reply in words, strictly: what is not exactly one action is refused, and the policy is told why.

The action is the line that begins with `Action:`, or the whole of a reply that is one line. It is written as a call,
`click(3)` or `type(element=4, text="two words")`; the arguments are numbers, texts in quotes, True and False.
"""

from __future__ import annotations

import ast
import re
import warnings

from windrow.envs.web.actions import Action, Pointing, allowed, fields_of, made
from windrow.envs.web.page_report import whole
from windrow.errors import ToolError
from windrow.records import Json

MAX_LINE_CHARS = 40_000
MARK = re.compile(r"^[\s>*_`#]*action[*_`]*\s*:[*_`]*(.*\S)", re.IGNORECASE)


def read_action(reply: str, pointing: Pointing) -> Action:
    """The action that a reply says; ToolError says what is wrong with it, in words for the policy."""
    name, arguments = _call(_line(reply), pointing)
    return made(name, arguments, pointing)


def _line(reply: str) -> str:
    said = reply.rpartition("</think>")[2]  # where a server leaves the thoughts in the reply
    lines = [
        line for line in said.strip().splitlines() if line.strip() and not line.strip().startswith("```")
    ]
    marked = [found[1] for line in lines if (found := MARK.match(line))]
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
            warnings.simplefilter("ignore")  # what Python thinks of a policy's escapes
            written = ast.parse(line, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _bad(f"{_short(line)} is not an action; write it as a call, such as click(3)") from None
    if isinstance(written, ast.Name) and written.id in allowed(pointing):
        raise _bad(f"write {written.id}() with its arguments in brackets")
    if not isinstance(written, ast.Call) or not isinstance(written.func, ast.Name):
        raise _bad(f"{_short(line)} is not an action; write it as a call, such as click(3)")
    name = written.func.id
    kind = allowed(pointing).get(name)
    order = fields_of(kind, pointing) if kind else ()
    if kind and len(written.args) > len(order):
        raise _bad(f"{name} takes {len(order)} arguments ({', '.join(order)}), not {len(written.args)}")
    arguments: dict[str, Json] = {}
    for place, value in enumerate(written.args if kind else ()):
        arguments[order[place]] = _literal(value, name)
    for keyword in written.keywords if kind else ():
        if keyword.arg is None or keyword.arg in arguments:
            raise _bad(f"{name}: an argument is given twice, or without a name")
        arguments[keyword.arg] = _literal(keyword.value, name)
    return name, arguments


def _literal(value: ast.expr, name: str) -> Json:
    try:
        found = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise _bad(f"{name}: an argument is a number, a text in quotes, True or False") from None
    if found is not None and not isinstance(found, str | int | float | bool):
        raise _bad(f"{name}: an argument is a number, a text in quotes, True or False")
    return whole(found) if isinstance(found, str) else found


def _short(line: str) -> str:
    return repr(line if len(line) <= 80 else f"{line[:80]}…")


def _bad(why: str) -> ToolError:
    return ToolError(why, kind="bad_action")
