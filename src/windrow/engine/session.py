"""The session of one episode: what an agent calls, with the limits and the recording behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from windrow.agents import Dispatch, Played
from windrow.engine import external_episode as elsewhere
from windrow.engine.context import Model, RunContext, priced
from windrow.engine.correction import correction
from windrow.engine.recorder import Recorder
from windrow.engine.tool_calls import run_calls
from windrow.engine.window import Ranges, Window
from windrow.envs import Env, Observation, Step
from windrow.errors import ContextOverflow, InfraError, PolicyError, error_record
from windrow.policies import Completion, Request
from windrow.policies.base import Route
from windrow.policies.calls import complete
from windrow.records import LIMITS, Call, Json, Message, Stop, Task
from windrow.tasks.plan import Slot
from windrow.tools import Tool, ToolResult
from windrow.tools.toolbox import NO_TOOLS
from windrow.util.blobs import shown
from windrow.util.cancellation import is_ours
from windrow.util.freeze import copied, copied_messages, copied_task
from windrow.util.guard import guarded_method


class EpisodeSession:
    """Implements `agents.Session`. A limit ends the episode before the call that would exceed it."""

    def __init__(
        self,
        slot: Slot,
        env: Env,
        context: RunContext,
        recorder: Recorder,
        run_tools: Sequence[tuple[str, Tool]] = (),
        opponent: Model | None = None,
    ) -> None:
        """`opponent` answers in the place of the world's policy."""
        self._slot = slot
        self._model = opponent or context.player
        self._env = env
        self._world = context
        self._limits = context.task_setup(slot.task).limits
        self._recorder = recorder
        self._run_tools = run_tools
        self._offer = NO_TOOLS
        self._stopped = False  # by a tool
        self._shown_tools: tuple[dict[str, Json], ...] = ()
        self._window: Window | None = None  # of an agent that asks with messages of its own
        self._copies: list[Message] = []  # of the recorded messages, for the environment's `window`
        self._replied: Message | None = None  # the last reply, until the environment has seen it
        self._asking = 0  # calls under way: an agent may ask several times at once
        self._stepped: set[int] = set()  # the turns whose reply the environment has seen
        self._answered: dict[str, ToolResult] = {}  # its calls that the agent has run
        self._malformed: tuple[str, ...] = ()  # its calls that could not be read
        self._parse_errors = 0  # replies in a row that were nothing but malformed calls
        self._route = Route()  # of all its calls
        self._sampling = dict(recorder.policy.sampling)
        seed = context.seed(slot.seed, slot.sample) if opponent is None else None
        if seed is not None:
            self._sampling["seed"] = seed

    @property
    def ended(self) -> bool:
        return self._recorder.ended

    @property
    def messages(self) -> tuple[Message, ...]:
        return copied_messages(self._recorder.messages)

    @property
    def task(self) -> Task:
        return copied_task(self._slot.task)

    @property
    def tools(self) -> tuple[dict[str, Json], ...]:
        return tuple(copied(tool) for tool in self._recorder.tools)

    async def reset(self) -> None:
        with self._recorder.timed("setup"):
            observation = await guarded_method(
                self._env, "reset", self._env.reset(copied_task(self._slot.task))
            )
        if not isinstance(observation, Observation):
            raise TypeError(f"reset() returned {type(observation).__name__}; expected an Observation")
        self._recorder.add(observation.messages, "task")
        self._offer = self._world.toolbox.offer(self._run_tools, observation.tools, observation.denied)
        self._recorder.offer(tool.schema() for tool in self._offer.tools.values())
        self._shown_tools = tuple(copied(tool) for tool in self._recorder.tools)

    async def complete(self, messages: Sequence[Message | Mapping[str, Any]] | None = None) -> Message | None:
        recorder = self._recorder
        if recorder.ended:
            return None
        reads = self._reads(messages)
        sent = await self._sent(reads)
        if self._limit_reached():
            return None
        sampling, budget_left = self._capped_sampling()
        request = Request(
            messages=sent,
            tools=self._shown_tools,
            sampling=sampling,
            id=self._slot.id,
            attempt=self._slot.attempt,
            turn=recorder.turn_count + self._asking,
            capture=recorder.capture,
            top_logprobs=self._world.top_logprobs,
            route=self._route,
        )
        self._replied, self._answered, self._malformed = None, {}, ()
        self._asking += 1
        try:
            completion = await self._call(request, reads)
        finally:
            self._asking -= 1
        if completion is None:
            return None
        self._replied, self._malformed = recorder.messages[-1], tuple(completion.malformed)
        if completion.finish == "length":
            spent = budget_left is not None and _completed_tokens(completion) >= budget_left
            recorder.end("truncated", "max_episode_tokens" if spent else "length")
        recorder.phase = "agent"  # what is raised from here on is not the policy's
        return recorder.messages[-1]

    def add(self, messages: Sequence[Message | Mapping[str, Any]]) -> None:
        self._recorder.add(messages, "env")

    async def step(self, reply: Message) -> None:
        recorder = self._recorder
        if recorder.ended:
            return
        turn = self._turn_of(reply)
        calls = reply.tool_calls or ()
        if self._replied is not reply:  # an earlier reply, which the agent has chosen now
            self._answered, self._malformed = {}, ()
        if self._malformed and not calls:
            self._correct()
            return
        self._parse_errors = 0
        ran = await self._run([call for call in calls if call.id not in self._answered], turn)
        if ran is None:
            return
        rest = iter(ran)
        results = [self._answered.get(call.id) or next(rest) for call in calls]
        self._replied = None
        if self._malformed:
            recorder.add([correction(self._malformed, alone=False)], "env")
        with recorder.timed("env"):
            step = await guarded_method(self._env, "step", self._env.step(reply, results))
        if not isinstance(step, Step):
            raise TypeError(f"step() returned {type(step).__name__}; expected a Step")
        recorder.stepped(step, turn)
        if step.done or step.stop is not None:
            recorder.end("truncated" if step.stop in LIMITS else "completed", step.stop or "env_done")
        limit = self._world.limits.max_tool_calls
        if step.acts and limit is not None and recorder.tool_calls >= limit:
            recorder.end("truncated", "max_tool_calls")
        if self._stopped:
            recorder.end("completed", "tool_stopped")

    async def call_tool(self, name: str, arguments: Mapping[str, Json] | str) -> ToolResult:
        if not self._recorder.turn_count:
            raise RuntimeError("call_tool() before the first complete(): there is no turn to record it on")
        asked = self._asked(name, arguments)
        call = asked or Call(id=f"own-{self._recorder.tool_calls}", name=name, arguments=_text(arguments))
        results = (
            None if self.ended else await self._run([call], self._recorder.turn_count - 1, asked is not None)
        )
        if results is None:
            return ToolResult(call=call, content="Error: the episode has ended", failed=True)
        if asked is not None:
            self._answered[call.id] = results[0]
        return results[0]

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
        elsewhere.record(self._recorder, played)

    async def finish(self) -> None:
        """The agent has returned: its last reply is its answer, also to an environment that did not see it yet."""
        if not self.ended and not self._recorder.turn_count:
            raise RuntimeError("the agent returned before the episode had ended, without asking the policy")
        self._malformed = ()  # nobody is there to correct them
        if not self.ended and self._replied is not None:
            await self.step(self._replied)
        self._recorder.end("completed", "tool_stopped" if self._stopped else "answered")

    def _correct(self) -> None:
        """Tell the model that its calls could not be read, or end the episode where it was told often enough."""
        self._replied = None
        self._parse_errors += 1
        if self._parse_errors > self._limits.max_parse_errors:
            self._recorder.end("completed", "parse_error")
        else:
            self._recorder.add([correction(self._malformed, alone=True)], "env")

    def _turn_of(self, reply: Message) -> int:
        """The turn that gave this reply, which the environment sees once."""
        if reply.turn is None or self._recorder.reply_of(reply.turn) != reply:
            raise ValueError("step() takes a reply that complete() has returned, as it was returned")
        if reply.turn in self._stepped:
            raise ValueError("step() was given the same reply twice; ask for the next one with complete()")
        self._stepped.add(reply.turn)
        return reply.turn

    async def _run(self, calls: Sequence[Call], turn: int, asked: bool = True) -> list[ToolResult] | None:
        """Run these calls and add what came of them; None when a limit ended the episode instead."""
        recorder = self._recorder
        if not calls:
            return []
        if not self._may_call(len(calls)):
            return None
        started = time.monotonic()
        with recorder.timed("tools"):
            results, records = await run_calls(
                tuple(calls), self._offer, self._limits, first_result=len(recorder.messages)
            )
        self._stopped = self._stopped or any(result.stop for result in results)
        recorder.tools_ran(records, time.monotonic() - started, turn)
        role = {"role": "tool"} if asked else {"role": "user"}
        answers: list[dict[str, Any]] = [
            {**role, "content": result.content, **({"tool_call_id": result.call.id} if asked else {})}
            for result in results
        ]
        recorder.add(answers, "tool")
        return results

    def _asked(self, name: str, arguments: Mapping[str, Json] | str) -> Call | None:
        """The call of the last reply that is this one, if it is not answered yet."""
        calls = (self._replied.tool_calls if self._replied is not None else None) or ()
        wanted = _arguments(arguments)
        for call in calls:
            if call.id not in self._answered and call.name == name and _arguments(call.arguments) == wanted:
                return call
        return None

    def _reads(self, messages: Sequence[Message | Mapping[str, Any]] | None) -> Ranges:
        """The recorded messages that are asked with; those that are new are added."""
        recorder = self._recorder
        if messages is None:
            return self._shown()
        if self._window is None:
            self._window = Window(recorder.messages)
        wanted = [
            message
            if isinstance(message, Message) and self._window.holds(message)
            else recorder.frozen((message,), "env")[0]
            for message in messages
        ]
        if not wanted:
            raise ValueError("complete() was given no messages")
        recorder.add(self._window.missing(wanted), "env")
        return self._window.ranges(wanted)

    def _shown(self) -> Ranges:
        """The messages that the environment wants the policy to be asked with."""
        last = len(self._recorder.messages)
        if type(self._env).window is Env.window:
            return ((0, last),)
        self._copies += copied_messages(self._recorder.messages[len(self._copies) :])
        shown = tuple((start, stop) for start, stop in self._env.window(tuple(self._copies)))
        if not shown or not all(0 <= start < stop <= last for start, stop in shown):
            raise ValueError(f"window() gave {shown}, which are no ranges of {last} messages")
        return shown

    async def _sent(self, reads: Ranges) -> tuple[Message, ...]:
        """What these ranges say, as the model is to see it."""
        messages = self._recorder.messages
        start, stop = reads[0]
        read = messages[start:stop]
        for start, stop in reads[1:]:
            read += messages[start:stop]
        if self._recorder.has_parts:
            return await shown(copied_messages(read), self._world.blobs)
        return tuple(read)  # texts cannot be changed

    async def _call(self, request: Request, reads: Ranges) -> Completion | None:
        """Ask the policy; a failure is recorded on a turn of its own and ends the episode."""
        recorder, model = self._recorder, self._model
        started = time.monotonic()
        completion: Completion | None = None
        retries = 0
        try:
            with recorder.timed("policy"):
                completion = await complete(
                    model.policy,
                    request,
                    retries=model.call_retries,
                    backoff_s=model.backoff_s,
                    timeout_s=self._limits.call_timeout_s,
                    observe=model.observe,
                )
            retries = completion.retries
        except asyncio.CancelledError:
            # Cut by the episode's time or from outside: the call was made, and is written down.
            recorder.called(None, seconds=time.monotonic() - started, retries=0, sampling=None, reads=reads)
            raise
        except ContextOverflow as problem:
            retries = problem.retries
            recorder.end("truncated", "context_overflow")
        except BaseException as problem:
            if is_ours(problem):
                raise
            retries = problem.retries if isinstance(problem, InfraError | PolicyError) else 0
            recorder.fail(error_record(problem, owner="policy", phase="policy"))
        if (
            completion is not None
            and (usage := priced(completion.usage, model.price)) is not completion.usage
        ):
            completion = msgspec.structs.replace(completion, usage=usage)
        sent = request.sampling if request.sampling != recorder.policy.sampling else None
        seconds = time.monotonic() - started
        recorder.called(completion, seconds=seconds, retries=retries, sampling=sent, reads=reads)
        return completion

    def _limit_reached(self) -> bool:
        limits, recorder = self._limits, self._recorder
        if recorder.ended:
            return True
        stop: Stop | None = None
        if recorder.turn_count + self._asking >= limits.max_turns:
            stop = "max_turns"
        elif limits.max_episode_tokens is not None and self._tokens_so_far() >= limits.max_episode_tokens:
            stop = "max_episode_tokens"
        if stop is not None:
            recorder.end("truncated", stop)
        return stop is not None

    def _tokens_so_far(self) -> int:
        tokens = self._recorder.context_tokens()
        if tokens is None:
            raise PolicyError(
                "the endpoint reports no token usage, so --max-episode-tokens cannot be kept", kind="no_usage"
            )
        return tokens

    def _capped_sampling(self) -> tuple[dict[str, Json], int | None]:
        """The sampling of the next call, with max_tokens cut to what is left of the episode's budget."""
        budget = self._limits.max_episode_tokens
        if budget is None:
            return self._sampling, None
        left = budget - self._tokens_so_far()
        asked = self._sampling.get("max_tokens")
        if asked is not None and asked <= left:
            return self._sampling, None
        return {**self._sampling, "max_tokens": left}, left

    def _may_call(self, count: int) -> bool:
        limit, recorder = self._limits.max_tool_calls, self._recorder
        if limit is not None and recorder.tool_calls + count > limit:
            recorder.end("truncated", "max_tool_calls")
            return False
        recorder.tool_calls += count
        return True


def _text(arguments: Mapping[str, Json] | str) -> str:
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _arguments(arguments: Mapping[str, Json] | str) -> Json:
    """What arguments say, however they are spelled."""
    try:
        return msgspec.json.decode(_text(arguments) or "{}")
    except (msgspec.DecodeError, UnicodeError):
        return arguments


def _completed_tokens(completion: Completion) -> int:
    return completion.usage.completion_tokens if completion.usage else 0
