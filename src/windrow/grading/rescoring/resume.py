"""Which rescore a call goes on with, or begins, and what was judged before it was cut short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from windrow.envs.scoring import AnyScorer
from windrow.errors import UsageError
from windrow.grading.rescoring.generations import decode_grading_head, generation_numbered
from windrow.records import AttemptId
from windrow.store.manifest import Fingerprint, Manifest, Rescore, next_generation, with_generation
from windrow.store.reader import RunReader
from windrow.store.run_directory import RunDirectory
from windrow.store.segments import segments, whole_sizes
from windrow.util.hash_index import HashIndex


class RescoreTarget(NamedTuple):
    """What a rescore makes: a new generation, or, if `in_place`, later verdicts of the active one."""

    mark: Rescore
    generation: Fingerprint
    in_place: bool


def begin_or_resume(
    directory: RunDirectory,
    grading: Fingerprint,
    scorers: Sequence[AnyScorer],
    *,
    where: str | None,
    failed_only: bool,
) -> RescoreTarget:
    """The rescore that this call goes on with, or a new one, which is marked in the manifest."""
    manifest = directory.manifest
    assert manifest is not None
    code = {
        f"scorer {scorer.name}": str(source)
        for scorer in scorers
        if getattr(scorer, "version", None) is None and (source := getattr(scorer, "source", None))
    }
    active = manifest.grading
    same = active is not None and active.hash == grading.hash
    in_place = same and (where is not None or failed_only)
    unfinished = manifest.rescore
    if (
        unfinished is not None
        and (unfinished.hash, unfinished.where, unfinished.failed_only, unfinished.code)
        == (grading.hash, where, failed_only, code)
        and not (in_place and active is not None and unfinished.generation != active.generation)
    ):
        return RescoreTarget(unfinished, generation_numbered(manifest, unfinished.generation), in_place)
    if failed_only and not same:
        raise UsageError(
            "--failed-only is for the scorers that the run has; leave --scorer out, or judge all rollouts with the new ones"
        )
    generation = active if in_place and active is not None else next_generation(manifest, grading)
    mark = Rescore(
        hash=grading.hash,
        generation=generation.generation,
        where=where,
        failed_only=failed_only,
        code=code,
        since=whole_sizes(directory.path, segments(directory.path, "scores")),
    )
    _write_mark(directory, manifest, generation, mark)
    return RescoreTarget(mark, generation, in_place)


def _write_mark(directory: RunDirectory, manifest: Manifest, generation: Fingerprint, mark: Rescore) -> None:
    manifest = with_generation(manifest, generation, active=False)
    directory.write_manifest(msgspec.structs.replace(manifest, rescore=mark))


class JudgedBefore:
    """What a rescore had judged before it was cut short."""

    def __init__(self, reader: RunReader, mark: Rescore) -> None:
        self._index = HashIndex("I")
        for place, head in reader.lines(decode_grading_head, name="scores"):
            if place.offset < mark.since.get(place.segment, 0) or head.generation != mark.generation:
                continue
            alone = len(head.members) == 1 and head.members[0][0] == head.unit
            subject: Any = head.members[0] if alone else head.members
            self._index.set((head.scorer, subject), int(head.error is None))

    def has(self, scorer: str, subject: AttemptId | tuple[AttemptId, ...]) -> bool:
        """Whether this scorer has judged the attempt, or these attempts together."""
        return len(self._index) > 0 and bool(self._index.get((scorer, subject)))
