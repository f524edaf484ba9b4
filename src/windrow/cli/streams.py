"""The standard streams, kept apart: a clean stream for programs, and nothing written across the live region.

Both work on descriptors, so they hold for whatever writes: print, a log handler made long ago, a warning, a C library,
a child process.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterable
from typing import BinaryIO, TextIO

from windrow.cli.output import visible_json

CHUNK = 1 << 16


def descriptor(stream: TextIO) -> int | None:
    """The stream's descriptor; None for one that a program put in its place."""
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


class JsonLines:
    """Standard output for JSON lines alone: what anyone else prints there goes to standard error until `close`."""

    def __init__(self) -> None:
        self._out, error = descriptor(sys.stdout), descriptor(sys.stderr)
        self._own: int | None = None
        if self._out is not None and error is not None:
            sys.stdout.flush()
            self._own = os.dup(self._out)
            os.dup2(error, self._out)

    def write(self, line: bytes) -> None:
        """Raises BrokenPipeError when nobody reads any more."""
        line = visible_json(line)
        if self._own is None:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        else:
            view = memoryview(line)
            while view:
                view = view[os.write(self._own, view) :]

    def close(self) -> None:
        if self._own is not None and self._out is not None:
            sys.stdout.flush()
            os.dup2(self._own, self._out)
            os.close(self._own)
            self._own = None


class Capture:
    """Sets aside what is written to these streams until `close`, in its order, to be shown at a better place.

    A file, not a pipe: nobody who writes can be made to wait, and so none can hang.
    """

    def __init__(self, streams: Iterable[TextIO]) -> None:
        self._file: BinaryIO = tempfile.TemporaryFile(buffering=0)
        self._streams = [(stream, os.dup(stream.fileno())) for stream in streams]
        self._read = 0
        self._partial = b""
        for stream, _ in self._streams:
            stream.flush()
            os.dup2(self._file.fileno(), stream.fileno())

    def lines(self) -> str:
        """The whole lines that came since the last call, without the last newline."""
        data = self._partial
        while chunk := os.pread(self._file.fileno(), CHUNK, self._read):
            self._read += len(chunk)
            data += chunk
        whole, newline, self._partial = data.rpartition(b"\n")
        return (whole + newline).decode(errors="replace")

    def close(self) -> str:
        """Give the streams back, and return what was not read yet, a last unfinished line too."""
        for stream, kept in self._streams:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
            os.dup2(kept, stream.fileno())
            os.close(kept)
        rest = self.lines() + self._partial.decode(errors="replace")
        self._file.close()
        return rest
