"""A policy that reads pages as a model does, as text with numbered elements, and solves many of MiniWoB++'s tasks by rule.

It knows nothing but what it was shown: the task, the current page, and what it has done before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from windrow.policies.base import Request

TASKS = (
    "choose-list", "click-button", "click-button-sequence", "click-checkboxes", "click-collapsible", "click-dialog",
    "click-dialog-2", "click-link", "click-option", "click-tab", "click-tab-2-easy", "click-test",
    "click-test-2", "click-widget", "enter-date", "enter-password", "enter-text", "enter-text-dynamic",
    "enter-time", "find-word", "focus-text", "focus-text-2", "form-sequence-2", "generate-number", "guess-number", "login-user",
    "multi-orderings", "navigate-tree", "odd-or-even", "phone-book", "read-table", "read-table-2", "sign-agreement",
    "simple-algebra", "simple-arithmetic", "text-transform", "unicode-test",
)  # fmt: skip

ORDINALS = {"1st": 0, "2nd": 1, "3rd": 2, "4th": 3, "5th": 4}


class Element(NamedTuple):
    number: int
    role: str
    name: str
    rest: str


class View(NamedTuple):
    task: str
    lines: list[str]
    done: list[str]  # the actions so far

    @property
    def elements(self) -> list[Element]:
        found = (re.match(r'\[(\d+)\] (\S+)(?: "([^"]*)")?(.*)', line) for line in self.lines)
        return [Element(int(m[1]), m[2], m[3] or "", m[4]) for m in found if m]

    def all(self, role: str) -> list[Element]:
        return [element for element in self.elements if element.role == role]

    def named(self, name: str, *roles: str) -> Element:
        return next(e for e in self.elements if e.name == name and (not roles or e.role in roles))

    def has(self, name: str) -> bool:
        return any(element.name == name for element in self.elements)

    def quoted(self) -> list[str]:
        return re.findall(r'"([^"]*)"', self.task)


Rule = Callable[
    [View], Sequence[str]
]  # the whole plan from where the page is; those that were done are left out
RULES: dict[str, Rule] = {}


def rule(pattern: str) -> Callable[[Rule], Rule]:
    def keep(function: Rule) -> Rule:
        RULES[pattern] = function
        return function

    return keep


def oracle(request: Request) -> str:
    view = seen(request)
    plan = next(function for pattern, function in RULES.items() if re.search(pattern, view.task, re.S))
    steps = list(plan(view))
    left = steps[len(view.done) :] if len(steps) > len(view.done) else steps[-1:]
    return f"I do what is asked.\nAction: {left[0]}"


def seen(request: Request) -> View:
    texts = [message.text for message in request.messages]
    task = next(text for text in texts if text.startswith("Your task: ")).removeprefix("Your task: ")
    pages = [text[text.index("Page: ") :] for text in texts if "Page: " in text]
    done = [
        message.text.rpartition("Action: ")[2] for message in request.messages if message.role == "assistant"
    ]
    return View(task, pages[-1].splitlines()[2:], done)


def click(element: Element) -> str:
    return f"click({element.number})"


def fill(element: Element, text: str) -> str:
    return f"type({element.number}, {text!r})"


def submit(view: View, name: str = "Submit") -> str:
    return click(view.named(name))


@rule(r"^Click the button\.$")
def _(view: View) -> list[str]:
    return [click(view.all("button")[0])]


@rule(r"^Click button (\w+), then click button (\w+)")
def _(view: View) -> list[str]:
    return [click(view.named(name)) for name in re.findall(r"button (\w+)", view.task)]


@rule(r"^Click button (\w+)\.")
def _(view: View) -> list[str]:
    return [click(view.named(re.findall(r"button (\w+)", view.task)[0]))]


@rule(r'^Click on the ".*" button')
def _(view: View) -> list[str]:
    return [click(view.named(view.quoted()[0], "button"))]


@rule(r'^Click on the link ".*"')
def _(view: View) -> list[str]:
    return [click(view.named(view.quoted()[0]))]


@rule(r"^Click on Tab #")
def _(view: View) -> list[str]:
    return [click(view.named(view.task.removeprefix("Click on ").rstrip(".")))]


@rule(r'^Switch between the tabs to find and click on the link "')
def _(view: View) -> list[str]:
    wanted = view.quoted()[0]
    if view.has(wanted):
        return [*view.done, click(view.named(wanted))]
    tabs = [element for element in view.elements if element.name.startswith("Tab #")]
    return [*view.done, click(tabs[(len(view.done) + 1) % len(tabs)])]


@rule(r'^Click on a ".*" widget')
def _(view: View) -> list[str]:
    wanted = view.quoted()[0]
    role = {"text": "textbox", "textarea": "textbox"}.get(wanted, wanted)
    # A text area and a text field are both textboxes here: the area comes with what stands in it.
    found = view.all(role)
    return [click(found[-1] if wanted == "textarea" else found[0])]


@rule(r'^Close the dialog box by clicking the "x"')
def _(view: View) -> list[str]:
    return [click(view.named("Close"))]


@rule(r'^Click the button in the dialog box labeled "')
def _(view: View) -> list[str]:
    wanted = view.quoted()[0]
    return [click(view.named("Close" if wanted == "x" else wanted))]


@rule(r"^Select (.*) from the (scroll )?list and click Submit")
def _(view: View) -> list[str]:
    found = re.match(r"^Select (.*) from the", view.task)
    assert found
    chosen = next(e for e in view.elements if e.role in ("combobox", "listbox"))
    options = found[1].split(", ")
    return [*(f"select({chosen.number}, {option!r})" for option in options), submit(view)]


@rule(r"^Select nothing and click Submit")
def _(view: View) -> list[str]:
    return [submit(view)]


@rule(r"^Select (.*) and click Submit")
def _(view: View) -> list[str]:
    names = view.task.removeprefix("Select ").removesuffix(" and click Submit.").split(", ")
    return [*(click(view.named(name, "checkbox", "radio")) for name in names), submit(view)]


@rule(r"^Expand the section below and click submit")
def _(view: View) -> list[str]:
    if not view.has("Submit"):
        return [click(next(e for e in view.elements if e.name.startswith("Section #")))]
    return [*view.done, submit(view)] if view.done else [click(view.elements[0])]


@rule(r'^Enter the username ".*" and the password ".*"')
def _(view: View) -> list[str]:
    name, password = view.quoted()
    fields = view.all("textbox")
    return [fill(fields[0], name), fill(fields[1], password), submit(view, "Login")]


@rule(r'^Enter the password ".*" into both')
def _(view: View) -> list[str]:
    return [*(fill(field, view.quoted()[0]) for field in view.all("textbox")), submit(view)]


@rule(r"^Enter the value of (.*) into the text field")
def _(view: View) -> list[str]:
    label = view.task.removeprefix("Enter the value of ").partition(" into")[0]
    return [fill(view.all("textbox")[0], table(view)[label]), submit(view)]


@rule(r"^Enter the value that corresponds with each label")
def _(view: View) -> list[str]:
    labels = [view.lines[n - 1].rstrip(":") for n, line in enumerate(view.lines) if "] textbox" in line]
    fields = view.all("textbox")
    known = table(view)
    return [*(fill(f, known[label]) for f, label in zip(fields, labels, strict=True)), submit(view)]


def table(view: View) -> dict[str, str]:
    return {key: value for key, _, value in (line.partition(" | ") for line in view.lines if " | " in line)}


@rule(r"^Enter (\d+/\d+/\d+) as the date")
def _(view: View) -> list[str]:
    month, day, year = re.findall(r"\d+", view.task)[:3]
    return [fill(view.all("textbox")[0], f"{year}-{month}-{day}"), submit(view)]


@rule(r"^Enter (\d+:\d+ [AP]M) as the time")
def _(view: View) -> list[str]:
    hour, minute = re.findall(r"\d+", view.task)[:2]
    hours = int(hour) % 12 + (12 if "PM" in view.task else 0)
    return [fill(view.all("textbox")[0], f"{hours:02}:{minute}"), submit(view)]


@rule(r'^Enter "(.*)" into the text field')
def _(view: View) -> list[str]:
    return [fill(view.all("textbox")[0], view.quoted()[0]), submit(view)]


@rule(r"^Type the text below into the text field")
def _(view: View) -> list[str]:
    first = next(n for n, line in enumerate(view.lines) if "] textbox" in line)
    return [fill(view.all("textbox")[0], view.lines[first - 1]), submit(view)]


@rule(r"^Find the (\d+)\w+ word in the paragraph")
def _(view: View) -> list[str]:
    number = int(re.findall(r"\d+", view.task)[0])
    words = re.findall(r"\w+", view.lines[2])
    return [fill(view.all("textbox")[0], words[number - 1]), submit(view)]


@rule(r"^Focus into the textbox")
def _(view: View) -> list[str]:
    return [click(view.all("textbox")[0])]


@rule(r"^Focus into the (\w+) input textbox")
def _(view: View) -> list[str]:
    return [click(view.all("textbox")[ORDINALS[re.findall(r"the (\w+) input", view.task)[0]]])]


@rule(r'^Check the (\w+) radio button and enter the number "')
def _(view: View) -> list[str]:
    radio, box = re.findall(r"the (\d\w\w) ", view.task)
    return [
        click(view.all("radio")[ORDINALS[radio]]),
        fill(view.all("textbox")[ORDINALS[box]], view.quoted()[0]),
        submit(view),
    ]


@rule(r"^Generate an? (.*) number, then press submit|^Generate a number (.*), then press submit")
def _(view: View) -> list[str]:
    shown = next((line for line in view.lines[1:] if re.fullmatch(r"-?\d+", line)), None)
    if shown is not None and wanted(view.task, int(shown)):
        return [*view.done, submit(view)]
    return [*view.done, click(view.named("Generate"))]


def wanted(task: str, number: int) -> bool:
    if "odd" in task or "even" in task:
        return number % 2 == ("odd" in task)
    bound = int(re.findall(r"-?\d+", task)[0])
    return number < bound if "less" in task else number > bound


@rule(r"^Guess the number between")
def _(view: View) -> list[str]:
    """What it was told of earlier guesses is out of view by now, and can be told from the guesses that followed."""
    guesses = [int(re.findall(r"'(\d+)'", step)[0]) for step in view.done if step.startswith("type(")]
    low, high = 0, 9
    for guess, following in pairwise(guesses):
        low, high = (guess + 1, high) if following > guess else (low, guess - 1)
    if view.done and view.done[-1].startswith("type("):
        return [*view.done, submit(view)]
    if guesses:
        higher = any("higher than" in line for line in view.lines)
        low, high = (guesses[-1] + 1, high) if higher else (low, guesses[-1] - 1)
    return [*view.done, fill(view.all("spinbutton")[0], str((low + high) // 2))]


@rule(r"^Search for \w+ movies directed by \w+ from year \d+")
def _(view: View) -> list[str]:
    found = re.match(r"Search for (\w+) movies directed by (\w+) from year (\d+)", view.task)
    assert found
    said = {"Genre": found[1], "Director": found[2], "Year": found[3]}
    steps: list[str] = []
    for place, line in enumerate(view.lines):
        label = line.rstrip(" |:")
        if label in said:
            number = next(m[1] for row in view.lines[place:] if (m := re.match(r"\[(\d+)\] textbox", row)))
            steps.append(f"type({number}, {said[label]!r})")
    return [*steps, click(next(e for e in view.elements if e.name in ("Submit", "Search")))]


@rule(r"^Navigate through the file tree")
def _(view: View) -> list[str]:
    name = view.quoted()[0]
    if view.has(name):
        return [*view.done, click(view.named(name))]
    folders = [e for e in view.elements if f"click({e.number})" not in view.done]
    return [*view.done, click(folders[0])]


@rule(r"^Mark the numbers below as odd or even")
def _(view: View) -> list[str]:
    numbers = [(n, int(line)) for n, line in enumerate(view.lines) if re.fullmatch(r"-?\d+", line)]
    steps = [
        next(
            f"click({m[1]})"
            for row in (view.lines[place - 1] if value % 2 else view.lines[place + 1],)
            if (m := re.match(r"\[(\d+)\]", row))
        )
        for place, value in numbers
    ]
    return [*steps, submit(view)]


@rule(r"^Find (\w+) in the contact book and click on their (\w+)")
def _(view: View) -> list[str]:
    found = re.match(r"Find (.*) in the contact book and click on their (.*)\.", view.task)
    assert found
    if f"## {found[1]}" in view.lines:
        label = {"phone number": "Phone:", "email": "Email:", "address": "Address:"}[found[2]]
        row = view.lines[view.lines.index(label) + 1]
        return [*view.done, f"click({re.findall(r'[0-9]+', row)[0]})"]
    return [*view.done, click(view.named(">"))]


@rule(r"^Click the cancel button")
def _(view: View) -> list[str]:
    return [click(view.named("Cancel"))]


@rule(r"^Solve for x")
def _(view: View) -> list[str]:
    equation = next(line for line in view.lines if "x" in line and "=" in line and not line.startswith("x ="))
    left, _, right = equation.partition("=")
    value = next(x for x in range(-1000, 1001) if _value(left, x) == _value(right, x))
    return [fill(view.all("textbox")[0], str(value)), submit(view)]


def _value(text: str, x: int) -> int:
    """A sum such as `5 - x`."""
    terms = re.findall(r"([-+]?) ?(-?\d+|x)", text)
    return sum((-1 if sign == "-" else 1) * (x if term == "x" else int(term)) for sign, term in terms)


@rule(r"^Solve the math problem")
def _(view: View) -> list[str]:
    problem = next(line for line in view.lines if line.rstrip().endswith("=")).rstrip("= ")
    found = re.fullmatch(r"(-?\d+) ?([-+x*]) ?(-?\d+)", problem)
    assert found
    one, other = int(found[1]), int(found[3])
    value = {"+": one + other, "-": one - other}.get(found[2], one * other)
    return [fill(view.all("textbox")[0], str(value)), submit(view)]
