"""An endpoint whose certificate nobody vouches for: the run is not begun, and the user is told what to do."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_process import Project

HERE = Path(__file__).parent / "certificate"
CERTIFICATE = HERE / "test-only.pem"


@pytest.fixture
def tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, HERE / "test-only.key")
    return context


@pytest.mark.slow
def test_a_certificate_that_is_not_trusted_stops_the_run_until_it_is(
    tls: ssl.SSLContext, project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = project(tls=tls)
    ended = home.collect()
    assert ended.code == 1
    assert f"cannot trust {home.server.url}: its certificate is refused" in ended.err
    assert "SSL_CERT_FILE" in ended.err
    assert "Traceback" not in ended.err
    assert not home.server.requests
    assert home.lines() == []

    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    assert home.collect().code == 0
    assert len(home.lines()) == 6


@pytest.mark.slow
def test_a_certificate_that_is_refused_in_mid_run_fails_rollouts_and_not_the_run(
    tls: ssl.SSLContext, project: Callable[..., Project]
) -> None:
    home = project(tls=tls)
    ended = home.collect("--set", "policy.probe=false", "--call-retries", "1", "--retries", "0")
    assert ended.code == 1
    assert "6 × infra/transport, such as: its certificate is refused" in ended.err
    assert "6 not done (failed): the same command continues" in ended.err
