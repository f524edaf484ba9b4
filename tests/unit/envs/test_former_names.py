"""An environment written for the former name of `EnvContext.redact` keeps its secrets."""

from __future__ import annotations

from windrow.envs import EnvContext


def test_to_conceal_is_to_redact() -> None:
    secrets: list[str] = []
    ctx = EnvContext(id="r", attempt=1, seed=0, redact=secrets.append)
    ctx.conceal("key-1")
    ctx.redact("key-2")
    assert secrets == ["key-1", "key-2"]


def test_where_nothing_redacts_either_name_does_nothing() -> None:
    ctx = EnvContext(id="r", attempt=1, seed=0)
    ctx.conceal("key-1")
    ctx.redact("key-2")
