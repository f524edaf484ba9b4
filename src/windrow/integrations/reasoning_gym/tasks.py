"""`reasoning-gym`: its data sets as tasks, one question and one answer each, and its own verifiers as the scorer.

`reasoning-gym:chain_sum?size=50&seed=7&min_terms=2` is a source of rows. A row holds all that its verifier needs, so
that a rollout can be judged again from its record alone. The package runs in processes of its own (see
`worker`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from windrow.config import ScorerConfig, nearest
from windrow.envs import Episode, ScoreContext
from windrow.envs.base import Observation
from windrow.envs.problem import Problem
from windrow.envs.scoring import Verdict
from windrow.errors import ScorerError, UsageError
from windrow.grading.base import BaseScorer
from windrow.grading.verdict_processes import Processes, decoded
from windrow.integrations.addresses import Address, parse_address
from windrow.records import Json, RecordedScore, Task
from windrow.registry import extra_needed
from windrow.tasks.spool import SpooledRows
from windrow.util.confinement import Confinement
from windrow.util.forked_calls import ForkServer, plain_environment

NAME = "reasoning-gym"
SIZE, SEED, SYSTEM = 100, 0, "default"
CPU_S = 5
_OWN = ("size", "seed", "system")
_WORKER = "windrow.integrations.reasoning_gym.worker"
MEMORY_BYTES = 2 * 2**30  # of a process that judges


class ReasoningGym(Problem):
    """One question, one answer; the row's `system` stands before its `prompt`."""

    name = NAME
    version = 1

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        super().check_row(row)
        _check_entry(row)
        if not isinstance(row.get("system") or "", str):
            raise ValueError("'system' must be a text")

    @classmethod
    def scorers(cls, settings: Mapping[str, Json]) -> Sequence[ScorerConfig]:
        return [ScorerConfig(name=NAME)]

    async def reset(self, task: Task) -> Observation:
        first = await super().reset(task)
        if self.ctx.prompt is not None or not task.get("system"):
            return first
        return Observation([{"role": "system", "content": task["system"]}, *first.messages])


class Verifier(BaseScorer):
    """The data set's own `score_answer`, with the partial credit that it gives; NAME.format: the answer was marked."""

    version = 1

    def __init__(self, name: str, weight: float, settings: Mapping[str, Json]) -> None:
        super().__init__(name, weight, settings)
        settings_known = ("cpu_s", "format_weight")
        for key, value in settings.items():
            if key not in settings_known:
                raise ValueError(
                    f"it has no setting {key!r}{nearest(key, settings_known)} (known: {', '.join(settings_known)})"
                )
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{key} must be a number, found {value!r}")
        self._cpu_s = int(settings.get("cpu_s", CPU_S))
        if self._cpu_s < 1:
            raise ValueError(f"cpu_s must be at least 1 second, found {settings['cpu_s']!r}")
        self._format_weight = float(settings.get("format_weight", 0.0))
        _check_installed(f"scorer {name!r}")

    async def judge(self, episode: Episode, ctx: ScoreContext) -> Verdict:
        task = episode.task
        try:
            _check_entry(task.data or {})
        except ValueError as problem:
            raise ScorerError(f"scorer {self.name!r}: {problem}", retryable=False) from None
        said = await _verifiers.ask(
            {
                "dataset": task["dataset"],
                "config": task.get("config") or {},
                "question": task.get("prompt"),
                "answer": task.get("answer"),
                "metadata": task["metadata"],
                "types": task.get("types") or {},
                "reply": episode.reply,
            },
            cpu_s=self._cpu_s + 1,
            warm="" if task.get("config") else task["dataset"],
        )
        if said is None:
            return self._scores(0.0, False, {"cut": f"more than {self._cpu_s} s of processor time"})
        verifier_answer = decoded(said, _VerifierAnswer, f"scorer {self.name!r}")
        if verifier_answer.error is not None:
            raise ScorerError(
                f"scorer {self.name!r}: {task['dataset']} could not judge the answer: {verifier_answer.error}",
                retryable=False,
            )
        evidence = {
            "answer": verifier_answer.said,
            **({"raised": verifier_answer.raised} if verifier_answer.raised else {}),
        }
        return self._scores(verifier_answer.value, verifier_answer.formed, evidence)

    def _scores(self, value: float, formed: bool, evidence: Json) -> Verdict:
        return Verdict(
            {
                self.name: RecordedScore(
                    value=value, weight=self.weight, scorer=self.name, evidence=evidence
                ),
                f"{self.name}.format": RecordedScore(
                    value=float(formed), weight=self._format_weight, scorer=self.name
                ),
            },
            {},
        )


class _VerifierAnswer(msgspec.Struct, frozen=True):
    value: float = 0.0
    formed: bool = False
    said: str | None = None
    raised: str | None = None  # what the verifier raised on this answer
    error: str | None = None


def _check_entry(row: Mapping[str, Json]) -> None:
    """Raise ValueError where the row lacks what a verifier needs."""
    if not isinstance(row.get("dataset"), str) or not isinstance(row.get("metadata"), dict):
        raise ValueError("a row of reasoning-gym has a 'dataset' (its name) and its 'metadata' (an object)")
    for field in ("config", "types"):
        if not isinstance(row.get(field) or {}, dict):
            raise ValueError(f"{field!r} must be an object")


_verifiers = Processes(
    ForkServer(_WORKER, confinement=Confinement(memory_bytes=MEMORY_BYTES)),
    who=f"scorer {NAME!r}",
    at_once=min(4, os.cpu_count() or 1),
)


# -- the source of rows


def open_tasks(path: str) -> tuple[SpooledRows, str]:
    """Return the rows of `reasoning-gym:NAME,…?size=…&seed=…&PARAMETER=…`, and the name of the data set."""
    address = parse_address(path)
    _check_installed(path)
    rows = SpooledRows(enumerate(_made(address, _order(address))), path, label="index")
    return rows, address.source(without=["size"])


def _order(address: Address) -> dict[str, Json]:
    """Return the request to the process. `NAME.PARAMETER` applies to one data set, a bare parameter to all."""
    names = address.name.split(",")
    common: dict[str, Json] = {}
    own: dict[str, dict[str, Json]] = {}
    for key, value in address.parameters.items():
        name, dot, parameter = key.partition(".")
        if dot:
            if name not in names:
                raise UsageError(f"{address}: {key} is of {name!r}, which is not among its data sets")
            own.setdefault(name, {})[parameter] = value
        elif key not in _OWN:
            common[key] = value
    system = address.parameters.get("system", SYSTEM)
    return {
        "names": names,
        "size": address.whole("size", SIZE, least=1),
        "seed": address.whole("seed", SEED, least=0),
        "system": None if system in (None, "none") else system,
        "common": common,
        "own": own,
    }


def _made(address: Address, order: Mapping[str, Json]) -> Iterator[Mapping[str, Any] | ValueError]:
    """Yield the rows that the process makes for the order."""
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=plain_environment(),
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.close()
            for line in process.stdout:
                yield _row(address, msgspec.json.decode(line))
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        if code:
            stderr.seek(0)
            last = stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise UsageError(f"{address}: reasoning-gym ended with {code}: {last}")


def _row(address: Address, answer: Mapping[str, Any]) -> Mapping[str, Any] | ValueError:
    if "row" in answer:
        row: Mapping[str, Any] = answer["row"]
        return row
    if "bad" in answer:
        return ValueError(answer["bad"])
    if "refused" in answer:
        raise UsageError(f"{address.package}:{answer['refused']} refuses these parameters: {answer['why']}")
    of = f"{address.package}:{answer['of']}" if "of" in answer else address.package
    what, unknown, names = answer["what"], str(answer["unknown"]), answer["known"]
    raise UsageError(f"{of} has no {what} {unknown!r}{nearest(unknown, names)} (known: {', '.join(names)})")


def _check_installed(what: str) -> None:
    if find_spec("reasoning_gym") is None:
        raise extra_needed(NAME, what)
