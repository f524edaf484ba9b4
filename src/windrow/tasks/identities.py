"""(digest, occurrence) of many tasks in little memory: 16 bytes each, and an entry for each repeated one."""

from __future__ import annotations

DIGEST_BYTES = 16


class Identities:
    def __init__(self) -> None:
        self._digests = bytearray()
        self._occurrences: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._digests) // DIGEST_BYTES

    def __getitem__(self, position: int) -> tuple[str, int]:
        start = position * DIGEST_BYTES
        return self._digests[start : start + DIGEST_BYTES].hex(), self._occurrences.get(position, 0)

    def append(self, digest: str, occurrence: int) -> None:
        if occurrence:
            self._occurrences[len(self)] = occurrence
        self._digests += bytes.fromhex(digest)
