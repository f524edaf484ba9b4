"""run.json, the manifest of a run: its settings and fingerprints, its gradings, and its progress."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from windrow.errors import StoreError, UsageError
from windrow.records import SCHEMA_VERSION, Json, encode
from windrow.registry import declared
from windrow.store.manifest_fields import Number, check_fields
from windrow.store.rank_progress import Ranks, Redo
from windrow.tasks.sampling import Draw
from windrow.util.directory_swap import standing
from windrow.util.disk import Disk

MANIFEST = "run.json"


class Fingerprint(msgspec.Struct, frozen=True):
    """A hash and the settings it was made of, so that a difference can be shown. `generation` counts the changes."""

    hash: str
    of: dict[str, Json]
    generation: int = 1


class Rescore(msgspec.Struct, frozen=True):
    """A `windrow rescore` under way: its grading, the generation it makes, its selection and code; `since` holds the sizes
    of the logs of gradings when it began."""

    hash: str
    generation: int
    where: str | None
    failed_only: bool
    code: dict[str, str]
    since: dict[str, int]


class Signature(msgspec.Struct, frozen=True):
    """The signature of the user whose commands wrote run.json; `tasks` is the digest of the tasks.jsonl that they wrote."""

    tasks: str | None
    mac: str


class _Schema(msgspec.Struct, frozen=True):
    """The one field that every version of run.json has."""

    schema: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """run.json. `config` is as the user wrote it, `${VAR}` unexpanded; `agents` holds the planned rollouts of each agent.

    A generation is one way of grading the run; its verdicts are in scores.jsonl beside those of other generations.
    """

    schema: int = SCHEMA_VERSION
    windrow: str
    created_at: Annotated[float, msgspec.Meta(ge=0, lt=2**36)]  # a year of four digits
    source: str
    split: str | None
    config: dict[str, Json]
    behaviour: Fingerprint
    grading: Fingerprint | None  # the active generation
    generations: list[Fingerprint] = []  # all that there are, by number
    rescore: Rescore | None = None  # one under way
    code: dict[str, str] = {}
    redo: Redo | None = None
    draws: list[Draw] = []  # how the tasks of each pass were chosen, where some were left out
    versions: dict[str, str] = {}
    counts: dict[str, Number] = {}
    agents: dict[str, Number] = {}
    ranks: list[Ranks] = []  # those that share its tasks; of a merged run, all that ever did
    signature: Signature | msgspec.UnsetType = msgspec.UNSET


def generations_of(manifest: Manifest) -> list[Fingerprint]:
    """All generations of a run, by number. A manifest of an older version lists only the active one."""
    return manifest.generations or ([manifest.grading] if manifest.grading else [])


def next_generation(manifest: Manifest, grading: Fingerprint) -> Fingerprint:
    """This grading as a new generation, with the next free number."""
    number = max((generation.generation for generation in generations_of(manifest)), default=0) + 1
    return msgspec.structs.replace(grading, generation=number)


def with_generation(manifest: Manifest, generation: Fingerprint | None, *, active: bool = True) -> Manifest:
    """The manifest with this generation added if it is new, and made the active one with `active`."""
    generations = generations_of(manifest)
    new = [generation] if generation is not None and generation not in generations else []
    return msgspec.structs.replace(
        manifest,
        grading=generation if active else manifest.grading,
        generations=[*generations, *new],
    )


def is_run(path: Path) -> bool:
    """Whether a directory holds a run."""
    return (standing(path) / MANIFEST).exists()


def read_manifest(path: Path) -> Manifest:
    file = standing(path) / MANIFEST
    try:
        data = file.read_bytes()
        schema = msgspec.json.decode(data, type=_Schema).schema
        manifest = msgspec.json.decode(data, type=Manifest) if schema <= SCHEMA_VERSION else None
        if manifest is not None:
            check_fields(data)
    except FileNotFoundError:
        raise UsageError(f"{path} is not a run: it has no {MANIFEST}") from None
    except OSError as problem:
        raise StoreError(f"cannot read {file}: {problem.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise StoreError(
            f"{file} is damaged ({problem}): restore the file, or correct that field; the rollouts beside it are still "
            f"readable"
        ) from None
    if manifest is None:
        raise UsageError(
            f"{path} was written by a newer windrow (schema {schema}; this one reads {SCHEMA_VERSION}): "
            f"upgrade windrow"
        )
    return manifest


def write_manifest(path: Path, manifest: Manifest, disk: Disk) -> None:
    """Write run.json into the run directory at `path`, whole or not at all."""
    disk.replace(path / MANIFEST, msgspec.json.format(encode(manifest), indent=2) + b"\n")


def versions(source: str) -> dict[str, str]:
    """Versions of the software that records depend on, including the package that a source comes from, if any."""
    versions_by_name = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "msgspec": msgspec.__version__,
    }
    package = source.partition(":")[0]
    if package in declared("loaders"):
        from importlib.metadata import PackageNotFoundError, version  # only when needed: it reads files

        try:
            versions_by_name[package] = version(package)
        except PackageNotFoundError:
            pass  # the name is the user's own, given with --source
    return versions_by_name


def new_manifest(
    *,
    version: str,
    source: str,
    split: str | None,
    config: dict[str, Json],
    behaviour: Fingerprint,
    grading: Fingerprint | None,
    code: dict[str, str],
    draws: Sequence[Draw] = (),
) -> Manifest:
    return Manifest(
        windrow=version,
        created_at=time.time(),
        source=source,
        split=split,
        config=config,
        behaviour=behaviour,
        grading=grading,
        code=code,
        draws=list(draws),
        versions=versions(source),
    )


def difference(old: Mapping[str, Json], new: Mapping[str, Json]) -> str:
    """The settings that differ between two fingerprints, one line each."""
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
