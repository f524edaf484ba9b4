"""Token ids as text, where a tokenizer is at hand: a tokenizer.json, read by the `tokenizers` package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from windrow.errors import UsageError

Decode = Callable[[list[int]], str]


def read_tokenizer(path: Path) -> Decode:
    """What decodes ids by this tokenizer.json, or by the one in this directory; special tokens are shown."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError("--tokenizer needs the package 'tokenizers'; type: pip install tokenizers") from None
    if not file.is_file():
        raise UsageError(f"--tokenizer {path}: there is no tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as problem:  # the package raises bare Exceptions
        raise UsageError(f"--tokenizer {file}: {problem}") from None

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False))

    return decode


def as_ids(ids: list[int]) -> str:
    return " ".join(map(str, ids))
