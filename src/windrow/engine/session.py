"""The session of one episode: the calls that an agent can make.

Each call is checked against the limits (`episode_limits`) and recorded (`recorder`). The messages of a model call are
chosen in `prompt_window`, the call itself is made in `model_calls`, and tools are run in `tool_calls`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from windrow.agents import Dispatch, Played
from windrow.engine.context import RunContext
from windrow.engine.correction import correction
from windrow.engine.episode_limits import EpisodeLimits
from windrow.engine.external_episode import record_external_episode
from windrow.engine.model_calls import ModelCalls
from windrow.engine.models import Model
from windrow.engine.prompt_window import PromptWindow
from windrow.engine.recorder import Recorder
from windrow.engine.tool_calls import result_messages, run_calls
from windrow.envs import Env, Observation, Step
from windrow.records import LIMITS, Call, Json, Message, Task
from windrow.tasks.plan import Slot
from windrow.tools import Tool, ToolResult
from windrow.tools.toolbox import NO_TOOLS
from windrow.util.freeze import copied, copied_messages, copied_task
from windrow.util.guard import guarded_method


class PendingReply:
    """A reply that the environment has not seen yet: its calls that the agent has run, and those nobody could read."""

    __slots__ = ("malformed", "message", "results")

    def __init__(self, message: Message, malformed: tuple[str, ...] = ()) -> None:
        self.message = message
        self.malformed = malformed
        self.results: dict[str, ToolResult] = {}  # by the id of the call

    @property
    def open_calls(self) -> list[Call]:
        return [call for call in self.message.tool_calls or () if call.id not in self.results]

    def open_call(self, name: str, arguments: Mapping[str, Json] | str) -> Call | None:
        """The call of this tool with these arguments, if the reply asks for it and it has not been run."""
        wanted = _decoded(arguments)
        for call in self.open_calls:
            if call.name == name and _decoded(call.arguments) == wanted:
                return call
        return None


class EpisodeSession:
    """Implements `agents.Session`. The engine calls `reset` before the agent runs and `finish` after it."""

    def __init__(
        self,
        slot: Slot,
        env: Env,
        context: RunContext,
        recorder: Recorder,
        run_tools: Sequence[tuple[str, Tool]] = (),
        opponent: Model | None = None,
    ) -> None:
        """`opponent` answers instead of the run's policy."""
        self._slot = slot
        self._env = env
        self._recorder = recorder
        self._outcome = recorder.outcome
        self._toolbox = context.toolbox
        self._run_tools = run_tools
        self._offer = NO_TOOLS
        self._tool_schemas: tuple[dict[str, Json], ...] = ()
        self._model = opponent or context.policy_model
        self._sampling = dict(recorder.policy.sampling)
        seed = context.seed(slot.seed, slot.sample) if opponent is None else None
        if seed is not None:
            self._sampling["seed"] = seed
        self._limits = EpisodeLimits(context.task_setup(slot.task).limits, recorder)
        self._blobs = context.blobs
        self._prompt = PromptWindow(env, recorder, context.blobs)
        self._model_calls = ModelCalls(slot, self._model, self._sampling, context, recorder, self._limits)
        self._pending: PendingReply | None = None  # the last reply
        self._stepped_turns: set[int] = set()
        self._stopped_by_tool = False

    @property
    def ended(self) -> bool:
        return self._outcome.ended

    @property
    def task(self) -> Task:
        return copied_task(self._slot.task)

    @property
    def messages(self) -> tuple[Message, ...]:
        return copied_messages(self._recorder.messages)

    @property
    def tools(self) -> tuple[dict[str, Json], ...]:
        return tuple(copied(schema) for schema in self._recorder.tools)

    async def reset(self) -> None:
        """Reset the environment; its first messages and its tools are recorded."""
        with self._recorder.timed("setup"):
            observation = await guarded_method(
                self._env, "reset", self._env.reset(copied_task(self._slot.task))
            )
        if not isinstance(observation, Observation):
            raise TypeError(f"reset() returned {type(observation).__name__}; expected an Observation")
        self._recorder.add(observation.messages, "task")
        self._offer = self._toolbox.offer(self._run_tools, observation.tools, observation.denied)
        self._recorder.offer_tools(tool.schema() for tool in self._offer.tools.values())
        self._tool_schemas = self.tools

    async def complete(self, messages: Sequence[Message | Mapping[str, Any]] | None = None) -> Message | None:
        if self.ended:
            return None
        reads = self._prompt.ranges(messages)
        prompt = await self._prompt.messages(reads)
        if not self._limits.allows_model_call(self._model_calls.under_way):
            return None
        self._pending = None
        answer = await self._model_calls.ask(prompt, self._tool_schemas, reads)
        if answer is None:
            return None
        completion, reply = answer
        self._pending = PendingReply(reply, tuple(completion.malformed))
        self._recorder.phase = "agent"  # a failure from here on is not the policy's
        return reply

    def add(self, messages: Sequence[Message | Mapping[str, Any]]) -> None:
        self._recorder.add(messages, "env")

    async def call_tool(self, name: str, arguments: Mapping[str, Json] | str) -> ToolResult:
        turn = len(self._recorder.turns) - 1
        if turn < 0:
            raise RuntimeError("call_tool() before the first complete(): there is no turn to record it on")
        pending = self._pending
        requested = pending.open_call(name, arguments) if pending is not None else None
        call = requested or Call(
            id=f"own-{self._recorder.tool_call_count}", name=name, arguments=_json_text(arguments)
        )
        results = None
        if not self.ended:
            results = await self._run_tool_calls([call], turn, requested=requested is not None)
        if results is None:
            return ToolResult(call=call, content="Error: the episode has ended", failed=True)
        if pending is not None and requested is not None:
            pending.results[call.id] = results[0]
        return results[0]

    async def step(self, reply: Message) -> None:
        if self.ended:
            return
        turn = self._turn_of(reply)
        pending = self._pending
        if pending is None or pending.message is not reply:  # an earlier reply, which the agent chooses now
            pending = PendingReply(reply)
        if pending.malformed and not reply.tool_calls:
            self._correct(pending.malformed)
            return
        self._limits.reply_was_readable()
        results = await self._results_of(pending, turn) if reply.tool_calls else []
        if results is None:
            return
        self._pending = None
        if pending.malformed:
            self._recorder.add([correction(pending.malformed, alone=False)], "env")
        await self._step_env(reply, results, turn)

    @property
    def dispatch(self) -> Dispatch:
        return Dispatch(
            id=self._slot.id,
            attempt=self._slot.attempt,
            sample=self._slot.sample,
            sampling=dict(self._sampling),
            retries=self._model.call_retries,
            backoff_s=self._model.backoff_s,
        )

    def record(self, played: Played) -> None:
        record_external_episode(self._recorder, played)

    async def finish(self) -> None:
        """End the episode after the agent has returned. Its last reply is its answer, which the environment sees."""
        if not self.ended and not self._recorder.turns:
            raise RuntimeError("the agent returned before the episode had ended, without asking the policy")
        if not self.ended and self._pending is not None:
            self._pending.malformed = ()  # there is no further call in which the model could correct them
            await self.step(self._pending.message)
        self._outcome.end("completed", "tool_stopped" if self._stopped_by_tool else "answered")

    def _turn_of(self, reply: Message) -> int:
        """The turn that gave this reply. The environment sees each reply once."""
        if reply.turn is None or self._recorder.reply_of(reply.turn) != reply:
            raise ValueError("step() takes a reply that complete() has returned, as it was returned")
        if reply.turn in self._stepped_turns:
            raise ValueError("step() was given the same reply twice; ask for the next one with complete()")
        self._stepped_turns.add(reply.turn)
        return reply.turn

    def _correct(self, malformed: tuple[str, ...]) -> None:
        """Tell the model that its calls could not be read, unless it was told often enough."""
        self._pending = None
        if self._limits.allows_correction():
            self._recorder.add([correction(malformed, alone=True)], "env")

    async def _results_of(self, pending: PendingReply, turn: int) -> list[ToolResult] | None:
        """The results of all calls of a reply, in order. None if a limit ended the episode instead."""
        new_results = await self._run_tool_calls(pending.open_calls, turn)
        if new_results is None:
            return None
        remaining = iter(new_results)
        return [pending.results.get(call.id) or next(remaining) for call in pending.message.tool_calls or ()]

    async def _run_tool_calls(
        self, calls: Sequence[Call], turn: int, *, requested: bool = True
    ) -> list[ToolResult] | None:
        """Run these calls and add their results as messages. None if a limit ended the episode instead."""
        recorder = self._recorder
        if not calls:
            return []
        if not self._limits.allows_tool_calls(len(calls)):
            return None
        started = time.monotonic()
        with recorder.timed("tools"):
            results, records = await run_calls(
                tuple(calls),
                self._offer,
                self._limits.config,
                self._blobs,
                first_result=len(recorder.messages),
            )
        self._stopped_by_tool = self._stopped_by_tool or any(result.stop for result in results)
        recorder.tools_ran(records, time.monotonic() - started, turn)
        recorder.add(result_messages(results, requested=requested), "tool")
        return results

    async def _step_env(self, reply: Message, results: list[ToolResult], turn: int) -> None:
        """Let the environment answer the reply; its step may end the episode."""
        recorder, outcome = self._recorder, self._outcome
        with recorder.timed("env"):
            step = await guarded_method(self._env, "step", self._env.step(reply, results))
        if not isinstance(step, Step):
            raise TypeError(f"step() returned {type(step).__name__}; expected a Step")
        recorder.stepped(step, turn)
        if step.done or step.stop is not None:
            outcome.end("truncated" if step.stop in LIMITS else "completed", step.stop or "env_done")
        if step.acts:
            self._limits.check_acts()
        if self._stopped_by_tool:
            outcome.end("completed", "tool_stopped")


def _json_text(arguments: Mapping[str, Json] | str) -> str:
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _decoded(arguments: Mapping[str, Json] | str) -> Json:
    """The value of a call's arguments, however they are spelled."""
    try:
        return msgspec.json.decode(_json_text(arguments) or "{}")
    except (msgspec.DecodeError, UnicodeError):
        return arguments
