"""What the tests of the real command share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_process import Project
from tests.support.model_server import ModelServer


@pytest.fixture
def project(tmp_path: Path, stub: Callable[..., ModelServer]) -> Iterator[Callable[..., Project]]:
    """A factory of projects, each with a model server of its own; what they started is ended after the test."""
    projects: list[Project] = []

    def make(reply: Any = "42", **options: Any) -> Project:
        path = tmp_path / f"project-{len(projects)}"
        path.mkdir()
        projects.append(Project(path, stub(reply, **options)))
        return projects[-1]

    yield make
    for made in projects:
        made.close()
