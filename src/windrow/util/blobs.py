"""Large bytes, such as screenshots: stored once, under the hash of their content, beside the records that name them.

A message names an image by a part {blob, media_type, width, height}; a model is shown the image itself.
"""

from __future__ import annotations

import base64
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from windrow.errors import StoreError
from windrow.records import Json, Message

NAME_CHARS = 64
CACHE_CHARS = 64_000_000  # of images in base64: about five hundred screenshots


def name_of_blob(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Blobs:
    """The store of an episode's large bytes.

    The images used last are also cached as data URLs: a window of screenshots is sent again with every turn, and should not
    be read, checked and encoded again each time.
    """

    def __init__(self) -> None:
        self._urls: OrderedDict[tuple[str, str], str] = OrderedDict()  # the least recently used first
        self._room = CACHE_CHARS

    async def put(self, data: bytes) -> str:
        """Store these bytes and return their name. A blob that a rollout names is durable before the rollout is."""
        raise NotImplementedError

    async def get(self, name: str) -> bytes:
        """The bytes of this name; StoreError if they are missing or damaged."""
        raise NotImplementedError

    def path(self, name: str) -> str | None:
        """The file that has the bytes of this name, or None if they are in memory."""
        return None

    async def image(self, data: bytes, media_type: str, width: int, height: int) -> dict[str, Json]:
        """Store an image; returns the part of a message's content that names it."""
        name = await self.put(data)
        if self._cached(name, media_type) is None:
            self._encoded(name, media_type, data)
        return {"blob": name, "media_type": media_type, "width": width, "height": height}

    async def data_url(self, name: str, media_type: str) -> str:
        """The image of this name as a data URL; StoreError if it is missing or damaged."""
        url = self._cached(name, media_type)
        return url if url is not None else self._encoded(name, media_type, await self.get(name))

    def _cached(self, name: str, media_type: str) -> str | None:
        url = self._urls.get((name, media_type))
        if url is not None:
            self._urls.move_to_end((name, media_type))
        return url

    def _encoded(self, name: str, media_type: str, data: bytes) -> str:
        url = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
        # Another caller may have encoded it meanwhile.
        self._room += len(self._urls.pop((name, media_type), ""))
        self._room -= len(url)
        self._urls[name, media_type] = url
        while self._room < 0:
            self._room += len(self._urls.popitem(last=False)[1])
        return url


class MemoryBlobs(Blobs):
    """The blobs of episodes that are not stored, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._data: dict[str, bytes] = {}

    async def put(self, data: bytes) -> str:
        name = name_of_blob(data)
        self._data[name] = data
        return name

    async def get(self, name: str) -> bytes:
        if name not in self._data:
            raise StoreError(f"there is no blob {name}")
        return self._data[name]


def blobs_in(messages: Iterable[Message]) -> Iterator[str]:
    """The names of the blobs that messages name, in order."""
    for message in messages:
        if isinstance(message.content, list):
            yield from (part["blob"] for part in message.content if is_blob(part))


def is_blob(part: Json) -> bool:
    return isinstance(part, dict) and isinstance(part.get("blob"), str)


async def shown(messages: Sequence[Message], blobs: Blobs) -> tuple[Message, ...]:
    """The messages as a model sees them: each image is a data URL, where the record has its name."""
    return tuple(
        [
            message
            if not isinstance(message.content, list) or not any(map(is_blob, message.content))
            else msgspec.structs.replace(message, content=[await _part(p, blobs) for p in message.content])
            for message in messages
        ]
    )


async def _part(part: dict[str, Json], blobs: Blobs) -> dict[str, Json]:
    if not is_blob(part):
        return part
    return {"type": "image_url", "image_url": {"url": await blobs.data_url(part["blob"], part["media_type"])}}
