"""The floor: the least work that any collector must do, so the most that one process can reach.

It posts the same chat request for every (task, sample), decodes only what a record needs, and appends one JSON line
each to a file, in batches. No plan, no environment, no retries, no progress. What a real collector reaches of this is
its efficiency.

    python bare_client.py --base-url http://127.0.0.1:18200/v1 --tasks 1000 --repeats 8 --concurrency 256 --out DIR
"""

from __future__ import annotations

import aiohttp

from _floor import HEADERS, Choice, Client, decode, encode, main


def session(base_url: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def ask(session: aiohttp.ClientSession, url: str, body: dict) -> Choice:
    async with session.post(url, data=encode(body), headers=HEADERS) as response:
        return decode(await response.read()).choices[0]


if __name__ == "__main__":
    main(Client("bare", session, ask), __doc__.splitlines()[0])
