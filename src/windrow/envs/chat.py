"""`chat`: a conversation. The row's `prompt` or `messages` opens it; then a user answers each reply, until done.

Who the user is, the setting `user` says, or the row's own `script`, a list of messages:

    user: {script: ["And why?", "Thank you."]}          # said one after the other; the reply to the last one ends it
    user: {policy: {model: m, base_url: …, sampling: …},  # a model plays the user
           prompt: "You want {{ goal }}. …",              # its instructions: a Jinja text over the row's fields
           stop: "[END]"}                                 # when the model says this, the conversation is over
    user: {function: "module:name"}                       # or only "module:name": (task, messages) -> text, or None to end

While there is a call of the reply to be answered, nobody speaks: the tool results are the next messages. A user who
never stops is ended by `limits.max_turns`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from windrow.config import PolicyConfig
from windrow.envs.base import Env, Observation, Step
from windrow.envs.opening import check_opening, opening
from windrow.errors import EnvError, UsageError
from windrow.records import Json, Message, Task
from windrow.registry import resolve
from windrow.tasks.prompts import PromptTemplate, text_template
from windrow.tools import ToolResult

USER = "user"  # what the model that plays the user is called in the metrics
BEGIN = "(The conversation begins.)"


class _User(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    script: list[str] | None = None
    policy: PolicyConfig | None = None
    prompt: str | None = None
    stop: str = "[END]"
    function: str | None = None


class Chat(Env):
    name = "chat"
    version = 1
    takes_prompt = True

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        user = _user(settings)
        if user is None:
            return
        named = [name for name in ("script", "policy", "function") if getattr(user, name) is not None]
        if len(named) != 1:
            raise ValueError(f"'user' must be one of script, policy or function; found {named or 'none'}")
        if user.policy is not None and user.prompt is None:
            raise ValueError("'user.policy' needs 'user.prompt', which says whom the model plays")
        if user.prompt is not None and user.policy is None:
            raise ValueError("'user.prompt' is for a 'user.policy'; a script or a function would ignore it")
        if user.prompt is not None:
            _template(user.prompt)
        if user.function is not None:
            resolve("user", user.function, {})

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        check_opening(row)
        script = row.get("script")
        if script is not None and not (isinstance(script, list) and all(isinstance(s, str) for s in script)):
            raise ValueError("'script' must be a list of strings")

    @classmethod
    def models(cls, settings: Mapping[str, Json]) -> Mapping[str, PolicyConfig]:
        user = _user(settings)
        return {USER: user.policy} if user is not None and user.policy is not None else {}

    @classmethod
    def identity(cls, settings: Mapping[str, Json]) -> Json:
        user = settings.get("user")
        if not isinstance(user, dict):
            return settings
        return {**settings, "user": {key: value for key, value in user.items() if key != "policy"}}

    async def reset(self, task: Task) -> Observation:
        first = opening(task, self.ctx.prompt)
        self._task = task
        self._user = _user(self.settings)
        script = task.get("script")
        if script is not None:
            self._user = _User(script=script)
        if self._user is None:
            raise EnvError("nobody plays the user: 'chat' needs the setting 'user' or a 'script' in the row")
        self._conversation = [message for message in first if message["role"] in ("user", "assistant")]
        self._turns = 0
        row = {key: value for key, value in (task.data or {}).items() if key != "messages"}
        self._instructions = _rendered(self._user.prompt, row) if self._user.prompt is not None else ""
        return Observation(first)

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        self._conversation.append({"role": "assistant", "content": reply.content or ""})
        if reply.tool_calls:
            return Step()
        text, done = await self._answer()
        if text is None:
            return Step(done=True)
        message = Message(role="user", content=text, origin="user")
        self._conversation.append({"role": "user", "content": text})
        return Step(messages=[message], done=done)

    async def _answer(self) -> tuple[str | None, bool]:
        """What the user says next, None for nothing, and whether the conversation is over with it."""
        user = self._user
        assert user is not None
        turn, self._turns = self._turns, self._turns + 1
        if user.script is not None:
            return (user.script[turn], False) if turn < len(user.script) else (None, True)
        if user.function is not None:
            answer = resolve("user", user.function, {})(
                self._task, [dict(message) for message in self._conversation]
            )
            answer = await answer if inspect.isawaitable(answer) else answer
            if answer is not None and not isinstance(answer, str):
                raise TypeError(
                    f"user {user.function!r} returned {type(answer).__name__}; expected text or None"
                )
            return answer, answer is None
        completion = await self.ctx.complete(USER, self._seen_by_user())
        text = completion.content or ""
        return text, user.stop in text

    def _seen_by_user(self) -> list[dict[str, Any]]:
        """The conversation with its roles exchanged: to the one who plays the user, the policy is the user."""
        begin = (
            [{"role": "user", "content": BEGIN}]
            if self._conversation[:1] and _is_user(self._conversation[0])
            else []
        )
        exchanged = [
            {**message, "role": "assistant" if _is_user(message) else "user"}
            for message in self._conversation
        ]
        return [{"role": "system", "content": self._instructions}, *begin, *exchanged]


def _rendered(prompt: str, row: Mapping[str, Json]) -> str:
    return str(_template(prompt).messages(row)[0]["content"])


def _is_user(message: Mapping[str, Any]) -> bool:
    return bool(message["role"] == "user")


def _user(settings: Mapping[str, Json]) -> _User | None:
    unknown: Sequence[str] = [key for key in settings if key != "user"]
    if unknown:
        raise ValueError(f"'chat' has no setting {unknown[0]!r}; it has 'user'")
    user = settings.get("user")
    if user is None:
        return None
    try:
        return msgspec.convert({"function": user} if isinstance(user, str) else user, _User)
    except msgspec.ValidationError as problem:
        raise ValueError(f"'user': {problem}") from None


@lru_cache(maxsize=16)
def _template(text: str) -> PromptTemplate:
    try:
        return text_template(text, name="user.prompt")
    except UsageError as problem:
        raise ValueError(str(problem)) from None
