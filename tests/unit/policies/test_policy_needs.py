"""What a run needs of a policy is handed over when the policy is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import collected
from tests.support.model_server import ModelServer
from windrow.errors import EndpointError
from windrow.policies.base import Completion, Policy, PolicyNeeds, Request, open_policy
from windrow.policies.chat import ChatPolicy
from windrow.policies.toolcalls.policy import TextToolPolicy

ROWS = [{"prompt": "2 + 2?", "answer": "4"}]


class Told(Policy):
    """Keeps what it is opened with."""

    model = "told"
    captures = frozenset({"none", "text", "logprobs", "tokens"})
    gives_top_logprobs = True

    def __init__(self) -> None:
        self.opened: list[PolicyNeeds] = []

    async def open(self, needs: PolicyNeeds | None = None) -> None:
        assert needs is not None
        self.opened.append(needs)

    async def complete(self, request: Request) -> Completion:
        return Completion(content="4")


class OpensAsBefore(Policy):
    """A user's policy, written when `open` took no parameter."""

    model = "before"
    opened = 0

    async def open(self) -> None:  # type: ignore[override]
        self.opened += 1
        self.notify("it is there")

    async def complete(self, request: Request) -> Completion:
        return Completion(content="4")


@pytest.mark.parametrize(
    ("options", "capture", "top"),
    [
        ({}, "text", 0),
        ({"capture": "tokens"}, "tokens", 0),
        ({"capture": "none"}, "none", 0),
        ({"top_logprobs": 3}, "logprobs", 3),
    ],
    ids=["nothing", "tokens", "none", "top logprobs"],
)
async def test_a_policy_is_opened_once_with_what_the_run_will_ask_of_it(
    options: dict[str, Any], capture: str, top: int, tmp_path: Path
) -> None:
    policy = Told()
    await collected(ROWS, policy=policy, env="prompt", out=str(tmp_path / "run"), **options)
    assert [(needs.capture, needs.top_logprobs) for needs in policy.opened] == [(capture, top)]


async def test_what_a_policy_has_to_say_reaches_the_user(tmp_path: Path) -> None:
    policy = OpensAsBefore()
    warnings: list[str] = []
    await collected(ROWS, policy=policy, env="prompt", out=str(tmp_path / "run"), on_warning=warnings.append)
    assert policy.opened == 1
    assert "it is there" in warnings


async def test_a_policy_whose_open_takes_no_parameter_finds_the_needs_in_itself() -> None:
    policy, said = OpensAsBefore(), list[str]()
    needs = PolicyNeeds(capture="tokens", top_logprobs=2, notify=said.append)
    await open_policy(policy, needs)
    assert (policy.opened, policy.needs, said) == (1, needs, ["it is there"])


async def test_nor_does_a_wrapper_keep_them_from_it() -> None:
    for policy in (Told(), OpensAsBefore()):
        needs = PolicyNeeds(capture="logprobs")
        await open_policy(TextToolPolicy(policy, "hermes"), needs)
        assert (policy.opened[0] if isinstance(policy, Told) else policy.needs) is needs


async def test_a_chat_policy_of_a_users_that_opens_as_before_is_held_to_the_capture(
    stub: Callable[..., ModelServer],
) -> None:
    class Own(ChatPolicy):
        async def open(self) -> None:  # type: ignore[override]
            await super().open()

    policy = Own("stub", [stub("4").url])
    try:
        with pytest.raises(EndpointError, match="--capture tokens"):
            await open_policy(policy, PolicyNeeds(capture="tokens"))
    finally:
        await policy.close()
