"""The `scripted` policy: replies by rule, from a file or a callable, with latency and faults; for tests and examples.

A script is YAML or JSON:

    replies:
      - match: 'what is (\\d+) \\+ (\\d+)'   # a regular expression on the last user message; absent: always
        reply: 'The answer is {1}'          # {1} is a group of the match; a list gives one reply a turn
        finish: stop                        # or length
        latency_s: 0.1
        fault: {kind: http_503, first: 2}   # the first 2 tries fail; or rate: 0.1 of the calls, chosen by content
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from windrow.config.yamltext import yaml_value
from windrow.errors import InfraError, PolicyError, UsageError
from windrow.identity import fingerprint, seed_of
from windrow.policies.base import ANY_SAMPLING, Completion, Policy, Request
from windrow.records import Json, Usage
from windrow.registry import resolve

_GROUP = re.compile(r"\{(\d+)\}")


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`kind` is http_STATUS, transport or hang; `first` tries of a call fail, or a `rate` of the attempts."""

    kind: Annotated[str, msgspec.Meta(pattern=r"^(http_[1-5]\d\d|transport|hang)$")]
    first: int = 0
    rate: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reply: str | Annotated[list[str], msgspec.Meta(min_length=1)]
    match: str | None = None
    finish: str = "stop"
    latency_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    fault: Fault | None = None


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    replies: list[Rule]


class ScriptedPolicy(Policy):
    """Answers by the first rule that matches."""

    name = "scripted"

    def __init__(self, script: Script, *, name: str = "scripted") -> None:
        self.model = name
        self._rules = [(re.compile(rule.match) if rule.match else None, rule) for rule in script.replies]
        self._script = fingerprint(msgspec.to_builtins(script))
        self._tries: dict[tuple[str, int, int], int] = {}

    def identity(self) -> dict[str, Json]:
        return {**super().identity(), "script": self._script}

    async def complete(self, request: Request) -> Completion:
        asked = next((m.text for m in reversed(request.messages) if m.role == "user"), "")
        for pattern, rule in self._rules:
            match = pattern.search(asked) if pattern else None
            if pattern is None or match is not None:
                if rule.latency_s:
                    await asyncio.sleep(rule.latency_s)
                await self._maybe_fail(rule.fault, request)
                return _completion(_reply(rule, match, request), rule.finish, request)
        raise PolicyError(f"no rule of the script matches {asked[:80]!r}", kind="no_rule")

    async def _maybe_fail(self, fault: Fault | None, request: Request) -> None:
        if fault is None:
            return
        call = (request.id, request.attempt, request.turn)
        tries = self._tries.get(call, 0)
        chosen = seed_of(request.id, request.attempt) % 1_000_000 < fault.rate * 1_000_000
        if not chosen and tries >= fault.first:
            self._tries.pop(call, None)
            return
        self._tries[call] = tries + 1
        if fault.kind == "hang":
            await asyncio.Event().wait()
        status = fault.kind.removeprefix("http_")
        if status.isdigit() and int(status) < 500 and status not in ("408", "409", "429"):
            raise PolicyError(f"scripted fault: {fault.kind}", kind=fault.kind)
        raise InfraError(f"scripted fault: {fault.kind}", kind=fault.kind)


class CallablePolicy(Policy):
    """Answers with what a function returns for the request: a string or a Completion, awaited if need be."""

    name = "scripted"
    accepts = ANY_SAMPLING

    def __init__(self, function: Callable[[Request], Any], *, name: str) -> None:
        self.model = name
        self._function = function

    async def complete(self, request: Request) -> Completion:
        result = self._function(request)
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, str):
            return _completion(result, "stop", request)
        if not isinstance(result, Completion):
            raise PolicyError(
                f"{self.model} returned {type(result).__name__}; expected a string or Completion",
                kind="bad_completion",
            )
        return result


def scripted_policy(target: str) -> Policy:
    """From a script file, or from `module:function`."""
    if not Path(target).exists() and ":" in target:
        return CallablePolicy(resolve("policy", target, {}), name=f"scripted:{target}")
    return ScriptedPolicy(read_script(Path(target)), name=f"scripted:{Path(target).name}")


def read_script(path: Path) -> Script:
    try:
        script = msgspec.convert(yaml_value(path.read_text(encoding="utf-8")), Script)
        for rule in script.replies:
            _check_groups(rule)
    except OSError as problem:
        raise UsageError(f"cannot read the script {path}: {problem.strerror}") from None
    except (msgspec.ValidationError, re.error, ValueError, RecursionError) as problem:
        raise UsageError(f"{path} is not a script of replies: {problem}") from None
    return script


def _reply(rule: Rule, match: re.Match[str] | None, request: Request) -> str:
    text = rule.reply if isinstance(rule.reply, str) else rule.reply[min(request.turn, len(rule.reply) - 1)]
    if match is None:
        return text
    return _GROUP.sub(lambda found: match.group(int(found[1])) or "", text)


def _check_groups(rule: Rule) -> None:
    if rule.match is None:
        return
    groups = re.compile(rule.match).groups
    for text in [rule.reply] if isinstance(rule.reply, str) else rule.reply:
        for number in _GROUP.findall(text):
            if int(number) > groups:
                raise ValueError(f"{{{number}}} in a reply: {rule.match!r} has {groups} groups")


def _completion(text: str, finish: str, request: Request) -> Completion:
    words = sum(len(message.text.split()) for message in request.messages)
    return Completion(
        content=text,
        finish=finish,
        usage=Usage(prompt_tokens=words, completion_tokens=len(text.split())),
        model=None,
    )
