"""Policies: what answers in an episode. One request in, one completion out.

Here are the interface that users implement (`base.py`), how it is called (`calls.py`), and the policies that come with
Windrow: `chat.py` (one or several endpoints, in one of the `dialects/`, over `http_client/`), `local.py` (llama.cpp in
this process), `scripted.py`, and `toolcalls/` for models whose tool calls are text. Not here: what an episode does with
a reply (`engine/`), and the models that scorers ask (`grading/`), which are policies too.
"""

from __future__ import annotations

from windrow.config import LoadedConfig, expand, nearest
from windrow.errors import UsageError
from windrow.policies.base import Completion, Policy, Request, extra_problem
from windrow.records import Json
from windrow.util.redaction import Redactor

FLOW = ("max_outage_s", "requests_per_minute", "tokens_per_minute")  # settings that apply to endpoints alone

__all__ = ["Completion", "Policy", "Request", "check_extra", "check_sampling", "make_policy"]


def make_policy(loaded: LoadedConfig, redactor: Redactor) -> Policy:
    """The policy that `policy.model` names.

    `local` or `local:FILE.gguf` runs in this process, `scripted:FILE` or `scripted:module:function` answers by rule;
    any other name is a model at a chat endpoint.
    """
    config = loaded.run.policy
    if not config.model:
        raise UsageError("no model: give --model NAME with --base-url URL, or --model local")
    model = expand(config.model, where="policy.model")
    kind, _, target = model.partition(":")
    if kind == "local":
        from windrow.policies.local import local_policy

        _refuse(loaded, "local", "base_url", "api_key_env", "dialect", *FLOW)
        return local_policy(target, config.local, redactor)
    _refuse(loaded, "scripted" if kind == "scripted" else "chat", "local")
    if kind == "scripted" and target:
        from windrow.policies.scripted import scripted_policy

        _refuse(loaded, "scripted", "base_url", "api_key_env", "dialect", "probe", "probe_timeout_s", *FLOW)
        return scripted_policy(target)
    from windrow.policies.chat import chat_policy

    return chat_policy(config, model, redactor)


def _refuse(loaded: LoadedConfig, policy: str, *keys: str) -> None:
    """UsageError for a setting that this kind of policy would ignore."""
    for setting, origin in loaded.origins.items():
        if any(setting == f"policy.{key}" or setting.startswith(f"policy.{key}.") for key in keys):
            raise UsageError(f"{origin}: a {policy} policy would ignore {setting}; leave it out")


def check_extra(policy: Policy, extra: Json, *, where: str) -> None:
    """UsageError for a field in `sampling.extra` that is not the user's to set."""
    if problem := extra_problem(extra, policy.own_fields):
        raise UsageError(f"{where}: {problem}")


def check_sampling(policy: Policy, names: set[str], *, where: str) -> None:
    """UsageError for a sampling option that the policy would ignore."""
    ignored = sorted(name for name in names if name not in policy.accepts)
    if ignored:
        accepted = ", ".join(sorted(policy.accepts)) or "no sampling options"
        hint = nearest(ignored[0], policy.accepts)
        raise UsageError(
            f"{where}: policy {policy.name!r} would ignore {ignored[0]!r}{hint}; it takes {accepted}"
        )
