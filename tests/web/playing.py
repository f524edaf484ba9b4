"""Episodes of `web` in a real Chromium, played by scripts: one call of collect plays many of them in one browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import windrow
from tests.support.collect_helpers import answering, collected
from tests.web.sites import Sites
from windrow import Completion, Request, Rollout
from windrow.records import Call

Script = Iterable[str | tuple[str, dict[str, Any]] | Callable[[Request], Any]]


async def visited(
    sites: Sites,
    run: Path,
    scripts: Mapping[str, Script],
    *,
    rows: Mapping[str, dict[str, Any]] | None = None,
    settings: dict[str, Any] | None = None,
    env: str = "web",
    **options: Any,
) -> dict[str, Rollout]:
    """The last attempt of each task. A script is named by its task; a text is a reply, a pair a tool call."""
    said = {name: iter(list(script)) for name, script in scripts.items()}

    def answer(request: Request) -> Any:
        name = next(m.text for m in request.messages if m.text.startswith("Your task: ")).removeprefix(
            "Your task: "
        )
        following = next(said[name], "Action: answer('done')")
        if callable(following):
            following = following(request)
        return called(*following) if isinstance(following, tuple) else following

    tasks = [
        {"id": name, "instruction": name, "start_url": sites.url(), **(rows or {}).get(name, {})}
        for name in scripts
    ]
    own = {
        "allow": [sites.host],
        "browsers": 1,
        "action_s": 30,
        "settle_s": 30,
        "observe_s": 60,
        **(settings or {}),
    }
    await collected(
        tasks,
        env=env,
        policy=answering(answer),
        out=str(run),
        **{"retries": 0, "max_turns": 30, **options},
        sets=[f"env.settings={json.dumps(own)}"],
    )
    return {rollout.task.key: rollout for rollout in windrow.load(run)}


def called(
    name: str, arguments: dict[str, Any], then: tuple[str, dict[str, Any]] | None = None
) -> Completion:
    """A reply that calls one tool, and `then` another."""
    wanted = [(name, arguments), *([then] if then is not None else [])]
    calls = (
        Call(id=f"call-{n}", name=tool, arguments=json.dumps(given)) for n, (tool, given) in enumerate(wanted)
    )
    return Completion(content="", tool_calls=tuple(calls))


def pages(rollout: Rollout) -> list[str]:
    """The pages that the policy was shown, in words."""
    return [m.text for m in rollout.messages if m.origin in ("task", "env") and m.text.startswith("Page: ")]


def results(rollout: Rollout) -> list[str]:
    """What came of each action, in words."""
    return [rollout.messages[call.result].text for turn in rollout.turns for call in turn.tool_calls]
