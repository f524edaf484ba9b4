"""How calls to an endpoint fail: the errors for each cause, and the wait that a server asks for."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

from windrow.errors import EndpointError, InfraError, StaleConnection
from windrow.policies.http_client import ConnectError, HttpError, StaleConnectionError, TlsError

AGES_S = 1e9


class NotConnected(InfraError):
    """No connection was made: nothing listens there."""


class UntrustedConnection(InfraError):
    """The connection could not be secured. This is not an outage: waiting does not help."""


class Unreachable(EndpointError):
    """The endpoint does not answer. Another one may take its place."""


def call_error_type(problem: HttpError) -> type[InfraError]:
    """The kind of call error that an error of the HTTP client stands for."""
    if isinstance(problem, TlsError):
        return UntrustedConnection
    if isinstance(problem, StaleConnectionError):
        return StaleConnection
    return NotConnected if isinstance(problem, ConnectError) else InfraError


def retry_after(value: str | None) -> float | None:
    """The value of a Retry-After header in seconds, finite: a number or an HTTP date. None where it asks for no wait."""
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
