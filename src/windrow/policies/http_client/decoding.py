"""Content codings: gzip and deflate, undone piece by piece within a limit."""

from __future__ import annotations

import zlib

from windrow.policies.http_client.base import ProtocolError, ResponseTooLarge

ACCEPTED = "gzip, deflate"
MAX_STREAMS = 256  # of one body: each is a stream of its own to unpack, also if there is nothing in it


class ContentDecoder:
    """Unpacks a body as it arrives. It never makes more than `max_bytes`, however small the packed body is."""

    def __init__(self, coding: str, max_bytes: int) -> None:
        if coding not in ("gzip", "x-gzip", "deflate"):
            raise ProtocolError("the response has a content encoding that was not asked for")
        self._coding = coding
        self._max_bytes = self._left = max_bytes
        self._inflate: zlib._Decompress | None = None
        self._streams = 0

    def decode(self, part: bytes) -> bytes:
        """What this part unpacks to. A gzip body may be several streams, one after another."""
        unpacked = []
        while part:
            if self._inflate is None or self._inflate.eof:
                self._streams += 1
                if self._streams > MAX_STREAMS:
                    raise ProtocolError(f"the response is packed in more than {MAX_STREAMS} streams")
                self._inflate = zlib.decompressobj(self._window_bits(part[0]))
            try:
                piece = self._inflate.decompress(part, self._left + 1)
            except zlib.error as problem:
                raise ProtocolError(f"the response cannot be unpacked: {problem}") from None
            self._left -= len(piece)
            if self._left < 0:
                raise ResponseTooLarge(self._max_bytes)
            unpacked.append(piece)
            part = self._inflate.unused_data
        return b"".join(unpacked)

    @property
    def finished(self) -> bool:
        """Whether the body may end here: nothing was packed at all, or its end was seen."""
        return self._inflate is None or self._inflate.eof

    def _window_bits(self, first: int) -> int:
        if self._coding != "deflate":
            return zlib.MAX_WBITS | 16
        # `deflate` is a zlib stream by the standard, and a bare one from some servers: a zlib header ends in 8.
        return zlib.MAX_WBITS if first & 15 == 8 else -zlib.MAX_WBITS


def content_decoder(headers: dict[bytes, bytes], max_bytes: int) -> ContentDecoder | None:
    """The decoder that these headers ask for; None where the body stands as it is."""
    coding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
    return None if coding in ("", "identity") else ContentDecoder(coding, max_bytes)
