"""YAML text, read within bounds: whatever is wrong with it is one error that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MAX_DEPTH = 100  # of [ and {
MAX_VALUES = 100_000  # in one text: a few lines of aliases of aliases stand for billions


class NotYaml(ValueError):
    """Says what is wrong with a text."""


def yaml_value(text: str, visit: Callable[[Any], None] = lambda node: None) -> Any:
    """What a YAML text says; `visit` is shown its nodes first."""
    import yaml

    class Loader(yaml.SafeLoader):
        def fetch_flow_collection_start(self, *token: Any) -> None:
            if self.flow_level >= MAX_DEPTH:  # PyYAML takes seconds for thousands of them
                raise yaml.YAMLError("it is nested too deeply")
            super().fetch_flow_collection_start(*token)

    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > MAX_VALUES:
            raise NotYaml(f"with its aliases (*) it stands for more than {MAX_VALUES:,} values")
        visit(node)
        return loader.construct_document(node)
    except RecursionError:
        raise NotYaml("a YAML anchor (&) holds itself, or it is nested too deeply") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as problem:
        # Beside its own errors, PyYAML lets through what `!!bool x`, `!!timestamp x` or 2024-13-45 come to.
        raise NotYaml(str(problem)) from None


def _size(node: Any, sizes: dict[int, int]) -> int:
    """How many values a node stands for, each alias counted as what it repeats."""
    if id(node) not in sizes:
        pairs = node.value if node.id == "mapping" else ()
        parts = node.value if node.id == "sequence" else [part for pair in pairs for part in pair]
        sizes[id(node)] = 1 + sum(_size(part, sizes) for part in parts)
    return sizes[id(node)]
