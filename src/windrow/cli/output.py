"""What the command prints. Nothing else of Windrow writes to the standard streams.

Text may come from a model, a server, a page, a row or somebody else's run. So control characters, which a terminal would
obey, and bidirectional controls, which make a line read as what it is not, are printed as `\\u001b`; so is JSON, in which
that means the same. Secrets of this process are masked.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import msgspec

from windrow.util.redaction import Redactor

# C0 but tab and newline, delete and C1, the bidirectional controls, halves of surrogate pairs.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@functools.cache
def _redactor() -> Redactor:
    return Redactor()


def visible(text: str) -> str:
    """`text` with every character that could act on a terminal as an escape that can be read."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def visible_json(data: bytes) -> bytes:
    """JSON with the same meaning, of which a terminal obeys nothing."""
    if data.isascii() and b"\x7f" not in data:
        return data  # JSON itself allows no other control character
    return visible(data.decode()).encode()


def write_out(text: object = "") -> None:
    """Print a result: lines for standard output."""
    sys.stdout.write(shown(f"{text}\n"))


def write_error(text: object) -> None:
    """Print a message, a warning or an error: lines for standard error, at once."""
    sys.stderr.write(shown(f"{text}\n"))
    sys.stderr.flush()


def write_json(value: object, *, indent: int | None = None) -> None:
    """Print a value as one line of JSON, or indented."""
    data = msgspec.json.encode(value)
    write_json_bytes((data if indent is None else msgspec.json.format(data, indent=indent)) + b"\n")


def write_json_bytes(data: bytes) -> None:
    """Print JSON that is encoded already. A command prints JSON or text, not both: they are buffered apart."""
    if hasattr(sys.stdout, "buffer"):  # UTF-8, whatever the terminal's encoding is
        sys.stdout.buffer.write(visible_json(data))
    else:
        sys.stdout.write(visible_json(data).decode())


def write_traceback() -> None:
    """Print where the error that is being handled comes from."""
    write_error(traceback.format_exc().rstrip("\n"))


def shown(text: str) -> str:
    """`text` as it is printed: without secrets, and visible."""
    return visible(_redactor().text(text))


class _LogLines(logging.Handler):
    """Prints what libraries log and nobody else handles."""

    def emit(self, record: logging.LogRecord) -> None:
        write_error(self.format(record))


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Inside, warnings, and log records that nobody handles, are printed as everything else is."""
    _redactor.cache_clear()  # the environment may have changed since the last command
    last_resort, format_warning = logging.lastResort, warnings.formatwarning

    def formatted(*warning: Any, **more: Any) -> str:
        return shown(format_warning(*warning, **more))

    logging.lastResort, warnings.formatwarning = _LogLines(logging.WARNING), formatted
    try:
        yield
    finally:
        logging.lastResort, warnings.formatwarning = last_resort, format_warning
