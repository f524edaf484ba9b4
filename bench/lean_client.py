"""The lean floor: the same work as the floor, through windrow's own HTTP client.

The floor (`bare_client.py`) asks through aiohttp, and stays as it is, so that numbers of different times compare. This
one is the real limit of a collector that is written in Python.

    python lean_client.py --base-url http://127.0.0.1:18200/v1 --tasks 1000 --repeats 8 --concurrency 256 --out DIR
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, aclosing

from _floor import HEADERS, Choice, Client, decode, encode, main
from windrow.policies.http_client import HttpClient, http_client


class Session:
    """A client that is closed as `aclosing` closes things."""

    def __init__(self, client: HttpClient) -> None:
        self.post = client.post
        self.aclose = client.close


def session(base_url: str) -> AbstractAsyncContextManager[Session]:
    return aclosing(Session(http_client(base_url, HEADERS, max_body_bytes=64 << 20)))


async def ask(session: Session, url: str, body: dict) -> Choice:
    response = await session.post(url, encode(body))
    return decode(response.body).choices[0]


if __name__ == "__main__":
    main(Client("lean", session, ask), __doc__.splitlines()[0])
