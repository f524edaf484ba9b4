"""Compatibility of a call with the run that it would continue: the manifest that both agree on, or a refusal with the
difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from windrow.collecting.ranks import without_rank
from windrow.collecting.resolve import ResolvedRun
from windrow.config import RunConfig, as_tree
from windrow.errors import UsageError
from windrow.records import Json
from windrow.store.manifest import (
    Fingerprint,
    Manifest,
    difference,
    generations_of,
    new_manifest,
    next_generation,
    with_generation,
)
from windrow.store.rank_progress import (
    Ranks,
    RankShare,
    Redo,
    collecting,
    counts_of,
    ranks_with,
    share_of,
    with_share,
)
from windrow.store.run_directory import RunDirectory
from windrow.store.segments import segments, whole_sizes
from windrow.tasks.selection import refuse_other_draw, with_draw
from windrow.tasks.sharding import plan_digest
from windrow.util.redaction import Redactor
from windrow.version import __version__


def check_compatible(
    resolved: ResolvedRun, directory: RunDirectory, *, regrade: bool, redo: str | None
) -> None:
    """Write the manifest of this call, if it would collect the same run as the directory holds."""
    before = directory.manifest
    manifest = agreed_manifest(resolved, before, regrade=regrade)
    manifest = msgspec.structs.replace(manifest, ranks=_agreed_ranks(resolved, before))
    if directory.locks is not None:
        _refuse_other_terms(before, manifest, directory.locks.others_at_work)
    if redo is not None and before is not None:
        directory.open_rollouts()  # what the redo counts from is durable before the manifest says so
    under_way = _redo_of(directory.path, redo_under_way(resolved, manifest), redo)
    if resolved.rank is not None:
        manifest = with_rank(manifest, resolved.rank.number, RankShare(redo=under_way))
        under_way = None
    manifest = msgspec.structs.replace(manifest, redo=under_way)
    if manifest != before:
        directory.write_manifest(manifest)


def agreed_manifest(resolved: ResolvedRun, before: Manifest | None, *, regrade: bool) -> Manifest:
    """Return the manifest of this call, if it would collect the same run as the directory holds."""
    fresh = new_manifest(
        version=__version__,
        source=resolved.source.name,
        split=resolved.source.split,
        config=resolved.redactor.tree(_recorded(resolved.loaded.run)),
        behaviour=_without_secrets(resolved.behaviour, resolved.redactor),
        grading=resolved.grading,
        code=resolved.code,
        draws=with_draw((), resolved.draw),
    )
    if before is None:
        return with_generation(fresh, fresh.grading)
    same_source = resolved.source.joined or before.source == fresh.source  # joined: each task has its own
    if not same_source or before.split != fresh.split:
        raise UsageError(
            f"this run is of source {before.source!r}, split {before.split!r}; the tasks given are of source "
            f"{fresh.source!r}, split {fresh.split!r}. Choose another --out, or set --source and --split"
        )
    if before.behaviour.hash != resolved.behaviour.hash:
        raise UsageError(
            "what shapes the rollouts has changed since this run was begun:\n"
            + difference(before.behaviour.of, fresh.behaviour.of)
            + "\nChoose another --out for the new settings, or --overwrite to move the old run aside"
        )
    refuse_other_draw(before.draws, resolved.draw)
    agreed = with_generation(before, _agreed_grading(before, resolved.grading, regrade=regrade))
    return msgspec.structs.replace(
        agreed,
        windrow=fresh.windrow,
        source=fresh.source,
        config=fresh.config,
        code=fresh.code,
        versions=fresh.versions,
        draws=with_draw(before.draws, resolved.draw),
    )


def _recorded(run: RunConfig) -> dict[str, Json]:
    """What run.json keeps of the configuration. Whether the run is shared is said by the modes of its files alone."""
    tree = as_tree(without_rank(run))
    del tree["shared"]
    return tree


def _without_secrets(fingerprint: Fingerprint, redactor: Redactor) -> Fingerprint:
    """What run.json says of it. The hash is of the whole: the command of a tool server may hold a secret."""
    return msgspec.structs.replace(fingerprint, of=redactor.tree(fingerprint.of))


def redo_under_way(resolved: ResolvedRun, manifest: Manifest) -> Redo | None:
    """Return the unfinished redo; each rank has its own."""
    if resolved.rank is None:
        return manifest.redo
    return share_of(collecting(manifest.ranks), resolved.rank.number).redo


def with_rank(manifest: Manifest, rank: int, share: RankShare, planned: int | None = None) -> Manifest:
    """Return the manifest with a rank's share of the planned slots."""
    ranks = collecting(manifest.ranks)
    if ranks is None:
        return manifest
    ranks = with_share(ranks, rank, share)
    counts = manifest.counts if planned is None else counts_of(ranks, planned)
    return msgspec.structs.replace(manifest, ranks=[ranks], counts=counts)


def refuse_sharing(resolved: ResolvedRun, *, overwrite: bool) -> None:
    """Refuse options that ranks cannot use in one directory, or in one directory each."""
    if resolved.rank is None:
        return
    if "{rank}" in (resolved.run.out or ""):
        if resolved.draw is not None and resolved.draw.at is not None and resolved.run.blocklist.at is None:
            raise UsageError(
                "--blocklist: each rank would look at a time of its own, and with a directory each they cannot agree on "
                "one; give all the same --blocklist-at"
            )
        return
    for flag, refused, why in (
        ("--overwrite", overwrite, "each rank would move aside what the others have collected"),
        ("--no-lock", not resolved.run.lock, "ranks need locks to share a directory"),
    ):
        if refused:
            raise UsageError(
                f"{flag}: {why}; give each a directory of its own, such as --out runs/x.{{rank}}"
            )


def _agreed_ranks(resolved: ResolvedRun, before: Manifest | None) -> list[Ranks]:
    """Return the ranks of this call, with the state that the run has recorded for them."""
    if resolved.rank is None:
        return []
    plan = plan_digest(resolved.tasks, samples=resolved.loaded.run.samples, pass_=resolved.loaded.run.pass_)
    return [ranks_with(collecting(before.ranks) if before else None, resolved.rank, plan)]


def _refuse_other_terms(
    before: Manifest | None, manifest: Manifest, at_work: Callable[[], list[int]]
) -> None:
    """Refuse other terms while ranks are collecting: they rely on the agreed ones until they are done."""
    was, now = collecting(before.ranks) if before else None, collecting(manifest.ranks)
    if before is None or was is None or now is None:
        return
    changed = [
        what
        for what, is_other in (
            ("the number of ranks", was.world_size != now.world_size),
            ("their weights", was.weights != now.weights),
            ("the tasks, or the samples of each", was.plan != now.plan),
            ("the grading", before.grading != manifest.grading),
        )
        if is_other
    ]
    if changed and (others := at_work()):
        who = ", ".join(map(str, others))
        raise UsageError(
            f"rank {who} is collecting here, and this call differs from it in {changed[0]}; give all ranks the same "
            f"command, or wait until the others are done"
        )


def _redo_of(path: Path, before: Redo | None, where: str | None) -> Redo | None:
    """Return the redo of this call: an interrupted one continues from its beginning mark."""
    if where is None:
        return None
    if before is not None and before.where == where:
        return before
    return Redo(where, whole_sizes(path, segments(path)))


def changed_code(resolved: ResolvedRun, before: Manifest | None) -> Iterator[str]:
    """Yield a warning for each piece of user code that has no version and has changed."""
    for name, source_now in resolved.code.items():
        source_before = before.code.get(name) if before else None
        if source_before is not None and source_before != source_now:
            yield (
                f"the source of {name} has changed since the last call and it has no `version`; rollouts made "
                f"before and after are kept in one run. Give it a version if its behaviour changed"
            )


def _agreed_grading(manifest: Manifest, now: Fingerprint | None, *, regrade: bool) -> Fingerprint | None:
    """Return the active generation if the grading is unchanged; with `regrade`, the last equal generation or a new
    one.
    """
    before = manifest.grading
    if (before and before.hash) == (now and now.hash):
        return before
    if not regrade:
        raise UsageError(
            "only the grading has changed:\n"
            + difference(before.of if before else {}, now.of if now else {})
            + "\n--regrade adds the new scores to the rollouts that are there"
        )
    if now is None:
        return None
    generations = generations_of(manifest)
    again = next((generation for generation in reversed(generations) if generation.hash == now.hash), None)
    return again or next_generation(manifest, now)
