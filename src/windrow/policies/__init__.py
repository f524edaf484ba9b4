"""Who answers: one request in, one completion out."""

from __future__ import annotations

from windrow.config import LoadedConfig, expand, nearest
from windrow.errors import UsageError
from windrow.policies.base import Completion, Policy, Request
from windrow.secrets import Redactor

__all__ = ["Completion", "Policy", "Request", "check_sampling", "make_policy"]


def make_policy(loaded: LoadedConfig, redactor: Redactor) -> Policy:
    """The policy that `policy.model` names: `scripted:FILE` or `scripted:module:function`, else a chat endpoint."""
    config = loaded.run.policy
    if not config.model:
        raise UsageError("no model: give --model NAME with --base-url URL, or --model scripted:FILE")
    model = expand(config.model, where="policy.model")
    if model.startswith("scripted:"):
        from windrow.policies.scripted import scripted_policy

        for key in ("base_url", "api_key_env"):
            if getattr(config, key) is not None:
                origin = loaded.origins.get(f"policy.{key}", key)
                raise UsageError(f"{origin}: a scripted policy has no endpoint, so {key} would be ignored")
        return scripted_policy(model.removeprefix("scripted:"))
    from windrow.policies.chat import chat_policy

    return chat_policy(config, model, redactor)


def check_sampling(policy: Policy, names: set[str], *, where: str) -> None:
    """Refuse at the start what the policy would ignore."""
    ignored = sorted(name for name in names if name not in policy.accepts)
    if ignored:
        known = ", ".join(sorted(policy.accepts)) or "no sampling options"
        hint = nearest(ignored[0], policy.accepts)
        raise UsageError(
            f"{where}: policy {policy.name!r} would ignore {ignored[0]!r}{hint}; it takes {known}"
        )
