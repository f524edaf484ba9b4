"""How a rescore ends: a whole generation becomes the active one, and the metrics are made anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from windrow.engine.control import Control
from windrow.errors import WindrowError
from windrow.grading.rescoring.opening import OpenRescore
from windrow.grading.rescoring.progress import RescoreProgress
from windrow.stats.metrics import measure_run, write_metrics
from windrow.store.manifest import generations_of, with_generation

Warn = Callable[[str], None]


class Rescored(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended. `failed` gradings could not be made, and the same call tries them again."""

    generation: int
    chosen: int  # rollouts that were to be judged, also by calls that this one went on with
    judged: int
    failed: int
    example: str  # why the first of them failed
    short: int  # groups that were left out: they have too few samples to be judged together
    whole: bool  # every rollout of the run has its verdicts
    active: bool


async def finish(
    opened: OpenRescore, control: Control, progress: RescoreProgress, *, activate: bool, warn: Warn
) -> Rescored:
    """Make a whole generation the active one, write metrics.json if it is active, then write that the rescore is finished."""
    mark, generation = opened.mark, opened.generation
    manifest = opened.directory.manifest
    assert manifest is not None
    finished = not control.stopping and not progress.failed
    whole = finished and mark.where is None
    active = manifest.grading == generation or (activate and whole)
    if active:
        manifest = with_generation(manifest, generation)
    elif finished and not progress.chosen:  # the generation is empty
        others = [other for other in generations_of(manifest) if other != generation]
        manifest = msgspec.structs.replace(manifest, generations=others)
    if active:
        opened.directory.write_manifest(msgspec.structs.replace(manifest, rescore=mark))
        if not control.stopping:
            await _write_metrics(opened, warn)
    # Last: after a kill before this, the same call finds what was judged, and judges none of it again.
    opened.directory.write_manifest(msgspec.structs.replace(manifest, rescore=None if finished else mark))
    return Rescored(
        generation=generation.generation,
        chosen=progress.chosen,
        judged=progress.judged,
        failed=progress.failed,
        short=progress.short,
        example=opened.redactor.text(progress.example),
        whole=whole,
        active=active,
    )


async def _write_metrics(opened: OpenRescore, warn: Warn) -> None:
    """The verdicts are safe by now, so a failure here is only a warning."""
    directory, may_import = opened.directory, opened.trust.may_import
    try:
        measured = await asyncio.to_thread(measure_run, directory.path, may_import=may_import, warn=warn)
        await asyncio.to_thread(write_metrics, directory.path, measured, directory.disk)
    except (WindrowError, OSError) as problem:
        warn(f"no metrics.json: {problem}")
