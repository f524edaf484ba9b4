"""The session of one episode: what an agent calls, with the limits and the recording behind it."""

from __future__ import annotations

import asyncio
import time

from windrow.engine.cancel import is_ours
from windrow.engine.freeze import copied, copied_messages, copied_task
from windrow.engine.recorder import Recorder
from windrow.engine.toolrun import run_calls
from windrow.engine.world import World
from windrow.envs import Env, Observation, Step
from windrow.errors import ContextOverflow, InfraError, PolicyError, error_record
from windrow.policies import Completion, Request
from windrow.policies.base import complete
from windrow.records import Json, Message, Stop
from windrow.tasks.plan import Slot
from windrow.tools import Tool, ToolResult


class EpisodeSession:
    """Implements `agents.Session`. A limit ends the episode before the call that would exceed it."""

    def __init__(self, slot: Slot, env: Env, world: World, recorder: Recorder) -> None:
        self._slot = slot
        self._env = env
        self._world = world
        self._recorder = recorder
        self._tools: dict[str, Tool] = {}
        self._shown_tools: tuple[dict[str, Json], ...] = ()
        self._sampling = dict(recorder.policy.sampling)
        seed = world.seed(slot.seed, slot.sample)
        if seed is not None:
            self._sampling["seed"] = seed

    @property
    def ended(self) -> bool:
        return self._recorder.ended

    @property
    def messages(self) -> tuple[Message, ...]:
        return copied_messages(self._recorder.messages)

    async def reset(self) -> None:
        with self._recorder.timed("setup"):
            observation = await self._env.reset(copied_task(self._slot.task))
        if not isinstance(observation, Observation):
            raise TypeError(f"reset() returned {type(observation).__name__}; expected an Observation")
        self._recorder.add(observation.messages, "task")
        self._tools = {tool.name: tool for tool in observation.tools}
        self._recorder.offer(tool.schema() for tool in observation.tools)
        self._shown_tools = tuple(copied(tool) for tool in self._recorder.tools)

    async def complete(self) -> Message | None:
        recorder = self._recorder
        if recorder.ended or self._limit_reached():
            return None
        sampling, budget_left = self._capped_sampling()
        request = Request(
            messages=copied_messages(recorder.messages),
            tools=self._shown_tools,
            sampling=sampling,
            id=self._slot.id,
            attempt=self._slot.attempt,
            turn=recorder.turn_count,
        )
        completion = await self._call(request)
        if completion is None:
            return None
        if completion.finish == "length":
            spent = budget_left is not None and _completed_tokens(completion) >= budget_left
            recorder.end("truncated", "max_episode_tokens" if spent else "length")
        return recorder.messages[-1]

    async def step(self, reply: Message) -> None:
        recorder = self._recorder
        results: list[ToolResult] = []
        if reply.tool_calls:
            if not self._may_call(len(reply.tool_calls)):
                return
            started = time.monotonic()
            with recorder.timed("tools"):
                results, records = await run_calls(
                    reply.tool_calls,
                    self._tools,
                    timeout_s=self._world.limits.tool_timeout_s,
                    first_result=len(recorder.messages),
                )
            recorder.tools_ran(records, time.monotonic() - started)
            answers = [
                {"role": "tool", "content": result.content, "tool_call_id": result.call.id}
                for result in results
            ]
            recorder.add(answers, "tool")
        with recorder.timed("env"):
            step = await self._env.step(reply, results)
        if not isinstance(step, Step):
            raise TypeError(f"step() returned {type(step).__name__}; expected a Step")
        recorder.stepped(step)
        if step.done or step.stop is not None:
            recorder.end("completed", step.stop or "env_done")

    async def _call(self, request: Request) -> Completion | None:
        """Ask the policy; a failure is recorded on a turn of its own and ends the episode."""
        recorder, world = self._recorder, self._world
        started = time.monotonic()
        completion: Completion | None = None
        retries = 0
        try:
            with recorder.timed("policy"):
                completion = await complete(
                    world.policy,
                    request,
                    retries=world.call_retries,
                    backoff_s=world.backoff_s,
                    timeout_s=world.limits.call_timeout_s,
                )
            retries = completion.retries
        except asyncio.CancelledError:
            # Cut by the episode's time or from outside: the call was made, and is written down.
            recorder.called(None, seconds=time.monotonic() - started, retries=0, sampling=None)
            raise
        except ContextOverflow:
            recorder.end("truncated", "context_overflow")
        except BaseException as problem:
            if is_ours(problem):
                raise
            retries = problem.retries if isinstance(problem, InfraError) else 0
            recorder.fail(error_record(problem, owner="policy", phase="policy"))
        sent = request.sampling if request.sampling != recorder.policy.sampling else None
        recorder.called(completion, seconds=time.monotonic() - started, retries=retries, sampling=sent)
        return completion

    def _limit_reached(self) -> bool:
        limits, recorder = self._world.limits, self._recorder
        stop: Stop | None = None
        if recorder.turn_count >= limits.max_turns:
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
        budget = self._world.limits.max_episode_tokens
        if budget is None:
            return self._sampling, None
        left = budget - self._tokens_so_far()
        asked = self._sampling.get("max_tokens")
        if asked is not None and asked <= left:
            return self._sampling, None
        return {**self._sampling, "max_tokens": left}, left

    def _may_call(self, count: int) -> bool:
        limit, recorder = self._world.limits.max_tool_calls, self._recorder
        if limit is not None and recorder.tool_calls + count > limit:
            recorder.end("truncated", "max_tool_calls")
            return False
        recorder.tool_calls += count
        return True


def _completed_tokens(completion: Completion) -> int:
    return completion.usage.completion_tokens if completion.usage else 0
