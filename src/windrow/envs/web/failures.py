"""The errors of browsers, pages and leases."""

from __future__ import annotations

from windrow.errors import EnvError, InfraError


class BrowserGone(InfraError):
    """The browser, the page's renderer or the lease is lost. The attempt is failed and run again, never scored."""

    kind = "browser_gone"

    def __init__(self, message: str, *, kind: str | None = None) -> None:
        super().__init__(message, kind=kind, again=False)


class LeaseLost(BrowserGone):
    """The lease has expired or was given back: its browser may belong to another lease by now."""

    kind = "lease_lost"


class PageError(EnvError):
    """The page or its site is at fault. A policy may see the error and do something else; the lease is still valid."""

    kind = "page"


class PageTimeout(PageError):
    """The page did not complete a command in time, and may still be busy with it."""

    kind = "page_timeout"


class PageClosed(PageError):
    """The page was closed during a command."""

    kind = "page_closed"


class Unreachable(PageError):
    """No server answers at that host."""

    kind = "unreachable"


class AddressRefused(PageError):
    """The page requested an address that pages may not visit."""

    kind = "address_refused"
    retryable = False
