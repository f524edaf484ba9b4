"""`hud`: a task of HUD's first or second generation, played for real against the MCP servers that its row names.

The setup tools are called first; what all of them say is shown below the prompt if the row asks for it. The model is offered the
tools that the row permits; the harness may call the others too. A reply without calls is the answer. Then the
evaluate tools are called, and the answer of the first one holds the reward.

A scenario of the second generation is a prompt of its server, which sets the scene, and a resource of the same name, which is read
for the reward once the answer is submitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import msgspec

from windrow.config import nearest
from windrow.envs.base import Env, Episode, Observation, Step
from windrow.errors import EnvError, UsageError
from windrow.integrations.hud.rewards import check_judged, find_reward
from windrow.integrations.hud.rows import NAME, generation_of, not_played, playable
from windrow.integrations.hud.servers import SUBMIT, Servers, redact, servers_of
from windrow.integrations.hud.tasks import HudTask, ToolCall
from windrow.records import Json, Message, Score, Task
from windrow.registry import import_extra
from windrow.tasks.trust import Demand, server_demands
from windrow.tools import ToolResult
from windrow.tools.filters import ToolFilter
from windrow.tools.mcp_session import McpAnswer

SETTINGS = {"start_timeout_s": 60.0, "setup_timeout_s": 300.0}
EVIDENCE_CHARS = 4_000  # of what each evaluate tool said


class Hud(Env):
    name = NAME
    version = 1
    connects = True

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        for key, value in settings.items():
            if key not in SETTINGS:
                raise ValueError(
                    f"'hud' has no setting {key!r}{nearest(key, SETTINGS)} (known: {', '.join(SETTINGS)})"
                )
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise ValueError(f"{key} must be a number of seconds, found {value!r:.80}")

    @classmethod
    def demands(cls, row: Mapping[str, Json]) -> Iterator[Demand]:
        if (task := playable(row)) is not None:
            for name, server in task.servers.items():
                yield from server_demands(server, f"mcp_config.{name}")

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        generation = generation_of(row)
        if generation is None:
            raise ValueError(
                f"a HUD row has 'prompt' and 'mcp_config' (it has: {', '.join(row) or 'nothing'})"
            )
        task = playable(row)
        if task is None:
            raise ValueError(not_played(row))
        import_extra("mcp", extra="mcp", what="a HUD task, which runs on MCP servers,")
        try:
            servers_of(task.servers)
        except UsageError as problem:
            raise ValueError(str(problem)) from None

    @classmethod
    def identity(cls, settings: Mapping[str, Json]) -> Json:
        return {}  # how long it waits is not what it does

    async def reset(self, task: Task) -> Observation:
        self._servers: Servers | None = None
        found = playable(task.data or {})
        assert found is not None  # check_row has seen it
        self._task = found
        redact(self._task.servers, self.ctx.redact)
        self._servers = Servers(servers_of(self._task.servers))
        await self._servers.open(self._seconds("start_timeout_s"))
        limit = self._seconds("setup_timeout_s")
        try:
            async with asyncio.timeout(limit):
                setup_answers = [await self._prepared(call) for call in self._task.setup]
                if (scenario := self._task.scenario) is not None:
                    prompt = await self._servers.prompt(scenario.id, scenario.arguments)
                    self._task = msgspec.structs.replace(self._task, prompt=prompt)
        except TimeoutError:
            raise EnvError(f"the setup tools did not finish within {limit:g} s", kind="timeout") from None
        permitted = [tool for tool in self._servers.tools if permits(self._task, tool.name)]
        names = {tool.name for tool in permitted}
        denied = [tool.name for tool in self._servers.tools if tool.name not in names]
        return Observation(_opening(self._task, setup_answers), permitted, denied)

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        if reply.tool_calls:
            return Step()
        if (scenario := self._task.scenario) is not None:
            assert self._servers is not None
            _check(await self._servers.submit(scenario.name, reply.text), SUBMIT, "response")
        if self._task.response_tool is not None:
            await self._prepared(
                ToolCall(self._task.response_tool, {"response": reply.text}), what="response"
            )
        return Step(done=True, stop="answered")

    async def score(self, episode: Episode) -> Score | None:
        assert self._servers is not None
        if (scenario := self._task.scenario) is not None:
            return _verdict(scenario.id, await self._servers.resource(scenario.id))
        if not self._task.evaluate:
            return None
        answers = [await self._servers.call(call.name, call.arguments) for call in self._task.evaluate]
        named = list(zip(self._task.evaluate, answers, strict=True))
        for call, answer in named:
            check_judged(answer, call.name)
        evaluation = find_reward(answers[0], self._task.evaluate[0].name)
        return Score(
            {"reward": (evaluation.reward, 1.0)},
            evidence=[_evidence(call, answer) for call, answer in named],
            metrics={f"subscore/{name}": value for name, value in evaluation.subscores.items()},
        )

    async def close(self) -> None:
        servers = getattr(self, "_servers", None)  # there is none where reset() was never reached
        if servers is not None:
            await servers.close()

    async def _prepared(self, call: ToolCall, what: str = "setup") -> McpAnswer:
        """Return the answer to a call of the harness; a failed call fails the episode, which would not be the task's
        without it.
        """
        assert self._servers is not None
        answer = await self._servers.call(call.name, call.arguments)
        _check(answer, call.name, what)
        return answer

    def _seconds(self, name: str) -> float:
        return float(self.settings.get(name, SETTINGS[name]))


def _check(answer: McpAnswer, tool: str, what: str) -> None:
    if answer.failed:
        raise EnvError(f"the {what} tool {tool!r} failed: {answer.text:.2000}", kind=f"{what}_failed")


def _verdict(scenario: str, text: str) -> Score:
    answer = McpAnswer(texts=(text,))
    evaluation = find_reward(answer, scenario)
    evidence: Json = {"resource": scenario, "said": text[:EVIDENCE_CHARS]}
    return Score({"reward": (evaluation.reward, 1.0)}, evidence=[evidence])


def permits(task: HudTask, tool: str) -> bool:
    """Return whether the model may see and call a tool: allow first, then deny. An empty list permits none."""
    if task.allowed is not None and not task.allowed:
        return False
    return ToolFilter(task.allowed or (), task.disallowed).permits(tool)


def _opening(task: HudTask, setup_answers: list[McpAnswer]) -> list[dict[str, Json]]:
    texts = [text for answer in setup_answers for text in answer.texts]
    shown = "\n".join(texts) if task.append_setup_output else ""
    system = [{"role": "system", "content": task.system_prompt}] if task.system_prompt else []
    prompt = f"{task.prompt}\n\n{shown}" if shown else task.prompt
    return [*system, {"role": "user", "content": prompt}]


def _evidence(call: ToolCall, answer: McpAnswer) -> Json:
    answer_text = answer.text
    return {
        "tool": call.name,
        "said": answer_text[:EVIDENCE_CHARS],
        **({"characters": len(answer_text)} if len(answer_text) > EVIDENCE_CHARS else {}),
    }
