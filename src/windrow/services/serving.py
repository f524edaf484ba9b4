"""The services of one run: started before its first rollout, watched meanwhile, stopped at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from windrow.engine.control import Control
from windrow.errors import ServiceError, WindrowError, first_of
from windrow.services.plan import Service
from windrow.services.process import ServiceProcess
from windrow.util.cancellation import is_cancelled
from windrow.util.redaction import Redactor

OnWaiting = Callable[[Sequence[str]], Awaitable[None]]


@asynccontextmanager
async def serving(
    services: Sequence[Service], logs: Path, *, control: Control, redactor: Redactor, on_waiting: OnWaiting
) -> AsyncIterator[None]:
    """Inside, every service answers, or `control` has stopped the run first. Outside, none of them is left.

    A service that dies meanwhile cancels the run, and its death is raised. `on_waiting` gets the names that are not up yet.
    """
    serve = _Serving(services, logs, control, redactor, on_waiting)
    try:
        await serve.start_all()
        yield
    except WindrowError as problem:
        raise serve.death or problem from None
    finally:
        await serve.end()
    if serve.death is not None:
        raise serve.death


class _Serving:
    """The processes of all services of a run, each watched by a task of its own."""

    def __init__(
        self,
        services: Sequence[Service],
        logs: Path,
        control: Control,
        redactor: Redactor,
        on_waiting: OnWaiting,
    ) -> None:
        self.death: ServiceError | None = None
        self._control = control
        self._on_waiting = on_waiting
        self._processes = [
            ServiceProcess(service, service.log or logs / f"{service.name}.log", redactor)
            for service in services
        ]
        self._ready = {service.name: asyncio.Event() for service in services}
        self._watching: list[asyncio.Task[None]] = []

    async def start_all(self) -> None:
        """Start each once those that it needs are up; return when all are, or when the run is stopped."""
        starting = asyncio.ensure_future(self._start_all())
        self._control.listen(partial(_cancel, starting))
        if self._control.stopping:
            starting.cancel()
        try:
            await starting
        except asyncio.CancelledError as problem:
            if is_cancelled(problem):
                raise

    async def end(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*(process.stop() for process in self._processes))

    async def _start_all(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for process in self._processes:
                    group.create_task(self._start_one(process))
        except* WindrowError as problems:
            raise first_of(problems) from None

    async def _start_one(self, process: ServiceProcess) -> None:
        for needed in process.service.needs:
            await self._ready[needed].wait()
        await process.start()
        await self._report_waiting()
        await process.wait_until_ready()
        self._watching.append(asyncio.create_task(self._watch(process)))
        self._ready[process.service.name].set()
        await self._report_waiting()

    async def _report_waiting(self) -> None:
        await self._on_waiting([name for name, ready in self._ready.items() if not ready.is_set()])

    async def _watch(self, process: ServiceProcess) -> None:
        await process.gone()
        if self.death is None:
            self.death = ServiceError(
                f"{process.died()}\nWhat is recorded is safe, and the same command goes on from there"
            )
            self._control.cancel(f"service {process.service.name!r} died ({process.ended})")


def _cancel(task: asyncio.Future[None]) -> None:
    task.cancel()
