"""The manifest of a merged run: of several, what they agree on; a refusal with the difference where they cannot.

What is joined of two is joined of three in any order: least, greatest and union, never first or last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from windrow.errors import UsageError
from windrow.identity import canonical
from windrow.records import Json
from windrow.store.manifest import Fingerprint, Manifest, difference, generations_of
from windrow.store.rank_progress import Ranks
from windrow.tasks.sampling import Draw
from windrow.version import __version__

NOT_OF_THE_WHOLE = ("out", "rank", "world_size", "rank_weights")  # of a call's part
GREATEST = ("samples", "pass")  # of what the parts differ in, the most
ALONE = Ranks([1.0], [0])  # a run that shares its tasks with no other

Named = tuple[Path, Manifest]


def joined(runs: Sequence[Named]) -> Manifest:
    """Raises UsageError for runs that are not parts of one."""
    first, rest = runs[0], runs[1:]
    for other in rest:
        check_parts(first, other)
    generations = _generations(runs)
    active = max((manifest.grading.generation for _, manifest in runs if manifest.grading), default=0)
    manifests = [manifest for _, manifest in runs]
    return Manifest(
        windrow=__version__,
        created_at=min(manifest.created_at for manifest in manifests),
        source=min(manifest.source for manifest in manifests),
        split=first[1].split,
        config=_config(manifests),
        behaviour=_least(manifest.behaviour for manifest in manifests),
        grading=generations.get(active),
        generations=[generations[number] for number in sorted(generations)],
        code=_each([manifest.code for manifest in manifests]),
        versions=_each([manifest.versions for manifest in manifests]),
        ranks=_ranks(runs),
        draws=_draws(manifests),
    )


def missing_ranks(manifest: Manifest) -> list[tuple[int, int]]:
    """The ranks that are not in a merged run, each with how many there are; none if their tasks were all planned by others."""
    if any(not ranks.missing for ranks in manifest.ranks):
        return []
    return [(rank, len(ranks.weights)) for ranks in manifest.ranks for rank in ranks.missing]


def notes(runs: Sequence[Named], whole: Manifest) -> Iterable[str]:
    """What a user should know of how the parts differ."""
    active = {manifest.grading.generation if manifest.grading else 0 for _, manifest in runs}
    if len(active) > 1 and whole.grading is not None:
        yield (
            f"the runs are graded by different generations ({', '.join(map(str, sorted(active)))}; 0 is none): the merged "
            f"run is graded by generation {whole.grading.generation}, and what lacks its verdicts is ungraded until "
            f"windrow rescore --failed-only; windrow rescore --use N makes another the active one"
        )
    for name in sorted({name for _, manifest in runs for name in manifest.code}):
        if len({manifest.code[name] for _, manifest in runs if name in manifest.code}) > 1:
            yield f"the source of {name} was not the same in all runs, and it has no `version`"
    chosen = {draw.pass_: draw.blocked for draw in whole.draws}
    for number in sorted(chosen):
        drawn = (draw for _, manifest in runs for draw in manifest.draws if draw.pass_ == number)
        if any(draw.blocked != chosen[number] for draw in drawn):
            yield (
                f"the parts of pass {number} left other blocked domains out, so that tasks may be in none of them or in "
                f"several; give ranks the same --blocklist-at"
            )
    if len({ranks.plan for _, manifest in runs for ranks in manifest.ranks if ranks.plan}) > 1:
        yield (
            "the ranks had different tasks, samples or passes to share, so that some may be in none of the runs: the same "
            "command for each of them does the rest"
        )
    if whole.counts.get("pending"):
        for path, manifest in runs:
            for rank, share in sorted(_last_said(manifest)):
                yield f"{path}: rank {rank} had {share:,} left when it last said so; its command again does them"
    for path, manifest in runs:
        if manifest.rescore is not None:
            yield (
                f"{path}: a rescore was under way; in the merged run, begin it again. Judges are not asked again what "
                f"they have answered"
            )
        shares = (share for ranks in manifest.ranks for share in ranks.shares.values())
        for redo in {
            redo.where for redo in (manifest.redo, *(share.redo for share in shares)) if redo is not None
        }:
            yield f"{path}: a --redo was under way ({redo}); in the merged run, begin it again"


def _last_said(manifest: Manifest) -> Iterable[tuple[int, int]]:
    """The ranks that have something left to run, as far as their run knows, each with how much."""
    for ranks in manifest.ranks:
        for rank, share in ranks.shares.items():
            if left := share.counts.get("pending"):
                yield int(rank), left


def check_parts(one: Named, other: Named) -> None:
    """Raises UsageError for two runs that are not parts of one."""
    (path, manifest), (path_, manifest_) = one, other
    if manifest.behaviour.hash != manifest_.behaviour.hash:
        raise UsageError(
            f"{path} and {path_} are not parts of one run: what shapes the rollouts differs:\n"
            + difference(manifest.behaviour.of, manifest_.behaviour.of)
        )
    several = manifest.config.get("datasets") and manifest_.config.get("datasets")  # each task has its own
    if manifest.split != manifest_.split or (manifest.source != manifest_.source and not several):
        raise UsageError(
            f"{path} and {path_} are not parts of one run: the one is of source {manifest.source!r}, split "
            f"{manifest.split!r}, the other of source {manifest_.source!r}, split {manifest_.split!r}"
        )


def _generations(runs: Sequence[Named]) -> dict[int, Fingerprint]:
    """All of them by number. Verdicts are told apart by it, so one number cannot stand for two ways of grading."""
    found: dict[int, tuple[Path, Fingerprint]] = {}
    for path, manifest in runs:
        for known in generations_of(manifest):
            first, before = found.setdefault(known.generation, (path, known))
            if before.hash != known.hash:
                raise UsageError(
                    f"generation {known.generation} of gradings is not the same in {first} and {path}:\n"
                    + difference(before.of, known.of)
                    + "\nCollect or rescore the parts in the same steps, or merge them before they are graded anew"
                )
            found[known.generation] = (first, _least((before, known)))
    return {number: known for number, (_, known) in found.items()}


def _config(manifests: Sequence[Manifest]) -> dict[str, Json]:
    """That of a run which is graded as the merged one is; with the most samples of any, and the last pass."""
    whole = [
        (-(manifest.grading.generation if manifest.grading else 0), _of_the_whole(manifest.config))
        for manifest in manifests
    ]
    chosen: dict[str, Json] = min(whole, key=lambda found: (found[0], canonical(found[1])))[1]
    for key in GREATEST:
        if found := [manifest.config[key] for manifest in manifests if key in manifest.config]:
            chosen[key] = max(found)
    return chosen


def _of_the_whole(config: Mapping[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in config.items() if key not in (*NOT_OF_THE_WHOLE, *GREATEST)}


def _ranks(runs: Sequence[Named]) -> list[Ranks]:
    """Which ranks are there, by how they shared the tasks."""
    present: dict[tuple[float, ...], set[int]] = {}
    for _, manifest in runs:
        for ranks in manifest.ranks or [ALONE]:
            present.setdefault(tuple(ranks.weights), set()).update(ranks.present)
    found = [Ranks(list(weights), sorted(present[weights])) for weights in sorted(present)]
    return [] if found == [ALONE] else found


def _least(fingerprints: Iterable[Fingerprint]) -> Fingerprint:
    return min(fingerprints, key=lambda known: canonical(msgspec.to_builtins(known)))


def _draws(manifests: Sequence[Manifest]) -> list[Draw]:
    """How the tasks of each pass were chosen; of several ways one, whatever the order."""
    found: dict[int, Draw] = {}
    for draw in sorted(
        (draw for manifest in manifests for draw in manifest.draws),
        key=lambda draw: canonical(msgspec.to_builtins(draw)),
    ):
        found.setdefault(draw.pass_, draw)
    return [found[number] for number in sorted(found)]


def _each(found: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Of every name that any has, the greatest of its values."""
    return {
        name: max(values[name] for values in found if name in values)
        for name in sorted({name for values in found for name in values})
    }
