"""HTTP to model servers: a lean HTTP/1.1 client, and aiohttp where a proxy is set.

`http_client` chooses between them. The lean client (`direct.py`) sends a request with one write and waits once for its
response; a full client, with cookies, redirects, proxies and hooks, takes six times the CPU. Retries, statuses and JSON
do not belong here: a client returns any response that is whole, and raises HttpError for anything else.
"""

from __future__ import annotations

from collections.abc import Mapping

from windrow.policies.http_client.base import (
    CertificateError,
    ConnectError,
    ContentError,
    HttpClient,
    HttpError,
    ProtocolError,
    RepliesTooLarge,
    Response,
    ResponseTooLarge,
    StaleConnectionError,
    TlsError,
    TruncatedContent,
)
from windrow.policies.http_client.proxies import proxy_for

__all__ = [
    "http_client",
    "HttpClient",
    "Response",
    "HttpError",
    "ConnectError",
    "TlsError",
    "CertificateError",
    "StaleConnectionError",
    "ProtocolError",
    "ContentError",
    "RepliesTooLarge",
    "ResponseTooLarge",
    "TruncatedContent",
]


def http_client(base_url: str, headers: Mapping[str, str], *, max_body_bytes: int) -> HttpClient:
    """A client for the server of `base_url`. `headers` go with every request; UsageError where they cannot be sent.

    Each implementation is imported when it is chosen: nobody waits for aiohttp who has no proxy.
    """
    proxy = proxy_for(base_url)
    if proxy is None:
        from windrow.policies.http_client.direct import DirectClient

        return DirectClient(base_url, headers, max_body_bytes=max_body_bytes)
    from windrow.policies.http_client.proxied import ProxiedClient

    return ProxiedClient(proxy, headers, max_body_bytes=max_body_bytes)
