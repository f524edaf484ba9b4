"""Opening a run: its directory is made or locked, the call is checked against it, and its logs are read for what is done."""

from __future__ import annotations

import asyncio

from windrow.collecting.collection import Collection, Warn
from windrow.collecting.compatibility import changed_code, check_compatible, refuse_sharing
from windrow.collecting.resolve import ResolvedRun
from windrow.store.run_directory import RunDirectory, move_aside
from windrow.store.signing import why_unsigned
from windrow.store.where import parse_where
from windrow.tasks.selection import changed_blocks
from windrow.util.disk import Disk


def open_collection(
    resolved: ResolvedRun,
    *,
    stored: bool = True,
    overwrite: bool = False,
    redo: str | None = None,
    regrade: bool = False,
    groups: bool = False,
    semaphore: asyncio.Semaphore | None = None,
    on_warning: Warn | None = None,
    disk: Disk | None = None,
) -> Collection:
    """Open (or make) the run directory and find out what is left to do. Refuses what does not fit what is there.

    With `groups`, whole groups are given out, also with members that earlier calls have left.
    """
    if not stored:
        return Collection(resolved, resolved.tasks, semaphore=semaphore, on_warning=on_warning)
    if redo is not None:
        parse_where(redo)
    refuse_sharing(resolved, overwrite=overwrite)
    path, rank = resolved.out, resolved.rank
    aside = move_aside(path, lock=resolved.run.lock, disk=disk) if overwrite else None
    directory = RunDirectory(
        path,
        rank=rank.number if rank is not None else None,
        lock=resolved.run.lock,
        shared=resolved.run.shared,
        disk=disk,
    )
    try:
        with directory.shared_files_locked():
            before = directory.manifest
            as_configured, resolved = resolved, resolved.continuing(before)
            check_compatible(resolved, directory, regrade=regrade, redo=redo)
            file = directory.adopt_tasks(resolved.tasks)
            if resolved.scan_index is not None:
                resolved.scan_index.save(path, directory.disk)
        collection = Collection(
            resolved, file, directory=directory, semaphore=semaphore, groups=groups, on_warning=on_warning
        )
        if rank is not None:
            collection.save()
        if before is None and (why := why_unsigned()) is not None:
            collection.warn(
                f"the run is not signed, so that replay and rescore will ask for --trust-run: {why}"
            )
        for message in changed_blocks(resolved.draw, as_configured.draw):
            collection.warn(message)
        if aside is not None:
            collection.warn(f"the old run was moved to {aside}")
        collection.warn_of_lines(
            f"{file.path}:{number} is not a task and is left out" for number in file.bad_lines
        )
        for message in changed_code(resolved, before):
            collection.warn(message)
        for torn in directory.torn:
            collection.warn(f"a torn last line was set aside in {torn}")
    except BaseException:
        directory.close()
        raise
    return collection
