"""A rollout as WebGym's steps: observation, reply, action, and the reward after it.

A step is an action. A turn of the policy with several actions gives one step each; a turn without a readable action
is a `wait`, as in WebGym. A failed attempt ends with a step that has no action (`none`), and an attempt without a
valid address has the single step `invalid_url`: WebGym counts these as crashed. The reward is the rollout's, on its
last step, and None if the rollout was not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from windrow.integrations.webgym.metrics import (
    ANSWER,
    GO_BACK,
    INVALID_URL,
    NO_ACTION,
    Step,
    Trajectory,
)
from windrow.integrations.webgym.rows import difficulty_of, is_row
from windrow.records import Call, Json, Message, Rollout, ToolCall, Turn

WAIT = "wait"
BLOCKED = "blocked"  # the score of an episode that ended at a wall
# Actions of the environment `web`, as theirs calls them; others keep their names.
KEYS = {"answer": ANSWER, "back": GO_BACK, "go_back": GO_BACK, "goto": "navigate", "left_click": "click"}
CALL_MARKS = ("<tool_call>", "<function=", "<|python_tag|>", "\nAction Input:")
SCALE = 1000  # coordinates are thousandths of the screen


class Page(msgspec.Struct, frozen=True):
    """The policy's observation before an action: a screenshot is named by the hash of its content."""

    text: str = ""
    image: str | None = None
    size: tuple[int, int] | None = None
    url: str | None = None
    title: str | None = None


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """One step, with the index of its turn."""

    turn: int | None
    key: str
    arguments: dict[str, Json] = {}
    reply: str = ""
    page: Page = Page()
    failed: str | None = None  # why it could not be done, or read
    blocked: bool = False
    reward: float | None = 0.0


def trajectory_of(rollout: Rollout) -> Trajectory | None:
    """Return the part of a rollout that the metrics need; None if it was not played to an end."""
    if rollout.status == "cancelled":
        return None
    steps = [Step(step.key, len(step.reply), step.reward, step.blocked) for step in steps_of(rollout)]
    row = rollout.task.data or {}
    return Trajectory(tuple(steps), outcome_of(rollout), difficulty_of(row) if is_row(row) else None)


def outcome_of(rollout: Rollout) -> str:
    """Return the ending of a rollout in one word or two."""
    if rollout.status == "failed" and rollout.error is not None:
        return f"failed ({rollout.error.owner})"
    return "blocked" if is_blocked(rollout) else rollout.stop


def is_blocked(rollout: Rollout) -> bool:
    """Return whether a rollout ended at a wall: the environment saw it, or a judge says so."""
    return _is_wall(rollout.state) or any(
        name.rpartition(".")[2] == BLOCKED and score.value == 1.0 for name, score in rollout.scores.items()
    )


def steps_of(rollout: Rollout, *, thousandths: bool = False) -> list[Taken]:
    """Return the steps of a rollout in order. There is at least one, unless it ended well without a turn.

    With `thousandths`, positions on the screen were recorded as such; otherwise they are pixels.
    """
    if rollout.error is not None and rollout.error.kind == INVALID_URL:
        return [Taken(turn=None, key=INVALID_URL, failed=rollout.error.message, reward=None)]
    taken = list(_taken(rollout, thousandths))
    if rollout.status in ("failed", "cancelled"):
        why = rollout.error.message if rollout.error is not None else rollout.status
        taken.append(Taken(turn=None, key=NO_ACTION, failed=why))
    if taken:
        blocked = taken[-1].blocked or is_blocked(rollout)
        reward = None if blocked else rollout.reward
        taken[-1] = msgspec.structs.replace(taken[-1], reward=reward, blocked=blocked)
    return taken


def _taken(rollout: Rollout, thousandths: bool) -> Iterator[Taken]:
    where: Mapping[str, Json] = {"url": (rollout.task.data or {}).get("start_url")}
    for number, turn in enumerate(rollout.turns):
        if turn.role != "agent":
            continue
        page = _page(rollout, turn, where)
        state = turn.state if isinstance(turn.state, dict) else {}
        where = state or where
        reply_text = _said(rollout, turn)
        blocked = _is_wall(state)
        if not turn.tool_calls:
            yield Taken(
                turn=number, key=WAIT, reply=reply_text, page=page, failed=turn.parse_error, blocked=blocked
            )
        for call_index, call in enumerate(turn.tool_calls):
            yield Taken(
                turn=number,
                key=KEYS.get(call.name, call.name),
                arguments=_arguments(call, (SCALE, SCALE) if thousandths else page.size),
                reply=reply_text if call_index == 0 else "",  # one reply, counted once
                page=page,
                failed=call.error,
                blocked=blocked,
            )


def _page(rollout: Rollout, turn: Turn, where: Mapping[str, Json]) -> Page:
    """Return the last observation before the reply."""
    for index in (index for start, stop in reversed(turn.reads) for index in reversed(range(start, stop))):
        message = rollout.messages[index] if index < len(rollout.messages) else None
        if message is None or message.role not in ("user", "tool"):
            continue
        image: Mapping[str, Json] = next(
            (part for part in message.content or () if isinstance(part, dict) and "blob" in part), {}
        )
        size = (image["width"], image["height"]) if image.get("width") and image.get("height") else None
        return Page(message.text, image.get("blob"), size, where.get("url"), where.get("title"))
    return Page(url=where.get("url"), title=where.get("title"))


def _said(rollout: Rollout, turn: Turn) -> str:
    """Return the whole reply: reasoning, text, and calls as a model writes them."""
    if turn.writes is None or turn.writes >= len(rollout.messages):
        return ""
    message: Message = rollout.messages[turn.writes]
    thoughts = f"<think>\n{message.reasoning}\n</think>\n" if message.reasoning else ""
    calls = (
        f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'
        for call in message.tool_calls or ()
        if not _is_in_words(call, message.text)
    )
    return "\n".join(part for part in (f"{thoughts}{message.text}", *calls) if part)


def _is_in_words(call: Call, text: str) -> bool:
    """Return whether the text of a reply holds the call: a model without native calls writes them so
    (`--tool-calls`).
    """
    return (call.name in text and call.arguments in text) or any(mark in text for mark in CALL_MARKS)


def _arguments(call: ToolCall, size: tuple[int, int] | None) -> dict[str, Json]:
    """Return the arguments under the names that WebGym gives them."""
    given: dict[str, Json] = (
        dict(call.arguments) if isinstance(call.arguments, dict) else {"raw": call.arguments}
    )
    if (
        size is not None
        and isinstance(given.get("x"), int | float)
        and isinstance(given.get("y"), int | float)
    ):
        x, y = given.pop("x"), given.pop("y")
        given["coordinates"] = [round(x * SCALE / size[0]), round(y * SCALE / size[1])]
    if "element" in given:
        given["element_id"] = str(given.pop("element"))
    if call.name == "answer" and "text" in given:
        given["content"] = given.pop("text")
    return given


def _is_wall(state: Json) -> bool:
    return isinstance(state, dict) and bool(state.get("blocked"))
