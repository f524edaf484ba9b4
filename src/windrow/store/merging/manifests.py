"""The manifest of a merged run, joined from those of the inputs. Inputs that are not parts of one run are refused.

Values are joined by least, greatest and union, never by first or last, so that the order of the inputs does not matter.
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

NOT_OF_THE_WHOLE = ("out", "rank", "world_size", "rank_weights")  # settings of one rank only
GREATEST = ("samples", "pass")  # where the parts differ, the greatest value counts
ALONE = Ranks([1.0], [0])  # a run that shares its tasks with no other

Named = tuple[Path, Manifest]


def joined(runs: Sequence[Named]) -> Manifest:
    """The joined manifest. Raises UsageError for runs that are not parts of one run."""
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
    """Messages for the user about how the parts differ."""
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
            for rank, share in sorted(_pending_by_rank(manifest)):
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


def _pending_by_rank(manifest: Manifest) -> Iterable[tuple[int, int]]:
    """The ranks with slots left to run, by their last report, each with how many."""
    for ranks in manifest.ranks:
        for rank, share in ranks.shares.items():
            if left := share.counts.get("pending"):
                yield int(rank), left


def check_parts(first: Named, other: Named) -> None:
    """Raise UsageError for two runs that are not parts of one run."""
    (path, manifest), (path_, manifest_) = first, other
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
    """All generations by number. Verdicts refer to the number, so it must mean the same grading in all runs."""
    by_number: dict[int, tuple[Path, Fingerprint]] = {}
    for path, manifest in runs:
        for generation in generations_of(manifest):
            first, before = by_number.setdefault(generation.generation, (path, generation))
            if before.hash != generation.hash:
                raise UsageError(
                    f"generation {generation.generation} of gradings is not the same in {first} and {path}:\n"
                    + difference(before.of, generation.of)
                    + "\nCollect or rescore the parts in the same steps, or merge them before they are graded anew"
                )
            by_number[generation.generation] = (first, _least((before, generation)))
    return {number: generation for number, (_, generation) in by_number.items()}


def _config(manifests: Sequence[Manifest]) -> dict[str, Json]:
    """The config of a run that is graded as the merged run is, with the most samples of any run and the last pass."""
    whole = [
        (-(manifest.grading.generation if manifest.grading else 0), _of_the_whole(manifest.config))
        for manifest in manifests
    ]
    chosen: dict[str, Json] = min(whole, key=lambda entry: (entry[0], canonical(entry[1])))[1]
    for key in GREATEST:
        if values := [manifest.config[key] for manifest in manifests if key in manifest.config]:
            chosen[key] = max(values)
    return chosen


def _of_the_whole(config: Mapping[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in config.items() if key not in (*NOT_OF_THE_WHOLE, *GREATEST)}


def _ranks(runs: Sequence[Named]) -> list[Ranks]:
    """The ranks that are present, by the weights with which they shared the tasks."""
    present: dict[tuple[float, ...], set[int]] = {}
    for _, manifest in runs:
        for ranks in manifest.ranks or [ALONE]:
            present.setdefault(tuple(ranks.weights), set()).update(ranks.present)
    merged = [Ranks(list(weights), sorted(present[weights])) for weights in sorted(present)]
    return [] if merged == [ALONE] else merged


def _least(fingerprints: Iterable[Fingerprint]) -> Fingerprint:
    return min(fingerprints, key=lambda fingerprint: canonical(msgspec.to_builtins(fingerprint)))


def _draws(manifests: Sequence[Manifest]) -> list[Draw]:
    """How the tasks of each pass were chosen. If the runs differ, the least by canonical JSON counts."""
    by_pass: dict[int, Draw] = {}
    for draw in sorted(
        (draw for manifest in manifests for draw in manifest.draws),
        key=lambda draw: canonical(msgspec.to_builtins(draw)),
    ):
        by_pass.setdefault(draw.pass_, draw)
    return [by_pass[number] for number in sorted(by_pass)]


def _each(mappings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Every name in any of the mappings, with the greatest of its values."""
    return {
        name: max(values[name] for values in mappings if name in values)
        for name in sorted({name for values in mappings for name in values})
    }
