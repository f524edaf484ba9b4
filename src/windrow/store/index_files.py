"""Files derived from the logs, in the folder index/ of a run: whoever loses one makes it again.

Such a file is replaced whole but never synced. A power cut may tear it, so it begins with a checksum of the rest, and
one that is torn, damaged, or of another version is taken for none. One that cannot be written is left out.

A run may come from a stranger, and so may its index: what is kept in one says in `__post_init__` (by a ValueError) what it cannot
be, and is then taken for none, too.
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path
from typing import TypeVar

import msgspec

from windrow.util.disk import Disk, folder_mode
from windrow.version import __version__

FOLDER = "index"
MIN_BYTES = 1 << 20  # what is made of fewer bytes is made again in a few milliseconds, and not kept
FORMAT = 1  # of what the files hold; raised when they come to mean something else
_MADE_BY = f"windrow {__version__} {FORMAT} {sys.byteorder}\n".encode()
_CHECKSUM_BYTES = 4

T = TypeVar("T")


def worth_keeping(source_bytes: int) -> bool:
    """Whether what is derived of so many bytes is to be kept."""
    return source_bytes >= MIN_BYTES


def index_name(kind: str, writer: str | None) -> str:
    """What an index is called; one that depends on a plan is each writer's own, since ranks go by one each."""
    return f"{kind}.index" if writer is None else f"{kind}.{writer}.index"


def write_derived(run: Path, name: str, value: msgspec.Struct, disk: Disk) -> None:
    """Keep `value` under `name`; not being able to is no error."""
    payload = msgspec.msgpack.encode(value)
    checksum = zlib.crc32(payload).to_bytes(_CHECKSUM_BYTES, "big")
    try:
        (run / FOLDER).mkdir(folder_mode(run), exist_ok=True)
        disk.put(run / FOLDER / name, (_MADE_BY, checksum, payload))
    except OSError:
        return


def read_derived(run: Path, name: str, kind: type[T]) -> tuple[T, int] | None:
    """What is kept under `name`, and when it was written (in ns, by the file system's clock)."""
    try:
        with (run / FOLDER / name).open("rb") as file:
            if file.readline(len(_MADE_BY)) != _MADE_BY:
                return None
            checksum, payload = file.read(_CHECKSUM_BYTES), file.read()
            written_ns = os.fstat(file.fileno()).st_mtime_ns
        if zlib.crc32(payload).to_bytes(_CHECKSUM_BYTES, "big") != checksum:
            return None
        return msgspec.msgpack.decode(payload, type=kind), written_ns
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
