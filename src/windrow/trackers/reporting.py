"""A run sent to trackers: numbers first, then rollouts, each tracker in a thread of its own and with a deadline.

A failure gives a warning that names the tracker, what was not sent, and the command that sends it again.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from windrow.records import encode
from windrow.stats.metrics import AgentEntry, Metrics, measure_run
from windrow.store.manifest import read_manifest
from windrow.store.reader import load
from windrow.trackers.base import Report, Tracker
from windrow.trackers.names import Named, missing
from windrow.util.redaction import Redactor

MAX_ROLLOUTS = 10_000  # what a table of W&B shows
MAX_BYTES = 64 << 20  # of JSON: W&B holds a table in memory
DEADLINE_S = 600.0
SECRETS = ("WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")

Warn = Callable[[str], None]


async def track(
    run: Path,
    trackers: Sequence[Named],
    *,
    upload_rollouts: bool = True,
    metrics: Metrics | None = None,
    warn: Warn,
    deadline_s: float = DEADLINE_S,
) -> None:
    """Send a run to each tracker. Never raises for what a tracker does; `warn` is called instead."""
    redactor = known_secrets()

    def say(message: str) -> None:
        warn(redactor.text(message))

    ready: list[tuple[Named, Tracker]] = []
    for named in trackers:
        if (needed := missing(named)) is not None:
            say(f"{needed} (nothing was sent)")
            continue
        try:
            ready.append((named, named.make()))  # here, where the user's own run is the active one
        except Exception as problem:
            say(_failure(named, "nothing was sent", problem, run))
    if not ready:
        return
    try:
        metrics = metrics or (await asyncio.to_thread(measure_run, run)).metrics
        report = _report(run, metrics)
    except Exception as problem:
        say(f"nothing was sent to {', '.join(named.name for named, _ in ready)}: {problem}")
        return
    for named, tracker in ready:
        sending = _Sending(named, tracker, report, flat(metrics), upload=upload_rollouts, redactor=redactor)
        if not await sending.done(deadline_s):
            say(f"--track {named.name} took more than {deadline_s:g} s and was left; {_again(named, run)}")
        for message in sending.messages:
            say(message)


class _Sending:
    """One tracker's thread. It is a daemon: one that hangs does not keep the command from ending."""

    def __init__(
        self,
        named: Named,
        tracker: Tracker,
        report: Report,
        numbers: Mapping[str, float],
        *,
        upload: bool,
        redactor: Redactor,
    ) -> None:
        self.messages: list[str] = []
        self._named = named
        self._tracker = tracker
        self._report = report
        self._numbers = numbers
        self._upload = upload
        self._redactor = redactor

    async def done(self, deadline_s: float) -> bool:
        """Whether it came to its end in time."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def work() -> None:
            try:
                self._send()
            finally:
                try:
                    loop.call_soon_threadsafe(ended.set)
                except RuntimeError:  # the loop did not wait so long
                    pass

        threading.Thread(target=work, name=f"track-{self._named.name}", daemon=True).start()
        try:
            async with asyncio.timeout(deadline_s):
                await ended.wait()
        except TimeoutError:
            return False
        return True

    def _send(self) -> None:
        if not self._step("nothing was sent", lambda: self._tracker.start(self._report)):
            return
        self._step("the metrics were not sent", lambda: self._tracker.metrics(self._numbers))
        if self._upload:
            self._step("the rollouts were not sent", self._send_rollouts)
        self._step("its run was not closed", self._tracker.finish)

    def _send_rollouts(self) -> None:
        lines = Capped(rollout_lines(self._report.path, self._redactor))
        self._tracker.rollouts(iter(lines))
        if lines.cut:
            self.messages.append(
                f"--track {self._named.name}: the first {lines.given:,} of {self._report.rollouts:,} rollouts were sent "
                f"(at most {MAX_ROLLOUTS:,}, and {MAX_BYTES >> 20} MiB); all are in {self._report.path}"
            )

    def _step(self, lost: str, call: Callable[[], None]) -> bool:
        try:
            call()
        except BaseException as problem:  # it is this thread's own: a tracker that exits ends no run
            self.messages.append(_failure(self._named, lost, problem, self._report.path))
            return False
        return True


class Capped:
    """Texts up to a number and a size; `cut` says whether there were more."""

    def __init__(self, texts: Iterator[str], most: int = MAX_ROLLOUTS, most_bytes: int = MAX_BYTES) -> None:
        self._texts = texts
        self._most = most
        self._most_bytes = most_bytes
        self.given = 0
        self.cut = False

    def __iter__(self) -> Iterator[str]:
        size = 0
        for text in self._texts:
            size += len(text)
            if self.given == self._most or size > self._most_bytes:
                self.cut = True
                return
            self.given += 1
            yield text


def rollout_lines(run: Path, redactor: Redactor) -> Iterator[str]:
    """The final rollouts, graded as they are now, as JSON text."""
    for rollout in load(run):
        yield redactor.line(encode(rollout)).decode()


def flat(metrics: Metrics) -> dict[str, float]:
    """Every number of every agent under `<agent>/<metric>`, the key metrics under `key_metrics/<agent>/<metric>` too."""
    numbers_by_name: dict[str, float] = {}
    for entry in metrics.agents:
        for name, value in _agent_numbers(entry).items():
            numbers_by_name[f"{entry.agent}/{name}"] = value
        for name, number in entry.key_metrics.items():
            if number is not None:
                numbers_by_name[f"key_metrics/{entry.agent}/{name}"] = number
    return numbers_by_name


def _agent_numbers(entry: AgentEntry) -> dict[str, float]:
    metrics = entry.agent_metrics
    numbers_by_name: dict[str, float] = {name: n for name, n in entry.key_metrics.items() if n is not None}
    numbers_by_name["tasks"] = metrics.tasks
    for name, spread in metrics.spread.items():
        for part in ("n", "mean", "std", "min", "median", "max"):
            if (value := getattr(spread, part)) is not None:
                numbers_by_name[f"{part}/{name}"] = value
    for kind in ("status", "stop", "grade", "errors"):
        numbers_by_name |= {f"rate/{kind}/{name}": rate for name, rate in getattr(metrics, kind).rate.items()}
    for env, numbers in metrics.aggregate.items():
        numbers_by_name |= {f"aggregate/{env}/{name}": value for name, value in numbers.items()}
    return numbers_by_name


def _report(run: Path, metrics: Metrics) -> Report:
    return Report(
        name=metrics.run.name,
        path=run,
        config=known_secrets().tree(read_manifest(run).config),
        rollouts=metrics.coverage.rollouts,
    )


def known_secrets() -> Redactor:
    """What trackers are let in with, taken out of whatever is said of them and sent to them."""
    redactor = Redactor()
    for name in SECRETS:
        redactor.add(os.environ.get(name, ""))
    try:
        redactor.add(urlsplit(os.environ.get("MLFLOW_TRACKING_URI", "")).password or "")
    except ValueError:
        pass
    return redactor


def _failure(named: Named, lost: str, problem: BaseException, run: Path) -> str:
    return f"--track {named.name}: {lost}: {type(problem).__name__}: {problem}; {_again(named, run)}"


def _again(named: Named, run: Path) -> str:
    text = named.name if named.target is None else f"{named.name}:{named.target}"
    return f"the run is whole on disk: windrow stats {run} --track {text}"
