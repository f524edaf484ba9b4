"""The answer of an MCP server, compared with the output schema that the server has declared for the tool.

Both are the server's, so neither may hold up the run. The comparison is made in a thread and takes a bounded number of steps.
Patterns are left out, since `re` can take for ever in a single step of its own, and nothing is fetched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from windrow.records import Json
from windrow.util.threads import in_thread

MAX_STEPS = 1_000_000  # some seconds
MAX_UNIQUE = 1000  # items that are compared with each other
PATTERNS = ("pattern", "patternProperties")
NEED_PATTERNS = (
    "additionalProperties",
    "unevaluatedProperties",
)  # they ask which names a pattern has matched

Keyword = Callable[[Any, Any, Any, Any], Any]

_steps = threading.local()


class _TooManySteps(Exception):
    pass


async def mismatch(answer: Json, schema: dict[str, Json]) -> str | None:
    """Why `answer` is not what `schema` declares, or cannot be compared with it; None if it is."""
    return await in_thread(_mismatch, answer, schema)


def _mismatch(answer: Json, schema: dict[str, Json]) -> str | None:
    from jsonschema.exceptions import best_match
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    _steps.left = MAX_STEPS
    try:
        validator = _bounded(validator_for(schema))(schema, registry=Registry())
        error = best_match(validator.iter_errors(answer))
    except _TooManySteps:
        return f"the comparison with its schema takes more than {MAX_STEPS:,} steps"
    except (Unresolvable, RecursionError, ArithmeticError, LookupError, TypeError, ValueError) as problem:
        return f"it cannot be compared with its schema: {str(problem) or type(problem).__name__}"
    return None if error is None else str(error.message)


@cache
def _bounded(draft: Any) -> Any:
    """The validator of a draft of JSON Schema, each keyword of which is counted."""
    from jsonschema.validators import extend

    keywords = {name: _counted(name, keyword) for name, keyword in draft.VALIDATORS.items()}
    return extend(draft, keywords)


def _counted(name: str, keyword: Keyword) -> Keyword:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _steps.left -= 1
        if _steps.left < 0:
            raise _TooManySteps
        if name in PATTERNS or (name in NEED_PATTERNS and "patternProperties" in schema):
            return
        if name == "uniqueItems" and isinstance(instance, list) and len(instance) > MAX_UNIQUE:
            return
        yield from keyword(validator, value, instance, schema) or ()

    return check
