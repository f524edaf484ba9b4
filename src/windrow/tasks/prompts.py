"""Prompt templates: a YAML file with `system`, `user` and few-shot `messages`, rendered with each row's fields.

Jinja in its sandbox. A variable that the row does not have is an error, found for every row before the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from windrow.config import nearest
from windrow.config.yamltext import NotYaml, yaml_value
from windrow.errors import UsageError
from windrow.records import Json

FIELDS = ("system", "user", "messages")


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str


class _File(msgspec.Struct, forbid_unknown_fields=True):
    user: str
    system: str | None = None
    messages: list[_Message] = []


class PromptTemplate:
    """Renders a row to messages: the system message, the few-shot messages, then the user's."""

    def __init__(self, file: _File, *, name: str) -> None:
        import jinja2.sandbox

        self.name = name
        self.source: dict[str, Json] = msgspec.to_builtins(file)
        environment = jinja2.sandbox.SandboxedEnvironment(undefined=jinja2.StrictUndefined)
        parts = [("system", file.system)] if file.system is not None else []
        parts += [(message.role, message.content) for message in file.messages]
        parts.append(("user", file.user))
        try:
            self._parts = [(role, environment.from_string(text)) for role, text in parts]
        except jinja2.TemplateSyntaxError as problem:
            raise UsageError(
                f"prompt template {name}: {problem.message} (line {problem.lineno} of the text)"
            ) from None
        except (
            ValueError,
            SyntaxError,
            RecursionError,
            MemoryError,
        ) as problem:  # a number of 5,000 digits, say
            raise UsageError(f"prompt template {name}: {problem}") from None
        self._errors: tuple[type[Exception], ...] = (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
            AttributeError,
            RecursionError,
        )

    def messages(self, row: Mapping[str, Json]) -> list[dict[str, Any]]:
        """The row's messages; ValueError names the variable that it lacks."""
        if row.get("messages") is not None:
            raise ValueError(
                f"the row has ready-made 'messages', which the prompt template {self.name} would replace"
            )
        try:
            return [{"role": role, "content": template.render(row)} for role, template in self._parts]
        except self._errors as problem:
            has = ", ".join(row)
            raise ValueError(f"prompt template {self.name}: {problem} (the row has: {has})") from None


def text_template(text: str, *, name: str) -> PromptTemplate:
    """A template of one user message."""
    return PromptTemplate(_File(user=text), name=name)


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
        return PromptTemplate(msgspec.convert(data, _File), name=path)
    except msgspec.ValidationError as problem:
        raise UsageError(f"{path}: {problem}") from None
