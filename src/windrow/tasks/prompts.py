"""Prompt templates: a YAML file with `system`, `user` and few-shot `messages`, rendered with the fields of each row.

A template uses Jinja in its sandbox, or Python's `{field}` placeholders. The text shows which of them it uses;
`placeholders: jinja | format` makes it explicit. A variable that the row lacks is an error, and every row is checked
before the run.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from windrow.config import nearest
from windrow.config.yamltext import NotYaml, yaml_value
from windrow.errors import UsageError
from windrow.records import Json
from windrow.tasks.row_formats import format_of

FIELDS = ("system", "user", "messages", "placeholders")
_JINJA = re.compile(r"\{\{[-+]?\s*[\w\"'(\[]|\{[%#]")  # what begins an expression, a statement or a comment
_NAME = re.compile(r"[A-Za-z_]\w*")

Render = Callable[[Mapping[str, Json]], str]


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str


class _File(msgspec.Struct, forbid_unknown_fields=True):
    user: str
    system: str | None = None
    messages: list[_Message] = []
    placeholders: Literal["jinja", "format"] | None = None

    def parts(self) -> list[tuple[str, str]]:
        """Return role and text of each message, in order."""
        first = [("system", self.system)] if self.system is not None else []
        few = [(message.role, message.content) for message in self.messages]
        return [*first, *few, ("user", self.user)]


class PromptTemplate:
    """Renders a row to messages: the system message, the few-shot messages, then the user's."""

    def __init__(self, file: _File, *, name: str) -> None:
        self.name = name
        self.source: dict[str, Json] = msgspec.to_builtins(file)
        if file.placeholders != "format":
            del self.source["placeholders"]  # Jinja, as it always was
        self._hint = "" if file.placeholders else "; if its {…} are fields, say 'placeholders: format' in it"
        compiled = _formatted if file.placeholders == "format" else _jinja
        self._parts = [(role, compiled(text, name)) for role, text in file.parts()]

    def messages(self, row: Mapping[str, Json]) -> list[dict[str, Any]]:
        """Return the row's messages; ValueError names the variable that the row lacks."""
        if row.get("messages") is not None:
            raise ValueError(
                f"the row has ready-made 'messages', which the prompt template {self.name} would replace"
            )
        row_format = format_of(row)
        if row_format is not None and row_format.has_input(row):
            raise ValueError(
                f"the row has an input of its own, which the prompt template {self.name} would replace"
            )
        try:
            return [{"role": role, "content": render(row)} for role, render in self._parts]
        except ValueError as problem:
            has = ", ".join(row)
            raise ValueError(
                f"prompt template {self.name}: {problem} (the row has: {has}){self._hint}"
            ) from None


def _jinja(text: str, name: str) -> Render:
    import jinja2.sandbox

    environment = jinja2.sandbox.SandboxedEnvironment(undefined=jinja2.StrictUndefined)
    try:
        template = environment.from_string(text)
    except jinja2.TemplateSyntaxError as problem:
        raise UsageError(
            f"prompt template {name}: {problem.message} (line {problem.lineno} of the text)"
        ) from None
    except (ValueError, SyntaxError, RecursionError, MemoryError) as problem:  # a number of 5,000 digits, say
        raise UsageError(f"prompt template {name}: {problem}") from None
    errors = (
        jinja2.TemplateError,
        TypeError,
        ValueError,
        ArithmeticError,
        LookupError,
        AttributeError,
        RecursionError,
    )

    def render(row: Mapping[str, Json]) -> str:
        try:
            return template.render(row)
        except errors as problem:
            raise ValueError(str(problem)) from None

    return render


def _formatted(text: str, name: str) -> Render:
    """Format the text with the row's fields by name alone, so that no attribute of a value can be reached."""
    try:
        names = list(_placeholders(text))
    except ValueError as problem:
        raise UsageError(f"prompt template {name}: {problem}") from None
    odd = next((name_used for name_used in names if not _NAME.fullmatch(name_used)), None)
    if odd is not None:
        raise UsageError(
            f"prompt template {name}: {{{odd}}} is not the name of a field; write {{{{ for a brace"
        )

    def render(row: Mapping[str, Json]) -> str:
        missing = next((name_used for name_used in names if name_used not in row), None)
        if missing is not None:
            raise ValueError(f"{missing!r} is undefined")
        try:
            return text.format_map(row)
        except (TypeError, LookupError, OverflowError) as problem:
            raise ValueError(str(problem)) from None

    return render


def _placeholders(text: str) -> Iterable[str]:
    """Yield the placeholders of a format string, including those inside a format's own braces; raise ValueError if it
    is malformed.
    """
    for _, field, spec, _ in string.Formatter().parse(text):
        if field is not None:
            yield field
            yield from _placeholders(spec or "")


def _placeholders_of(file: _File) -> Literal["jinja", "format"] | None:
    """Return the placeholder style of a template that does not declare one; None if it has both, in which case it is
    Jinja.
    """
    texts = [text for _, text in file.parts()]
    try:
        names = [name for text in texts for name in _placeholders(text)]
    except ValueError:
        return "jinja"
    if not names or not all(map(_NAME.fullmatch, names)):
        return "jinja"
    return None if any(map(_JINJA.search, texts)) else "format"


def text_template(text: str, *, name: str) -> PromptTemplate:
    """A template of one user message."""
    return PromptTemplate(_File(user=text, placeholders="jinja"), name=name)


def read_template(path: str) -> PromptTemplate:
    try:
        data = yaml_value(Path(path).read_text(encoding="utf-8"))
    except OSError as problem:
        raise UsageError(f"cannot read the prompt template {path}: {problem.strerror}") from None
    except (NotYaml, UnicodeDecodeError) as problem:
        raise UsageError(f"{path} is not valid YAML: {problem}") from None
    unknown = next((key for key in data if key not in FIELDS), None) if isinstance(data, dict) else None
    if unknown is not None:
        raise UsageError(
            f"{path}: unknown key {unknown!r}{nearest(str(unknown), FIELDS)} (known: {', '.join(FIELDS)})"
        )
    try:
        file = msgspec.convert(data, _File)
    except msgspec.ValidationError as problem:
        raise UsageError(f"{path}: {problem}") from None
    if file.placeholders is None:
        file = msgspec.structs.replace(file, placeholders=_placeholders_of(file))
    return PromptTemplate(file, name=path)
