"""Which proxy leads to a server: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, in capitals or not."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from windrow.errors import UsageError


class Proxy(NamedTuple):
    url: str  # without user and password
    user: str | None
    password: str


def proxy_for(url: str) -> Proxy | None:
    """The proxy that the environment names for `url`; UsageError where it is of a kind that cannot be used.

    The variables are read as urllib reads them. Loopback addresses are never asked for through a proxy: what listens
    there is ours, and the proxy's loopback is another one.
    """
    if not any(name[-6:].lower() == "_proxy" for name in os.environ):
        return None
    import urllib.request  # costs 20 ms

    proxies = urllib.request.getproxies_environment()
    bypass: Callable[..., object] = urllib.request.proxy_bypass_environment  # type: ignore[attr-defined]  # not in typeshed
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or _is_loopback(host):
        return None
    if bypass(host, proxies) or bypass(f"{host}:{port}", proxies):
        return None
    return _parsed(proxy, parts.scheme)


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parsed(text: str, scheme: str) -> Proxy:
    """The URL itself is not quoted in errors: it may hold a password."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme not in ("http", "https"):
        raise UsageError(
            f"the environment names a proxy for {scheme}:// ({scheme.upper()}_PROXY or ALL_PROXY) that cannot be used: "
            f"expected http://host:port. NO_PROXY=HOST goes to a host directly"
        )
    name = f"[{host}]" if ":" in host else host
    user = None if parts.username is None else unquote(parts.username)
    return Proxy(
        f"{parts.scheme}://{name}" + (f":{port}" if port else ""), user, unquote(parts.password or "")
    )
