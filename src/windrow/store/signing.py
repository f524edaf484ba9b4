"""Whose run it is: this user's key signs run.json and, through a digest in it, tasks.jsonl.

A valid signature says that commands of this user wrote run.json as it is, and every row of tasks.jsonl with it. It says
nothing of the other files: no name in a line of a log is trusted for its sake. A run without one is foreign, whoever
made it. A run that was foreign once stays so: what is made of it is not signed either.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any

import msgspec

from windrow.identity import canonical
from windrow.records import encode
from windrow.store.manifest import MANIFEST, Manifest, Signature
from windrow.store.task_file import TASKS
from windrow.util.user_key import NoKey, find_key, make_key

NO_TASKS = hashlib.sha256().hexdigest()
_PURPOSE = b"windrow run.json\n"


def signed(manifest: Manifest, tasks: str | None) -> Manifest:
    """Return the manifest with this user's signature, without one where the user has no key.

    `tasks` is the digest of tasks.jsonl; None if not all of its rows were written by commands of this user.
    """
    try:
        key = make_key()
    except NoKey:
        return unsigned(manifest)
    manifest = msgspec.structs.replace(manifest, signature=Signature(tasks=tasks, mac=""))
    mac = _mac(key, msgspec.json.decode(encode(manifest)))
    return msgspec.structs.replace(manifest, signature=Signature(tasks=tasks, mac=mac))


def unsigned(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, signature=msgspec.UNSET)


def is_own(path: Path, manifest: Manifest) -> bool:
    """Whether `manifest`, read from the run directory at `path`, was written by a command of this user."""
    if not isinstance(manifest.signature, Signature):
        return False
    try:
        tree = msgspec.json.decode((path / MANIFEST).read_bytes())
        mac = _mac(find_key(), tree)
        # The file may have been replaced since it was read, and two readers of odd JSON may read two things.
        same = msgspec.convert(tree, Manifest) == manifest
    except (NoKey, OSError, ValueError, RecursionError):
        return False
    return same and hmac.compare_digest(mac.encode(), manifest.signature.mac.encode())


def why_unsigned() -> str | None:
    """Why runs of this user are not signed; None if they are."""
    try:
        make_key()
    except NoKey as problem:
        return str(problem)
    return None


def tasks_digest(path: Path) -> str:
    """The digest of tasks.jsonl in the run directory at `path`."""
    try:
        with (path / TASKS).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return NO_TASKS


def signed_tasks(manifest: Manifest) -> str | None:
    """The digest of tasks.jsonl in the signature."""
    return manifest.signature.tasks if isinstance(manifest.signature, Signature) else None


def _mac(key: bytes, tree: Any) -> str:
    """Of run.json as it stands in the file, fields of other versions included; only the mac itself is left out."""
    tree = {**tree, "signature": {**tree["signature"], "mac": ""}}
    return hmac.digest(key, _PURPOSE + canonical(tree), "sha256").hex()
