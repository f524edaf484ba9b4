"""What can go wrong with a browser, a page or a lease, and whose fault it is."""

from __future__ import annotations

from windrow.errors import EnvError, InfraError


class BrowserGone(InfraError):
    """The browser, the page's renderer or the lease is lost. The attempt is failed and run again, never scored."""

    kind = "browser_gone"

    def __init__(self, message: str, *, kind: str | None = None) -> None:
        super().__init__(message, kind=kind, again=False)


class LeaseLost(BrowserGone):
    """The lease has expired or was given back: its browser may be somebody else's by now."""

    kind = "lease_lost"


class PageError(EnvError):
    """The page or its site is at fault: a policy may be told, and do something else. The lease stands."""

    kind = "page"


class PageTimeout(PageError):
    """The page did not do it in time, and may go on with it."""

    kind = "page_timeout"


class PageClosed(PageError):
    """The page closed itself, or was closed, while it was asked."""

    kind = "page_closed"


class Unreachable(PageError):
    """No server answers under that name."""

    kind = "unreachable"


class AddressRefused(PageError):
    """The page wanted an address that pages may not have."""

    kind = "address_refused"
    retryable = False
