"""`--agent nemo-gym:http://HEAD[/AGENT]`: running, unmodified agent servers play the rows, each through its `/run`.

The server plays the whole episode and has it verified; its answer is recorded here. The row is our own, and its echo
in the answer is ignored. A row that fails costs only that row.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from windrow.agents import Agent, Dispatch, Session
from windrow.config import nearest
from windrow.errors import EndpointError, InfraError
from windrow.integrations.nemo_gym.client import Caller, Servers
from windrow.integrations.nemo_gym.env import NAME
from windrow.integrations.nemo_gym.episodes import played_of
from windrow.integrations.nemo_gym.items import given_content
from windrow.integrations.nemo_gym.outages import Outages
from windrow.integrations.nemo_gym.rows import (
    AGENT,
    ATTEMPT_INDEX,
    MARK,
    PARAMS,
    ROLLOUT_ID,
    ROLLOUT_INDEX,
    TASK_INDEX,
    agent_of,
    check_overrides,
    has_input,
    params_of,
    with_overrides,
    with_sampling,
)
from windrow.records import Json, Message

EPISODE_TIMEOUT_S = 3600.0
ANSWERED = ("response", "reward", "error")  # of a row that is one of their results, sent again
_KNOWN = ("head", "agent", PARAMS)


class NemoGymAgent(Agent):
    """`head` is the address of the head server, `agent` plays rows without an `agent_ref` of their own, and
    `responses_create_params` are laid over those of each row.
    """

    name = NAME
    version = 1
    external = True
    env = NAME
    usual_timeout_s = EPISODE_TIMEOUT_S

    def __init__(self, settings: Mapping[str, Json]) -> None:
        super().__init__(settings)
        self._servers = Servers(str(settings.get("head", "")))
        self._caller = Caller()

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        for key, value in settings.items():
            if key not in _KNOWN:
                raise ValueError(
                    f"{NAME!r} has no setting {key!r}{nearest(key, _KNOWN)} (known: {', '.join(_KNOWN)})"
                )
            if key == PARAMS:
                check_overrides(value)
            elif not isinstance(value, str) or not value:
                raise ValueError(f"{key} must be a text, found {value!r:.80}")
        check_address(settings.get("head"), f"--agent {NAME}:http://HOST:PORT")

    @classmethod
    def check_row(cls, settings: Mapping[str, Json], row: Mapping[str, Json]) -> None:
        if cls.called(settings, row) is None:
            raise ValueError(
                f"no agent: the row has no 'agent_ref' with a 'name', and --agent {NAME}:http://HOST:PORT/AGENT gives none"
            )

    @classmethod
    def called(cls, settings: Mapping[str, Json], row: Mapping[str, Json]) -> str | None:
        return agent_of(row) or settings.get("agent")

    @classmethod
    def identity(cls, settings: Mapping[str, Json]) -> Json:
        return {key: value for key, value in settings.items() if key != "head"}

    async def open(self, notify: Callable[[str], None]) -> None:
        await self._servers.learn()
        await self._caller.open()
        self._outages = Outages(self._caller, notify)
        if "agent" in self.settings:
            try:
                self._servers.agent(self.settings["agent"])
            except InfraError as problem:
                raise EndpointError(str(problem)) from None

    async def close(self) -> None:
        await self._caller.close()

    async def run(self, session: Session) -> None:
        task, dispatch = session.task, session.dispatch
        row = task.data or {}
        name = self.called(self.settings, row)
        assert name is not None, "check_row() has seen to it"
        sent = sent_row(row, name, dispatch, task.index, session.messages)
        sent[PARAMS] = with_overrides(sent[PARAMS], self.settings.get(PARAMS, {}))
        asked = self._servers.asked

        async def send() -> dict[str, Json]:
            return await self._caller.post(f"{self._servers.agent(name).url}/run", sent)

        async def refused() -> None:
            nonlocal asked
            await self._servers.again(asked)  # it may have been started anew, elsewhere
            asked = self._servers.asked

        if not self._servers.knows(name):
            await refused()
        answer = await self._outages.reached(
            name,
            lambda: self._servers.agent(name).url,
            send,
            retries=dispatch.retries,
            backoff_s=dispatch.backoff_s,
            refused=refused,
        )
        session.record(played_of(answer, task, session.messages, agent=name))


def sent_row(
    row: Mapping[str, Json], agent: str, dispatch: Dispatch, index: int, opening: tuple[Message, ...]
) -> dict[str, Json]:
    """Return the row to send: with its numbers, and an id that no other dispatch has, so that captures never collide."""
    again = "response" in row
    sent = {
        key: value
        for key, value in row.items()
        if not key.startswith(MARK) and not (again and key in ANSWERED)
    }
    sent[PARAMS] = _params(row, dispatch, opening)
    sent[AGENT] = {**(row.get(AGENT) or {}), "name": agent}
    sent[TASK_INDEX], sent[ROLLOUT_INDEX] = index, dispatch.sample
    if dispatch.attempt > 1:
        sent[ATTEMPT_INDEX] = dispatch.attempt - 1
    sent[ROLLOUT_ID] = f"{dispatch.id}-a{dispatch.attempt}-{uuid.uuid4().hex[:12]}"
    return sent


def _params(row: Mapping[str, Json], dispatch: Dispatch, opening: tuple[Message, ...]) -> dict[str, Json]:
    """Return the row's parameters without nulls, which some servers refuse, and with the run's sampling."""
    params = {key: value for key, value in params_of(row).items() if value is not None}
    if not has_input(row):
        params["input"] = [
            {"role": message.role, "content": given_content(message.content)} for message in opening
        ]
    return with_sampling(params, dispatch.sampling)


def check_address(address: Json, spelled: str) -> None:
    """Raise ValueError if this is not a server's address, or if it holds a secret that would be recorded with it."""
    try:
        parts = urlsplit(address) if isinstance(address, str) else None
        fits = (
            parts is not None
            and parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
        )
    except ValueError:  # a port or a host that is none
        parts, fits = None, False
    if parts is not None and (parts.username or parts.password or parts.query or parts.fragment):
        raise ValueError(
            f"head must not hold a user name, a password, a query or a fragment: their servers know none; write {spelled}"
        )
    if not fits:
        raise ValueError(f"head must be the address of a head server, found {address!r:.80}; write {spelled}")
