"""The (digest, occurrence) pairs of many tasks in little memory: 16 bytes per task, and one entry per repeated task."""

from __future__ import annotations

from collections.abc import Sequence

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

    @property
    def repeated(self) -> int:
        """Count the tasks that repeat an earlier one."""
        return len(self._occurrences)

    @classmethod
    def restored(cls, digests: bytes, occurrences: dict[int, int]) -> Identities:
        identities = cls()
        identities._digests, identities._occurrences = bytearray(digests), occurrences
        return identities

    def packed(self, positions: Sequence[int]) -> tuple[bytes, dict[int, int]]:
        """Return the digests of the tasks at these positions, joined, and the occurrence number of each repeated task
        by its order.
        """
        if positions == range(len(self)):
            return bytes(self._digests), dict(self._occurrences)
        starts = (position * DIGEST_BYTES for position in positions)
        digests = b"".join(self._digests[start : start + DIGEST_BYTES] for start in starts)
        repeated = self._occurrences
        occurrences = (
            {n: repeated[at] for n, at in enumerate(positions) if at in repeated} if repeated else {}
        )
        return digests, occurrences

    def append(self, digest: str, occurrence: int) -> None:
        if occurrence:
            self._occurrences[len(self)] = occurrence
        self._digests += bytes.fromhex(digest)
