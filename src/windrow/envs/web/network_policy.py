"""The addresses that pages may reach. Pages are hostile, and addresses that a model names may be.

Allowed are public addresses over http and https, and the entries of `allow`; but no files, and no addresses of this machine
or its networks. Every connection of a context goes through a proxy of its own, which resolves the name, checks the address
and connects to exactly that address: a redirect, a name that resolves to a private address, or one that resolves
differently the second time does not pass.
"""

from __future__ import annotations

import ipaddress
import socket
import urllib.parse
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any

from windrow.envs.web.failures import AddressRefused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ANYTHING = "*"
SCHEMES = ("http", "https")
OTHERS = ("about", "data", "blob", "chrome-error")  # a page may be there without a connection
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Some versions of Python take these for public: metadata servers of clouds (Azure, Oracle), translated and site-local
# addresses, and IPv4 addresses written as IPv6.
_NOT_PUBLIC: tuple[Network, ...] = tuple(
    ipaddress.ip_network(network)
    for network in ("168.63.129.16/32", "192.0.0.0/24", "64:ff9b:1::/48", "fec0::/10", "::/96")
)


class NetworkPolicy:
    """The rules in `allow`: `HOST`, `HOST:PORT`, `*.SUFFIX`, a network (`10.0.0.0/8`), or `*` for everything but files."""

    def __init__(self, allow: Sequence[str] = ()) -> None:
        self.open = ANYTHING in allow
        self._networks = [network for entry in allow if (network := _network(entry)) is not None]
        self.hosts = [entry.lower() for entry in allow if _network(entry) is None and entry != ANYTHING]

    def check(self, url: str) -> None:
        """Raise AddressRefused if a page may not be sent to `url`. Names are resolved only by the proxy."""
        if url == "about:blank":
            return
        try:
            parts = urllib.parse.urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise AddressRefused(f"{_short(url)} is not a URL") from None
        if parts.scheme not in SCHEMES or not host:
            raise AddressRefused(f"{_short(url)} is not an http or https URL")
        if not self.open:
            self.check_host(host, port or {"http": 80, "https": 443}[parts.scheme])

    def check_host(self, host: str, port: int) -> None:
        if self.names(host, port):
            return
        local = host.lower().rstrip(".")
        address = _literal(host)
        if (address is not None and not self.admits(address)) or (
            address is None and (local == "localhost" or local.endswith(".localhost"))
        ):
            raise refusal(host, port)

    def names(self, host: str, port: int) -> bool:
        """Whether `allow` names the host itself."""
        host = host.lower().strip("[]")
        shown = f"[{host}]" if ":" in host else host
        return any(fnmatch(host, entry) or fnmatch(f"{shown}:{port}", _plain(entry)) for entry in self.hosts)

    def admits(self, address: Address) -> bool:
        if self.open or any(address in network for network in self._networks):
            return True
        return is_public(address) and not is_own(address)

    def objection(self, url: str) -> AddressRefused | None:
        """The reason why a page at `url` may not be read; None if it may."""
        scheme = url.partition(":")[0].lower()
        if not url or scheme in OTHERS:
            return None
        try:
            self.check(url)
        except AddressRefused as problem:
            return problem
        return None


def is_public(address: Address) -> bool:
    """Whether it is a public address: none of this machine or a private network, also if embedded in an IPv6 address."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None:
            return False
    return (
        address.is_global
        and not address.is_multicast
        and not any(address in network for network in _NOT_PUBLIC)
    )


def is_own(address: Address) -> bool:
    """Whether the address is this machine's own, where no firewall protects its servers. Nothing is sent."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return ipaddress.ip_address(probe.getsockname()[0].partition("%")[0]) == address
    except OSError:  # it cannot be reached at all
        return False


def refusal(host: str, port: int) -> AddressRefused:
    return AddressRefused(
        f"{host}:{port} is not a public address, and pages may not have it; "
        f"to let them, add it to the environment's setting allow (allow: ['{host}:{port}'])"
    )


def _network(entry: str) -> Network | None:
    if "/" not in entry:
        return None
    return ipaddress.ip_network(entry, strict=False)


def _literal(host: str) -> Address | None:
    """The address that `host` is, as browsers read it (127.1, 0x7f000001, 2130706433)."""
    host = host.strip("[]").partition("%")[0]
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host.rstrip(".")))
    except (OSError, ValueError):
        return None


def _plain(entry: str) -> str:
    """`[` is no pattern here: it begins an IPv6 address."""
    return entry.replace("[", "[[]") if entry.startswith("[") else entry


def _short(url: str) -> str:
    return url if len(url) <= 200 else f"{url[:200]}…"


def context_options(proxy: dict[str, str] | None, wanted: dict[str, Any]) -> dict[str, Any]:
    """The options of every context: no downloads, no service workers, no permissions, and the proxy."""
    return {
        "locale": "en-US",
        "timezone_id": "UTC",
        "reduced_motion": "reduce",
        **wanted,
        "accept_downloads": False,
        "service_workers": "block",
        "permissions": [],
        **({} if proxy is None else {"proxy": proxy}),
    }
