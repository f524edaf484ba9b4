"""The generations of a run: the ways in which it was graded, side by side; one of them is active."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from windrow.errors import UsageError
from windrow.records import ErrorRecord
from windrow.stats.metrics import measure_run, write_metrics
from windrow.store.manifest import Fingerprint, Manifest, generations_of, with_generation
from windrow.store.reader import RunReader
from windrow.store.run_directory import RunDirectory
from windrow.store.trust import RunTrust


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a run was graded."""

    number: int
    active: bool
    scorers: tuple[str, ...]
    gradings: int  # in scores.jsonl; verdicts given before the commit stand in the rollouts themselves
    failed: int


def use_generation(run: str | Path, number: int, *, trust_run: bool = False) -> Fingerprint:
    """Make a generation the active one: from now on its verdicts count."""
    RunReader(run)  # refuses a directory that is not a run
    directory = RunDirectory(Path(run))
    try:
        assert directory.manifest is not None
        by_number = {generation.generation: generation for generation in generations_of(directory.manifest)}
        if number not in by_number:
            have = ", ".join(map(str, sorted(by_number))) or "none"
            raise UsageError(f"{run} has no generation {number} (it has {have})")
        trust = RunTrust(directory.path, directory.manifest, given=trust_run)
        directory.write_manifest(with_generation(directory.manifest, by_number[number]))
        write_metrics(run, measure_run(run, may_import=trust.may_import), directory.disk)
        return by_number[number]
    finally:
        directory.close()


def generations(run: str | Path) -> list[Generation]:
    """How a run was graded, by number."""
    reader = RunReader(run)
    counts: Counter[int] = Counter()
    failed: Counter[int] = Counter()
    for _, head in reader.lines(decode_grading_head, name="scores"):
        counts[head.generation] += 1
        failed[head.generation] += head.error is not None
    active = reader.manifest.grading
    return [
        Generation(
            number=generation.generation,
            active=active is not None and generation.generation == active.generation,
            scorers=tuple(entry["name"] for entry in generation.of.get("scorers") or ()),
            gradings=counts[generation.generation],
            failed=failed[generation.generation],
        )
        for generation in generations_of(reader.manifest)
    ]


def generation_numbered(manifest: Manifest, number: int) -> Fingerprint:
    return next(generation for generation in generations_of(manifest) if generation.generation == number)


class _GradingHead(msgspec.Struct, gc=False):
    unit: str
    members: tuple[tuple[str, int], ...]
    scorer: str
    generation: int
    error: ErrorRecord | None = None


decode_grading_head = msgspec.json.Decoder(_GradingHead).decode
