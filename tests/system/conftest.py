"""What the tests of the real command share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_process import InProcessProject, Project
from tests.support.model_server import ModelServer


@pytest.fixture
def project(tmp_path: Path, stub: Callable[..., ModelServer]) -> Iterator[Callable[..., Project]]:
    """A factory of projects, each with its own model server; every process they start is ended after the test."""
    with ExitStack() as stack:
        yield _factory(Project, tmp_path, stub, stack)


@pytest.fixture
def in_process_project(tmp_path: Path, stub: Callable[..., ModelServer]) -> Iterator[Callable[..., Project]]:
    """The same, but commands run in the process of the test (see `InProcessProject`)."""
    with ExitStack() as stack:
        yield _factory(InProcessProject, tmp_path, stub, stack)


def _factory(
    kind: type[Project], tmp_path: Path, stub: Callable[..., ModelServer], stack: ExitStack
) -> Callable[..., Project]:
    def make(reply: Any = "42", **options: Any) -> Project:
        path = tmp_path / f"project-{sum(1 for _ in tmp_path.glob('project-*'))}"
        path.mkdir()
        return stack.enter_context(closing(kind(path, stub(reply, **options))))

    return make
