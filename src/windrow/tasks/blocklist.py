"""The blocklist: domains that have shut the agent out, each for some hours.

    {"domain": "shop.example", "url": …, "blocked_at": "2026-01-31T12:00:00", "task_id"?: …, "screenshot_path"?: …}

A time is ISO 8601 (without a zone: this machine's, as the environment `web` writes it), or seconds since 1970. A
domain that was blocked several times is blocked from the last time on.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec

from windrow.errors import UsageError
from windrow.tasks.row_formats import host_of


class _Row(msgspec.Struct):
    domain: Annotated[str, msgspec.Meta(min_length=1)]
    blocked_at: str | float


_decode = msgspec.json.Decoder(_Row).decode


def read_blocklist(path: str, *, hours: float, at: datetime, until: datetime | None = None) -> dict[str, str]:
    """Return the domains that are blocked at this time, each with the time since when. Entries that were added after
    `until` are ignored.

    A line that cannot be read is an error: treating a blocked site as open would be a guess.
    """
    latest: dict[str, tuple[datetime, str]] = {}
    try:
        with open(path, "rb") as file:
            for domain, since, text in _entries(file.readlines(), path):
                if until is None or since <= until:
                    latest[domain] = max(latest.get(domain, (since, text)), (since, text))
    except OSError as problem:
        raise UsageError(f"cannot read the blocklist {path}: {problem.strerror}") from None
    oldest = _earlier(at, hours)
    return {domain: text for domain, (since, text) in sorted(latest.items()) if since >= oldest}


def time_of(written: str | float) -> datetime:
    """Read a time in ISO 8601 or in seconds; raise ValueError if it is neither."""
    try:
        if isinstance(written, str):
            return datetime.fromisoformat(written).astimezone(UTC)
        return datetime.fromtimestamp(written, UTC)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{written!r:.80} is no time such as 2026-01-31T12:00:00") from None


def _entries(lines: list[bytes], path: str) -> Iterator[tuple[str, datetime, str]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = _decode(line)
            since = time_of(row.blocked_at)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as problem:
            raise UsageError(f"{path}:{number}: not a line of a blocklist: {problem}") from None
        yield host_of(row.domain) or row.domain.lower(), since, since.isoformat()


def _earlier(at: datetime, hours: float) -> datetime:
    try:
        return at - timedelta(hours=hours)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)
