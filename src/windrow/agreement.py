"""Whether a call fits the run that it would continue: the manifest they agree on, or a refusal with the difference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from windrow.config import as_tree
from windrow.errors import UsageError
from windrow.prepare import Prepared
from windrow.records import Json
from windrow.store.directory import (
    Fingerprint,
    Manifest,
    Redo,
    generations_of,
    new_manifest,
    next_generation,
    whole_sizes,
    with_generation,
)
from windrow.store.read import segments
from windrow.version import __version__


def agreed_manifest(prepared: Prepared, before: Manifest | None, *, regrade: bool) -> Manifest:
    """The manifest of this call, if what it would collect is what the directory holds."""
    fresh = new_manifest(
        version=__version__,
        source=prepared.source.name,
        split=prepared.source.split,
        config=prepared.redactor.tree(as_tree(prepared.run)),
        behaviour=prepared.behaviour,
        grading=prepared.grading,
        code=prepared.code,
    )
    if before is None:
        return with_generation(fresh, fresh.grading)
    same_source = prepared.source.joined or before.source == fresh.source  # joined: each task has its own
    if not same_source or before.split != fresh.split:
        raise UsageError(
            f"this run is of source {before.source!r}, split {before.split!r}; the tasks given are of source "
            f"{fresh.source!r}, split {fresh.split!r}. Choose another --out, or set --source and --split"
        )
    if before.behaviour.hash != prepared.behaviour.hash:
        raise UsageError(
            "what shapes the rollouts has changed since this run was begun:\n"
            + _difference(before.behaviour.of, prepared.behaviour.of)
            + "\nChoose another --out for the new settings, or --overwrite to move the old run aside"
        )
    agreed = with_generation(before, _agreed_grading(before, prepared.grading, regrade=regrade))
    return msgspec.structs.replace(
        agreed,
        windrow=fresh.windrow,
        source=fresh.source,
        config=fresh.config,
        code=fresh.code,
        versions=fresh.versions,
    )


def redo_of(path: Path, manifest: Manifest, where: str | None) -> Redo | None:
    """The redo of this call: one that was cut short goes on from where it began."""
    if where is None:
        return None
    if manifest.redo is not None and manifest.redo.where == where:
        return manifest.redo
    return Redo(where, whole_sizes(path, segments(path)))


def changed_code(prepared: Prepared, before: Manifest | None) -> Iterator[str]:
    """A warning for each piece of user code that carries no version and has changed."""
    for name, found in prepared.code.items():
        known = before.code.get(name) if before else None
        if known is not None and known != found:
            yield (
                f"the source of {name} has changed since the last call and it has no `version`; rollouts made "
                f"before and after are kept in one run. Give it a version if its behaviour changed"
            )


def _agreed_grading(manifest: Manifest, now: Fingerprint | None, *, regrade: bool) -> Fingerprint | None:
    """The active generation, if it is graded as now; with `regrade`, the last one that was, or a new one."""
    before = manifest.grading
    if (before and before.hash) == (now and now.hash):
        return before
    if not regrade:
        raise UsageError(
            "only the grading has changed:\n"
            + _difference(before.of if before else {}, now.of if now else {})
            + "\n--regrade adds the new scores to the rollouts that are there"
        )
    if now is None:
        return None
    known = generations_of(manifest)
    again = next((generation for generation in reversed(known) if generation.hash == now.hash), None)
    return again or next_generation(manifest, now)


def _difference(old: Mapping[str, Json], new: Mapping[str, Json]) -> str:
    before, after = dict(_leaves(old)), dict(_leaves(new))
    return "\n".join(
        f"  {key}: {before.get(key, '(not set)')} → {after.get(key, '(not set)')}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )


def _leaves(value: Json, prefix: str = "") -> Iterable[tuple[str, Json]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{prefix}[{number}]")
    else:
        yield prefix, value
