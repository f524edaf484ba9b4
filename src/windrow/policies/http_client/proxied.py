"""Requests through a proxy: aiohttp's work, behind the same interface."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Mapping

from windrow.policies.http_client.base import (
    CertificateError,
    ConnectError,
    HttpError,
    RepliesTooLarge,
    Response,
    ResponseTooLarge,
    TlsError,
    TruncatedContent,
)
from windrow.policies.http_client.decoding import ACCEPTED, content_decoder
from windrow.policies.http_client.proxies import Proxy
from windrow.policies.http_client.requests import header_lines
from windrow.policies.http_client.tls import tls_context
from windrow.policies.lazy_aiohttp import aiohttp
from windrow.util.byte_budget import REPLIES, HeldBytes


class ProxiedClient:
    """An `HttpClient` through one proxy. A connection that ends without a word is an ordinary HttpError here.

    aiohttp repeats a GET by itself where a reused connection has ended; it never repeats a POST.
    """

    def __init__(self, proxy: Proxy, headers: Mapping[str, str], *, max_body_bytes: int) -> None:
        header_lines(headers)  # refuses what cannot be sent
        self._proxy = proxy
        self._headers = {"Accept-Encoding": ACCEPTED, "User-Agent": "windrow", **headers}
        self._proxy_headers = {}
        if proxy.user is not None:
            secret = b64encode(f"{proxy.user}:{proxy.password}".encode()).decode()
            self._proxy_headers["Proxy-Authorization"] = f"Basic {secret}"
        self._max_body_bytes = max_body_bytes
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300, ssl=tls_context()),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),  # a balancer's cookie would send every rollout to one server
            auto_decompress=False,  # ours is bounded
        )

    def post(self, url: str, body: bytes, *, new_connection: bool = False) -> Awaitable[Response]:
        return self._send("POST", url, body)

    def get(self, url: str, *, new_connection: bool = False) -> Awaitable[Response]:
        return self._send("GET", url, None)

    async def close(self) -> None:
        await self._session.close()

    async def _send(self, method: str, url: str, body: bytes | None) -> Response:
        # The session has no headers: it would send them to the proxy too, the key among them, to open a tunnel.
        tunnelled = url.startswith("https:")
        try:
            async with self._session.request(
                method,
                url,
                data=body,
                headers=self._headers if tunnelled else self._headers | self._proxy_headers,
                proxy=self._proxy.url,
                proxy_headers=self._proxy_headers if tunnelled else None,
                allow_redirects=False,
            ) as response:
                headers = {
                    name.lower().encode(): value.encode("latin-1", "replace")
                    for name, value in response.headers.items()
                }
                held = HeldBytes(REPLIES)
                return Response(response.status, headers, await self._read(response, headers, held), held)
        except aiohttp.ClientConnectorCertificateError as problem:
            raise CertificateError(str(problem.certificate_error)) from None
        except aiohttp.ClientSSLError as problem:
            raise TlsError(str(problem)) from None
        except aiohttp.ClientHttpProxyError as problem:
            raise ConnectError(
                f"the proxy {self._proxy.url} answered {problem.status} {problem.message}"
            ) from None
        except aiohttp.ClientProxyConnectionError as problem:
            raise ConnectError(
                f"cannot connect to the proxy {self._proxy.url} ({problem.strerror})"
            ) from None
        except aiohttp.ClientConnectorError as problem:
            raise ConnectError(str(problem)) from None
        except HttpError:
            raise
        except (aiohttp.ClientError, OSError, ValueError) as problem:
            raise HttpError(str(problem) or type(problem).__name__) from None

    async def _read(
        self, response: aiohttp.ClientResponse, headers: dict[bytes, bytes], held: HeldBytes
    ) -> bytes:
        """The body, unpacked; one that is too long is not read to its end."""
        limit = self._max_body_bytes
        if (response.content_length or 0) > limit:
            raise ResponseTooLarge(limit)
        decoder = content_decoder(headers, limit)
        body = bytearray()
        async for part in response.content.iter_any():
            body += part if decoder is None else decoder.decode(part)
            if len(body) > limit:
                raise ResponseTooLarge(limit)
            if not held.cover(len(body)):
                raise RepliesTooLarge
        if decoder is not None and not decoder.finished:
            raise TruncatedContent
        return bytes(body)
