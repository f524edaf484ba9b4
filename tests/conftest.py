"""What every test may ask for."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.model_server import ModelServer

# The key that signs runs is the tests' own, one for all processes of a session.
if "WINDROW_STATE" not in os.environ:
    os.environ["WINDROW_STATE"] = tempfile.mkdtemp(prefix="windrow-state-")
    atexit.register(shutil.rmtree, os.environ["WINDROW_STATE"], ignore_errors=True)

# Time limits are pytest-timeout's business: a machine that is slow is no failure. CI draws the same cases each time, so
# that a red build can be repeated.
UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", **UNTIMED)
settings.register_profile("ci", derandomize=True, **UNTIMED)
settings.register_profile("thorough", max_examples=2000, **UNTIMED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))

# A shell has what it starts in the background ignore SIGINT, and commands inherit that. Those that a test interrupts must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def stub() -> Iterator[Callable[..., ModelServer]]:
    """A factory of scripted model servers (see `ModelServer`); each one is stopped after the test.

    def test_it(stub):
        server = stub(lambda body, n: "42")
        ... server.url ...
    """
    servers: list[ModelServer] = []

    def start(reply: Any = "42", **options: Any) -> ModelServer:
        server = ModelServer(reply, **options)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is indexed, however short, and segments after every commit."""
    from windrow.store import index_files, resume_index

    monkeypatch.setattr(index_files, "MIN_BYTES", 0)
    monkeypatch.setattr(resume_index, "MIN_GROWTH_BYTES", 0)


@pytest.fixture(autouse=True)
def nothing_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test puts into its environment is no secret of the next."""
    from windrow.util import redaction

    monkeypatch.setattr(redaction, "_expanded", {})
