"""The actions of a policy in a browser, as data. They are the same for text replies and for tool calls.

An action points at an element by its number in the observation, or at a point on the screen by its coordinates; `Pointing`
says which of them a policy may use. Nothing here touches a browser: `action_executor` performs the actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from windrow.errors import ToolError
from windrow.records import Json

Pointing = Literal["elements", "coordinates", "both"]

Number = Annotated[int, Meta(ge=1, description="the element's number")]
To = Annotated[int, Meta(ge=1, description="the number of the element to drop it on")]
X = Annotated[float, Meta(ge=0, description="from the left edge")]
Y = Annotated[float, Meta(ge=0, description="from the top edge")]
Choice = Annotated[str, Meta(max_length=1_000)]
Text = Annotated[str, Meta(max_length=20_000)]


class Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The docstring of each action is its description for the policy; its fields are its arguments, in their order."""


class Click(Action, frozen=True):
    """Click an element."""

    element: Number | None = None
    x: X | None = None
    y: Y | None = None
    double: bool = False


class Type(Action, frozen=True, kw_only=True):
    """Replace what is in a field by a text; enter=True presses Enter after it."""

    element: Number | None = None
    x: X | None = None
    y: Y | None = None
    text: Text
    enter: bool = False


class Select(Action, frozen=True):
    """Choose an option of a list by its text, or several: ["red", "blue"]."""

    element: Number
    option: Choice | Annotated[list[Choice], Meta(min_length=1, max_length=200)]


class Press(Action, frozen=True):
    """Press a key, such as "Enter", "Escape", "ArrowDown" or "Control+a"."""

    key: Annotated[str, Meta(min_length=1, max_length=40)]


class Scroll(Action, frozen=True):
    """Scroll the page by screens: "up", "down", "left" or "right"; with an element, what is in it."""

    direction: Literal["up", "down", "left", "right"] = "down"
    element: Number | None = None
    screens: Annotated[float, Meta(gt=0, le=20)] = 0.8


class Hover(Action, frozen=True):
    """Move the mouse onto an element."""

    element: Number | None = None
    x: X | None = None
    y: Y | None = None


class Drag(Action, frozen=True):
    """Drag an element onto another."""

    element: Number | None = None
    to: To | None = None
    x: X | None = None
    y: Y | None = None
    to_x: X | None = None
    to_y: Y | None = None


class Goto(Action, frozen=True):
    """Open an address."""

    url: Annotated[str, Meta(min_length=1, max_length=4_000)]


class Back(Action, frozen=True):
    """Go back to the page before."""


class Tab(Action, frozen=True):
    """Switch to the tab with this number."""

    number: Annotated[int, Meta(ge=1)]


class Close(Action, frozen=True):
    """Close the tab with this number."""

    number: Annotated[int, Meta(ge=1)]


class Wait(Action, frozen=True):
    """Wait for this many seconds."""

    seconds: Annotated[float, Meta(gt=0, le=60)] = 1.0


class Answer(Action, frozen=True):
    """Finish. The text is your answer, or empty where the task asks for none."""

    text: Text = ""


KINDS: dict[str, type[Action]] = {
    kind.__name__.lower(): kind
    for kind in (Click, Type, Select, Press, Scroll, Hover, Drag, Goto, Back, Tab, Close, Wait, Answer)
}
_NUMBERS = ("element", "to")
PLACES = ("x", "y", "to_x", "to_y")
POINTED = (Click, Type, Hover, Drag)
_FOCUSED = (Type,)  # without an element: what has the focus


def name_of(action: Action) -> str:
    return type(action).__name__.lower()


def arguments_of(action: Action) -> dict[str, Json]:
    """The arguments that were given: the fields with a value."""
    fields: dict[str, Json] = msgspec.to_builtins(action)
    return {key: value for key, value in fields.items() if value is not None and value is not False}


def allowed(pointing: Pointing) -> dict[str, type[Action]]:
    """The actions that a policy may use. `select` needs the number of an element."""
    return {name: kind for name, kind in KINDS.items() if pointing != "coordinates" or kind is not Select}


def fields_of(kind: type[Action], pointing: Pointing) -> tuple[str, ...]:
    """The arguments of an action, in their order. Where a policy may use numbers and coordinates, coordinates come last."""
    fields = kind.__struct_fields__
    if pointing == "both":
        return (
            *(name for name in fields if name not in PLACES),
            *(name for name in fields if name in PLACES),
        )
    hidden = PLACES if pointing == "elements" else _NUMBERS
    return tuple(name for name in fields if name not in hidden)


def schema_of(kind: type[Action], pointing: Pointing) -> dict[str, Json]:
    """The JSON schema of an action's arguments, for a tool."""
    whole = msgspec.json.schema(kind)
    definition: dict[str, Json] = whole["$defs"][kind.__name__]
    shown = fields_of(kind, pointing)
    properties = {name: _plain(definition["properties"][name]) for name in shown}
    needed = [name for name in definition.get("required", ()) if name in shown]
    if pointing != "both":  # then there is one way to point, and it is required
        points = {"elements": ("element", "to"), "coordinates": PLACES}[pointing]
        needed += [
            name
            for name in points
            if kind in POINTED and kind not in _FOCUSED and name in shown and name not in needed
        ]
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def make_action(name: str, arguments: Mapping[str, Json], pointing: Pointing) -> Action:
    """The action of this name; ToolError tells the policy what is wrong with it."""
    kinds = allowed(pointing)
    kind = kinds.get(name)
    if kind is None:
        raise ToolError(f"there is no action {name!r}; the actions are {', '.join(kinds)}", kind="bad_action")
    shown = fields_of(kind, pointing)
    for key in arguments:
        if key not in shown:
            raise ToolError(f"{name} takes {_list(shown)}, not {key!r}", kind="bad_action")
    try:
        action = msgspec.convert(dict(arguments), kind)
    except msgspec.ValidationError as problem:
        raise ToolError(f"{name}: {_words(str(problem))}", kind="bad_action") from None
    _check_points(name, action, pointing)
    return action


def _check_points(name: str, action: Action, pointing: Pointing) -> None:
    if not isinstance(action, POINTED):
        return
    pairs = [("element", ("x", "y"))]
    if isinstance(action, Drag):
        pairs.append(("to", ("to_x", "to_y")))
    for number, axes in pairs:
        by_number = getattr(action, number) is not None
        coordinates_present = [getattr(action, axis) is not None for axis in axes]
        if by_number + all(coordinates_present) == 1 and any(coordinates_present) == all(coordinates_present):
            continue
        if isinstance(action, _FOCUSED) and not by_number and not any(coordinates_present):
            continue
        ways = {"elements": number, "coordinates": " and ".join(axes)}
        wanted = ways.get(pointing) or f"either {number} or {' and '.join(axes)}"
        raise ToolError(f"{name} needs {wanted}", kind="bad_action")


def _words(problem: str) -> str:
    """msgspec's message without its markup: Expected `int`, got `str` - at `$.element`."""
    what, _, where = problem.partition(" - at `$")
    field = where.rstrip("`").lstrip(".")
    message = what.replace("`", "'")
    message = message[:1].lower() + message[1:]
    return f"{field}: {message}" if field else message


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names) if names else "no arguments"


def _plain(schema: dict[str, Json]) -> dict[str, Json]:
    """A field's schema without null, which no policy needs to write."""
    branches = schema.get("anyOf")
    if not branches:
        return {key: value for key, value in schema.items() if key != "default" or value is not None}
    non_null = [branch for branch in branches if branch.get("type") != "null"]
    return dict(non_null[0]) if len(non_null) == 1 else {**schema, "anyOf": non_null}
