"""Servers of single pages, for what a browser may reach: what is asked for is counted, headers are the test's."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self


class Reply(NamedTuple):
    body: str | bytes = "<title>here</title>"
    status: int = 200
    headers: Mapping[str, str] = {}


class Origin:
    """One origin on the loopback. `replies` by path; any other path is a page with the title `here`."""

    def __init__(
        self, replies: Mapping[str, Reply] | None = None, *, where: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.asked: Counter[str] = Counter()
        self.replies = dict(replies or {})
        origin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                origin.asked[self.path] += 1
                reply = origin.replies.get(self.path.partition("?")[0], Reply())
                data = reply.body.encode() if isinstance(reply.body, str) else reply.body
                try:
                    self.send_response(reply.status)
                    for name, value in {"Content-Type": "text/html", **reply.headers}.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except ConnectionError:
                    pass  # the browser went on

            def log_message(self, *_: Any) -> None:
                return None

        self._server = ThreadingHTTPServer((where, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def host(self) -> str:
        """What the setting `allow` names."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def url(self, path: str = "/") -> str:
        return f"http://{self.host}{path}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
