"""Agents that take no connection: each is noticed once and waited for by all of its rows together.

The first row that is refused asks again, with growing pauses; the other rows of that agent wait for what it finds. If it
gives up, they fail with it, and so does, without a try, whichever row comes within the last pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from windrow.errors import WindrowError
from windrow.integrations.nemo_gym.client import Caller
from windrow.policies.calls import pause_s
from windrow.policies.endpoint_failures import NotConnected
from windrow.records import Json

PROBE_TIMEOUT_S = 20.0


class _Outage:
    def __init__(self, problem: NotConnected) -> None:
        self.problem = problem
        self.over = False
        self.asking = asyncio.Lock()
        self.given_up = 0  # how often
        self.quiet_until = 0.0  # on the loop's clock, once it was given up


class Outages:
    """`notify` is told of each outage and of its end."""

    def __init__(self, caller: Caller, notify: Callable[[str], None]) -> None:
        self._caller = caller
        self._notify = notify
        self._by_agent: dict[str, _Outage] = {}

    async def reached(
        self,
        agent: str,
        url: Callable[[], str],
        send: Callable[[], Awaitable[dict[str, Json]]],
        *,
        retries: int,
        backoff_s: float,
        refused: Callable[[], Awaitable[None]],
    ) -> dict[str, Json]:
        """Return the result of `send`, once the agent takes connections. `refused` is awaited before each new try."""
        for _ in range(retries + 1):
            outage = self._by_agent.get(agent)
            if outage is None:
                try:
                    return await send()
                except NotConnected as problem:
                    outage = self._noticed(agent, problem)
            await self._wait(agent, outage, url, retries, backoff_s, refused)
        return await send()

    def _noticed(self, agent: str, problem: NotConnected) -> _Outage:
        if agent not in self._by_agent:
            self._by_agent[agent] = _Outage(problem)
            self._notify(f"agent {agent!r} takes no connection, so its rows wait: {problem}")
        return self._by_agent[agent]

    async def _wait(
        self,
        agent: str,
        outage: _Outage,
        url: Callable[[], str],
        retries: int,
        backoff_s: float,
        refused: Callable[[], Awaitable[None]],
    ) -> None:
        """Return when the outage is over; raise NotConnected if it has been given up."""
        clock = asyncio.get_running_loop().time
        given_up = outage.given_up
        async with outage.asking:
            if outage.over:
                return
            if outage.given_up == given_up and clock() >= outage.quiet_until:
                for tries in range(retries):
                    await asyncio.sleep(pause_s(tries, backoff_s, None))
                    await refused()
                    if await self._answers(url()):
                        self._ended(agent, outage)
                        return
                outage.given_up += 1
                outage.quiet_until = clock() + pause_s(retries, backoff_s, None)
            raise NotConnected(str(outage.problem), kind=outage.problem.kind)

    def _ended(self, agent: str, outage: _Outage) -> None:
        outage.over = True
        del self._by_agent[agent]
        self._notify(f"agent {agent!r} takes connections again")

    async def _answers(self, url: str) -> bool:
        """Return whether somebody takes a connection there, whatever the answer is."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._caller.get(f"{url}/")
        except NotConnected:
            return False
        except (WindrowError, TimeoutError):
            return True
        return True
