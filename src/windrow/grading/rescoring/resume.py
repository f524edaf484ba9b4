"""Which rescore a call goes on with, or begins, and what was judged before it was cut short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from windrow.envs.scoring import AnyScorer
from windrow.errors import UsageError
from windrow.grading.rescoring.generations import decode_grading_head, known_generation
from windrow.records import AttemptId
from windrow.store.manifest import Fingerprint, Manifest, Rescore, next_generation, with_generation
from windrow.store.reader import RunReader
from windrow.store.run_directory import RunDirectory
from windrow.store.segments import segments, whole_sizes
from windrow.util.hash_index import HashIndex


class Start(NamedTuple):
    """What a rescore makes: a new generation, or, `in_place`, later verdicts of the active one."""

    mark: Rescore
    target: Fingerprint
    in_place: bool


def start(
    directory: RunDirectory,
    grading: Fingerprint,
    scorers: Sequence[AnyScorer],
    *,
    where: str | None,
    failed_only: bool,
) -> Start:
    """The rescore that this call goes on with, or a new one; it is marked in the manifest."""
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
    going = manifest.rescore
    if (
        going is not None
        and (going.hash, going.where, going.failed_only, going.code)
        == (grading.hash, where, failed_only, code)
        and not (in_place and active is not None and going.generation != active.generation)
    ):
        return Start(going, known_generation(manifest, going.generation), in_place)
    if failed_only and not same:
        raise UsageError(
            "--failed-only is for the scorers that the run has; leave --scorer out, or judge all rollouts with the new ones"
        )
    target = active if in_place and active is not None else next_generation(manifest, grading)
    mark = Rescore(
        hash=grading.hash,
        generation=target.generation,
        where=where,
        failed_only=failed_only,
        code=code,
        since=whole_sizes(directory.path, segments(directory.path, "scores")),
    )
    _write_mark(directory, manifest, target, mark)
    return Start(mark, target, in_place)


def _write_mark(directory: RunDirectory, manifest: Manifest, target: Fingerprint, mark: Rescore) -> None:
    manifest = with_generation(manifest, target, active=False)
    directory.write_manifest(msgspec.structs.replace(manifest, rescore=mark))


class Done:
    """What a rescore has judged before it was cut short."""

    def __init__(self, reader: RunReader, mark: Rescore) -> None:
        self._index = HashIndex("I")
        for place, head in reader.lines(decode_grading_head, name="scores"):
            if place.offset < mark.since.get(place.segment, 0) or head.generation != mark.generation:
                continue
            alone = len(head.members) == 1 and head.members[0][0] == head.unit
            what: Any = head.members[0] if alone else head.members
            self._index.set((head.scorer, what), int(head.error is None))

    def has(self, scorer: str, what: AttemptId | tuple[AttemptId, ...]) -> bool:
        """Whether this scorer has judged the attempt, or these together."""
        return len(self._index) > 0 and bool(self._index.get((scorer, what)))
