"""An image that a tool answers with: what it is is read from its first bytes, not from what the tool says of it.

An image that is too large, of another kind or unreadable is None, and is named in the tool's text instead.
"""

from __future__ import annotations

import base64
import binascii
import struct

from windrow.tools.base import ToolImage

MAX_IMAGE_BYTES = 5 << 20
MAX_IMAGES = 20  # of one result
MAX_SIDE = 16_384
_JPEG_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # the segments that hold the size


def read_image(encoded: str) -> ToolImage | None:
    """The image in this base64, if it is a PNG, JPEG, GIF or WebP within the bounds."""
    if len(encoded) > MAX_IMAGE_BYTES * 4 // 3 + 4:
        return None
    try:
        data = base64.b64decode(encoded, validate=True)
        media_type, width, height = _described(data)
    except (binascii.Error, ValueError, struct.error):
        return None
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        return None
    return ToolImage(data=data, media_type=media_type, width=width, height=height)


def _described(data: bytes) -> tuple[str, int, int]:
    """The media type, width and height; ValueError or struct.error for anything else."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png", *struct.unpack_from(">II", data, 16)
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "image/gif", *struct.unpack_from("<HH", data, 6)
    if data.startswith(b"\xff\xd8"):
        return "image/jpeg", *_jpeg_size(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp", *_webp_size(data)
    raise ValueError("no image that models take")


def _jpeg_size(data: bytes) -> tuple[int, int]:
    position = 2
    while True:
        mark, kind, length = struct.unpack_from(">BBH", data, position)
        if mark != 0xFF or length < 2:
            raise ValueError("not a segment")
        if kind in _JPEG_SIZES:
            height, width = struct.unpack_from(">HH", data, position + 5)
            return width, height
        position += 2 + length


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF
