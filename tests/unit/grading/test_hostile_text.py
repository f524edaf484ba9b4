"""Text that somebody else wrote is read in linear time: a reply of 150,000 newlines took 101 seconds once.

The kernel ends the reading process where one door takes ten seconds of CPU; quadratic reading would take minutes.
"""

from __future__ import annotations

import subprocess
import sys

SIZE = 50_000
UNITS = [
    *(
        "\n",
        " ",
        "\t",
        "\u00a0",
        "1",
        "0",
        ".",
        ",",
        "1,",
        "1.",
        "1e",
        ",111",
        "-",
        "+",
        "$",
        "/",
        "1/",
        "1 ",
        "- ",
    ),
    *(
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "<",
        ">",
        "</",
        '"',
        "'",
        "\\",
        "`",
        "```",
        "```\n",
        "*",
        "_",
        "#",
        "####",
        ":",
    ),
    *(
        "=",
        "a",
        "A",
        "A ",
        "A\n",
        "\\frac",
        "\\frac{",
        "\\frac{1}",
        "\\boxed",
        "\\boxed{",
        "\\boxed ",
        "answer",
    ),
    *(
        "answer ",
        "answer is ",
        "answer:*",
        "<think>",
        "</think>",
        "<score>",
        "<score",
        "</score>",
        "<tool_call>",
    ),
    *(
        "<function=",
        "<function=a>",
        '<parameter name="',
        "<|python_tag|>",
        '{"name"',
        '{"name": ',
        "; ",
        "Action: ",
    ),
    *(
        "Action",
        "Action Input: ",
        "action",
        "[1] ",
        '[1] a "',
        "\x1b[",
        "${",
        "${a:",
        "${service.",
        "{{",
        "'; ",
    ),
]
# By door: who reads the text, and how texts begin that lead it far.
DOORS = {
    "number": ("lambda text: answers.number(text, '1', {})", ["\\", "1", "answer", "\\boxed{"]),
    "choice": ("lambda text: answers.choice(text, 'A', {})", ["A", "answer"]),
    "parse_number": ("answers.parse_number", ["1", "$"]),
    "judge": ("lambda text: raises(judge_replies.read_mark, text, TAGGED, YES_NO)", ["<think>", "<score>"]),
    "judge in JSON": (
        "lambda text: raises(judge_replies.read_mark, text, 'json', YES_NO)",
        ["```", "```json"],
    ),
    "judge's number": ("lambda text: raises(judge_replies.number_of, text)", ["1"]),
    "hermes": ("lambda text: FORMATS['hermes'].parse(text)", ["", "<tool_call>"]),
    "llama": ("lambda text: FORMATS['llama'].parse(text)", ["", "<|python_tag|>", '{"name": ']),
    "xml": ("lambda text: FORMATS['xml'].parse(text)", ["", "<function=a>"]),
    "react": ("lambda text: FORMATS['react'].parse(text)", ["", "Action: a\nAction Input: "]),
    "fenced": ("lambda text: FORMATS['fenced'].parse(text)", ["", "```tool_call\n"]),
    "action on a page": ("lambda text: raises(read_action, text, 'elements')", ["", "action"]),
    "move in a game": ("lambda text: read_move(text, Toy)", ["", "["]),
    "the filter number": ("lambda text: raises(mapping._number, text)", ["1", "-"]),
    "variables": ("variables.variables_in", ["${a:"]),
    "services": ("variables.services_in", ["${service."]),
    "a condition": ("lambda text: raises(parse_where, text)", ["a", "a="]),
    "spelling": ("lambda text: nearest(text, ['answer', text + 'x'])", [""]),
    "an image": ("anthropic._image", ["data:"]),
}

SCRIPT = """
import signal, sys
from windrow.config import variables
from windrow.envs.web.action_parser import read_action
from windrow.errors import WindrowError
from windrow.grading import answers, judge_replies
from windrow.integrations.gymnasium.env import read_action as read_move
from windrow.policies.dialects import anthropic
from windrow.policies.toolcalls import FORMATS
from windrow.store.where import parse_where
from windrow.tasks import mapping
from windrow.tasks.rubrics import TAGGED, YES_NO
from windrow.util.spelling import nearest

class Toy:
    actions = (("left", "west"), ("right",))
    start = 0

def raises(function, *arguments):
    try:
        function(*arguments)
    except (WindrowError, ValueError):
        pass

units, size, doors = eval(sys.stdin.read())
for name, (door, starts) in doors.items():
    print(name, flush=True)
    signal.setitimer(signal.ITIMER_PROF, 10)  # of CPU, for this door; nobody catches the signal
    read = eval(door)
    for start in starts:
        for unit in units:
            read(start + unit * (size // len(unit)) + "!")
"""


def test_hostile_text_is_read_in_linear_time() -> None:
    given = repr((UNITS, SIZE, DOORS)).encode()
    reading = subprocess.run([sys.executable, "-c", SCRIPT], input=given, stdout=subprocess.PIPE)
    doors = reading.stdout.decode().splitlines()
    assert (reading.returncode, doors) == (0, list(DOORS)), f"the door {doors[-1]!r} is slow"
