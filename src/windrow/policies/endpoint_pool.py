"""The endpoints of a policy: which one a call goes to, and how calls wait while none is available.

A rollout's first call goes to the endpoint with the fewest calls in flight. Its later calls go to the same endpoint,
whose cache has their prefix, unless that one is paused or on hold. While no endpoint is available, calls wait, and one
task per paused endpoint probes it until it answers.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from windrow.errors import EndpointError, InfraError, OutageError, StaleConnection
from windrow.policies.base import Request, Route
from windrow.policies.calls import MAX_RETRY_AFTER_S
from windrow.policies.endpoint import Endpoint
from windrow.policies.endpoint_failures import NotConnected, Unreachable, UntrustedConnection
from windrow.policies.endpoint_health import Clock

TELL_WAIT_S = 10.0  # the user is notified of waits that are at least this long
_NO_OUTAGE = (UntrustedConnection, StaleConnection)


class EndpointPool:
    """Chooses an endpoint for each call, and pauses and revives endpoints."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        notify: Callable[[str], None],
        *,
        model: str,
        max_outage_s: float = 600.0,
        probe_timeout_s: float = 20.0,
        clock: Clock = time.monotonic,
        find_out: Callable[[Endpoint], Awaitable[None]] | None = None,
    ) -> None:
        """`find_out` is called with every endpoint that serves the model; it may raise EndpointError."""
        self._find_out = find_out
        self.endpoints = tuple(endpoints)
        self._notify = notify
        self._model = model
        self._max_outage_s = max_outage_s
        self._probe_timeout_s = probe_timeout_s
        self._clock = clock
        self._trouble = False  # some endpoint may be unavailable
        self._changed = asyncio.Event()
        self._watches: dict[Endpoint, asyncio.Task[None]] = {}
        self._unchecked: set[Endpoint] = set()
        self._wait_notified: set[Endpoint] = set()

    async def check(self) -> None:
        """Check that every endpoint can serve the run: EndpointError where one cannot, or none answers.

        An endpoint that does not answer is left out until it does.
        """
        problem_by_endpoint = await asyncio.gather(*(self._problem(endpoint) for endpoint in self.endpoints))
        problems = [problem for problem in problem_by_endpoint if problem is not None]
        for problem in problems:
            if not isinstance(problem, Unreachable) or len(problems) == len(self.endpoints):
                raise problem
        for endpoint, missing in zip(self.endpoints, problem_by_endpoint, strict=True):
            if missing is not None:
                self._unchecked.add(endpoint)
                self._notify(f"{missing} It is left out until it answers")
                endpoint.health.pause(str(missing))
                self._watch(endpoint)

    async def close(self) -> None:
        """Cancel the tasks that probe paused endpoints."""
        watches = list(self._watches.values())
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    def pick(self, route: Route | None) -> Endpoint:
        """The endpoint of the next call; the route remembers it."""
        if len(self.endpoints) == 1:
            return self.endpoints[0]
        now = self._clock()
        previous = route.endpoint if route is not None else None
        if isinstance(previous, Endpoint) and previous.health.available(now):
            return previous
        free = [endpoint for endpoint in self.endpoints if endpoint.health.available(now)]
        chosen = min(
            free or self.endpoints,
            key=lambda endpoint: (now < endpoint.health.avoid_until, endpoint.in_flight, endpoint.routes),
        )
        chosen.routes += 1
        if route is not None:
            route.endpoint = chosen
        return chosen

    def is_available(self) -> bool:
        """Whether some endpoint can take a call now."""
        if not self._trouble:
            return True
        now = self._clock()
        free = [endpoint.health.available(now) for endpoint in self.endpoints]
        self._trouble = not all(free)
        return any(free)

    async def wait(self) -> None:
        """Return when some endpoint can take a call; OutageError where all have been down for too long."""
        while not self.is_available():
            now = self._clock()
            held = [endpoint.health for endpoint in self.endpoints if not endpoint.health.paused]
            if held:
                first = min(held, key=lambda health: health.held_until)
                left_s = first.held_until - now
                if left_s > max(self._max_outage_s, MAX_RETRY_AFTER_S):
                    raise self._long_wait(left_s)
                left_s += random.uniform(0.0, first.spread_s)
            else:
                left_s = self._down_since() + self._max_outage_s - now
                if left_s <= 0:
                    raise self._outage(now)
            try:
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            except TimeoutError:
                pass  # check again

    def failed(self, endpoint: Endpoint, request: Request, problem: InfraError) -> None:
        """Note that a call failed: put the endpoint on hold if it asked for a wait, else count a failure."""
        if problem.retry_after_s is not None:
            problem.held = True
            self._hold(endpoint, problem, problem.retry_after_s)
        elif problem.kind.startswith(("transport", "http_5")) and not isinstance(problem, _NO_OUTAGE):
            if request.route is not None:
                request.route.endpoint = None  # the next try goes elsewhere, if there is an elsewhere
            connected = not isinstance(problem, NotConnected)
            if endpoint.health.failed(str(problem), request.id, connected=connected):
                self._pause(endpoint)

    def answered(self, endpoint: Endpoint) -> None:
        """Note that a call was answered, even with a refusal."""
        was_paused = endpoint.health.paused
        down_s = endpoint.health.answered()
        if down_s is not None:
            self._notify(f"{endpoint.base_url} is back after {down_s:.0f} s")
        if was_paused:
            self._wake()

    def _hold(self, endpoint: Endpoint, problem: InfraError, seconds: float) -> None:
        self._trouble = True
        endpoint.health.hold(seconds)
        if seconds >= TELL_WAIT_S and endpoint not in self._wait_notified:
            self._wait_notified.add(endpoint)
            self._notify(f"calls wait {seconds:.0f} s, as the server asks: {problem}")

    def _pause(self, endpoint: Endpoint) -> None:
        self._trouble = True
        health = endpoint.health
        if health.pause(health.reason):
            others = any(other.health.available(self._clock()) for other in self.endpoints)
            self._notify(
                f"{endpoint.base_url} is paused, since call after call failed there ({health.reason}); "
                f"{'calls go elsewhere' if others else 'calls wait'} until it answers again"
            )
        self._watch(endpoint)

    def _watch(self, endpoint: Endpoint) -> None:
        self._trouble = True
        if endpoint not in self._watches:
            self._watches[endpoint] = asyncio.create_task(self._watch_until_back(endpoint))

    async def _watch_until_back(self, endpoint: Endpoint) -> None:
        """Probe a paused endpoint now and then until it answers. `close` cancels this task."""
        try:
            while endpoint.health.paused:
                await asyncio.sleep(endpoint.health.next_pause_s())
                if not await endpoint.alive(self._probe_timeout_s):
                    continue
                if endpoint in self._unchecked and not await self._fits(endpoint):
                    continue
                endpoint.health.resume()
                self._wake()
        finally:
            del self._watches[endpoint]

    async def _fits(self, endpoint: Endpoint) -> bool:
        """Whether an endpoint that was unreachable at the start can serve the run; if not, it stays paused."""
        problem = await self._problem(endpoint)
        if problem is None:
            self._unchecked.discard(endpoint)
        elif str(problem) != endpoint.health.reason:
            endpoint.health.reason = str(problem)
            self._notify(f"{problem} It is left out until that changes")
        return problem is None

    async def _problem(self, endpoint: Endpoint) -> EndpointError | None:
        try:
            await endpoint.check(self._model, self._probe_timeout_s)
            if self._find_out is not None:
                await self._find_out(endpoint)
        except EndpointError as problem:
            return problem
        return None

    def _wake(self) -> None:
        self._changed.set()
        self._changed.clear()

    def _down_since(self) -> float:
        """The time at which the last endpoint went down."""
        return max(endpoint.health.down_since or 0.0 for endpoint in self.endpoints)

    def _long_wait(self, seconds: float) -> OutageError:
        urls = ", ".join(endpoint.base_url for endpoint in self.endpoints)
        return OutageError(
            f"{urls}: the server wants no calls for {seconds:,.0f} s. Run the same command again then; "
            f"--max-outage S waits as long"
        )

    def _outage(self, now: float) -> OutageError:
        urls = ", ".join(endpoint.base_url for endpoint in self.endpoints)
        reason = self.endpoints[0].health.reason
        return OutageError(
            f"{urls}: no answer for {now - self._down_since():.0f} s ({reason}). Run the same command again "
            f"when the server is up; --max-outage S waits longer"
        )
