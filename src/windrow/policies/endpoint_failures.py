"""How an endpoint fails: nobody is there, nobody can be trusted, or it asks to be left alone for a while."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

from windrow.errors import EndpointError, InfraError, StaleConnection
from windrow.policies.http_client import ConnectError, HttpError, StaleConnectionError, TlsError

AGES_S = 1e9


class NotConnected(InfraError):
    """Nobody took the connection."""


class UntrustedConnection(InfraError):
    """The connection was not made since it could not be trusted: no outage, which would pass."""


class Unreachable(EndpointError):
    """Nobody answers there. Another endpoint may do in its place."""


def call_error_type(problem: HttpError) -> type[InfraError]:
    """The error of a call that one of the HTTP client's is."""
    if isinstance(problem, TlsError):
        return UntrustedConnection
    if isinstance(problem, StaleConnectionError):
        return StaleConnection
    return NotConnected if isinstance(problem, ConnectError) else InfraError


def retry_after(value: str | None) -> float | None:
    """Retry-After in seconds, finite: a number, or the time until an HTTP date. None where it asks for nothing."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return min(seconds, AGES_S) if seconds > 0 else None  # NaN is not above 0 either
