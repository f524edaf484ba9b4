"""A Python function as a tool: its JSON schema from the signature, the type hints and the docstring.

Types are msgspec's: numbers, strings, bool, Optional, unions, Literal, enums, list, dict, TypedDict, dataclasses.
Arguments that do not fit them are refused in words for the model; the function is not called.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable
from typing import Any, overload

import msgspec

from windrow.errors import ToolError, UsageError
from windrow.records import Json
from windrow.tools.base import Tool
from windrow.tools.docstrings import parse_docstring

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what every endpoint takes as a tool's name


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, description: str | None = None
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """`@windrow.tool`, plain or with a name and a description: the function as a Tool."""
    if function is None:
        return lambda function: function_tool(function, name=name, description=description)
    return function_tool(function, name=name, description=description)


def as_tool(tool: Tool | Callable[..., Any]) -> Tool:
    """A Tool as it is, a function made into one."""
    return tool if isinstance(tool, Tool) else function_tool(tool)


def function_tool(
    function: Callable[..., Any], *, name: str | None = None, description: str | None = None
) -> Tool:
    """The function as a tool. UsageError says which parameter cannot be described to a model, and why."""
    name = name or str(getattr(function, "__name__", type(function).__name__))
    if not NAME.fullmatch(name):
        raise UsageError(f"tool {name!r}: a tool's name is 1 to 64 letters, digits, '_' and '-'")
    doc = parse_docstring(inspect.getdoc(function) or "")
    parameters = _parameters(function, name)
    accepted = _accepted(parameters, name)
    return Tool(
        name=name,
        description=description or doc.summary,
        parameters=_schema(accepted, parameters, doc.arguments),
        call=_validated(function, accepted, name),
    )


def _parameters(function: Callable[..., Any], name: str) -> dict[str, tuple[Any, Any]]:
    """Each parameter's type and default (`Parameter.empty` where it has none)."""
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        hints = typing.get_type_hints(target, include_extras=True)
        signature = inspect.signature(function)
    except (NameError, TypeError, ValueError) as problem:
        raise UsageError(f"tool {name!r}: its signature cannot be read: {problem}") from None
    hinted: dict[str, tuple[Any, Any]] = {}
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"tool {name!r}: parameter {parameter.name!r} cannot be given by its name alone")
        if parameter.name not in hints:
            raise UsageError(f"tool {name!r}: parameter {parameter.name!r} has no type hint")
        hinted[parameter.name] = (hints[parameter.name], parameter.default)
    return hinted


def _accepted(parameters: dict[str, tuple[Any, Any]], name: str) -> type[msgspec.Struct]:
    """A struct with a field a parameter, which says what fits; what is not given is UNSET."""
    fields: list[Any] = []
    for parameter, (hint, default) in parameters.items():
        field = (
            (parameter, hint)
            if default is inspect.Parameter.empty
            else (parameter, hint | msgspec.UnsetType, msgspec.UNSET)
        )
        try:
            msgspec.json.schema(msgspec.defstruct("Parameter", [field]))
        except (TypeError, RuntimeError) as problem:
            why = str(problem).partition("\n")[0]
            raise UsageError(
                f"tool {name!r}: parameter {parameter!r} has a type that has no JSON schema: {hint} ({why})"
            ) from None
        fields.append(field)
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)


def _schema(
    accepted: type[msgspec.Struct], parameters: dict[str, tuple[Any, Any]], described: dict[str, str]
) -> dict[str, Json]:
    (reference,), components = msgspec.json.schema_components([accepted], ref_template="#/$defs/{name}")
    schema: dict[str, Json] = components.pop(reference["$ref"].rpartition("/")[2])
    schema.pop("title", None)
    for parameter, (_, default) in parameters.items():
        shown = schema["properties"][parameter]
        if parameter in described:
            shown["description"] = described[parameter]
        if default is not inspect.Parameter.empty:
            try:
                shown["default"] = msgspec.to_builtins(default)
            except (TypeError, ValueError):
                pass  # a marker object of the function's own, which no model could give
    if components:
        schema["$defs"] = components
    return schema


def _validated(function: Callable[..., Any], accepted: type[msgspec.Struct], name: str) -> Callable[..., Any]:
    def fitting(arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            converted = msgspec.convert(arguments, accepted)
        except msgspec.ValidationError as problem:
            raise ToolError(f"the arguments of {name!r} do not fit: {problem}") from None
        return {
            field: value for field in arguments if (value := getattr(converted, field)) is not msgspec.UNSET
        }

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(**arguments: Any) -> Any:
            return await function(**fitting(arguments))

        return call_async

    @functools.wraps(function, updated=())
    def call(**arguments: Any) -> Any:
        return function(**fitting(arguments))

    return call
