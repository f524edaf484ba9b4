"""Which tools a policy may see and call: wildcards, allow first, then deny."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec


class ToolFilter(msgspec.Struct, frozen=True):
    """`allow` empty lets every tool through; what `deny` matches is out, whatever `allow` says."""

    allow: Sequence[str] = ()
    deny: Sequence[str] = ()

    def permits(self, name: str) -> bool:
        allowed = not self.allow or any(fnmatchcase(name, pattern) for pattern in self.allow)
        return allowed and not any(fnmatchcase(name, pattern) for pattern in self.deny)
