"""aiohttp, imported when it is first used: a call that has nothing to ask a server does not wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp as aiohttp
else:

    class _WhenUsed:
        def __getattr__(self, name: str) -> Any:
            import aiohttp

            value = getattr(aiohttp, name)
            setattr(self, name, value)  # the next use finds it here
            return value

    aiohttp = _WhenUsed()
