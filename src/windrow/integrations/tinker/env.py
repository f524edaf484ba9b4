"""`tinker`: an unmodified `EnvGroupBuilder` of tinker-cookbook, played by the run's policy and recorded.

`tinker:my_module:make_builders` is a source of rows, one per builder. The factory is given the renderer that its builders
are to use; `-k` takes the place of their group size. Each sample plays the first environment of a group of its own, as
tinker-cookbook's retries do. Step rewards, metrics and logs are the environment's; the builder's group reward is asked of a
group of one. Needs tinker-cookbook in the same environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from windrow.envs.base import Env, Episode, Observation, Ranges, Step
from windrow.errors import EnvError
from windrow.integrations.tinker.builders import NAME, builders_of
from windrow.records import Json, Message, Score, Stop, Task
from windrow.tasks.trust import Demand, module_demands
from windrow.tools import ToolResult

FINAL_REWARD = "final_reward"
STOP_KEY = "stop/"
# Their reasons as ours; any other end of theirs is env_done.
_STOPS: Mapping[str, Stop] = {
    "max_turns": "max_turns",
    "max_tokens": "max_episode_tokens",
    "context_overflow": "context_overflow",
    "parse_error": "parse_error",
    "max_tool_calls": "max_tool_calls",
    "tool_stopped": "tool_stopped",
}


class TinkerEnv(Env):
    name = NAME
    version = 1

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        if settings:
            raise ValueError(f"{cls.name!r} has no setting {next(iter(settings))!r}; the builder says it all")

    @classmethod
    def demands(cls, row: Mapping[str, Json]) -> Iterator[Demand]:
        if isinstance(row.get("factory"), str):
            yield from module_demands(row["factory"], "factory")

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        factory, index = row.get("factory"), row.get("index")
        if not isinstance(factory, str) or type(index) is not int or index < 0:
            raise ValueError(
                "'factory' must be MODULE:FACTORY and 'index' the number of its builder, from 0 on"
            )
        if index >= (count := len(builders_of(factory)[1])):
            raise ValueError(f"'index' is {index}, and {factory} gives {count} builders")

    async def reset(self, task: Task) -> Observation:
        self._renderer, builders = builders_of(task["factory"])
        self._builder = builders[task["index"]]
        self._transitions: list[Any] = []
        self._seen: list[Json] = []  # the conversation as the policy was last shown it
        self._count = 0  # of recorded messages
        self._shown_from: int | None = None  # where a history that was rewritten begins
        self._env = (await self._builder.make_envs())[0]
        first = await self._env.initial_observation()
        if not isinstance(first, tuple):
            raise EnvError("the first prompt is over the environment's own budget", retryable=False)
        self._observation = first[0]
        return Observation(self._news(None))

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        self._count += 1
        result = await self._act(reply, cut=False)
        metrics = {key: float(value) for key, value in result.metrics.items() if not key.startswith(STOP_KEY)}
        wrong = "the environment could not read the reply" if metrics.get("parse_error") else None
        ended = [key.removeprefix(STOP_KEY) for key in result.metrics if key.startswith(STOP_KEY)]
        done: bool = result.episode_done
        return Step(
            messages=[] if done else self._news(reply),
            reward=float(result.reward),
            done=done,
            stop=_STOPS.get(ended[0]) if done and ended else None,
            metrics=metrics or None,
            info=dict(result.logs) or None,
            parse_error=wrong,
        )

    def window(self, messages: Sequence[Message]) -> Ranges:
        return ((self._shown_from or 0, len(messages)),)

    async def score(self, episode: Episode) -> Score | None:
        """The builder's reward; before it, what the environment says to a last reply that was cut off."""
        reward = 0.0
        last = episode.messages[-1]
        if episode.stop in ("length", "max_episode_tokens") and last.origin == "policy":
            reward += float((await self._act(last, cut=True)).reward)
        if not self._transitions:
            return None
        from tinker_cookbook.rl.types import Trajectory

        trajectory = Trajectory(transitions=self._transitions, final_ob=self._observation)
        [(group_reward, metrics)] = await self._builder.compute_group_rewards([trajectory], [self._env])
        numbers = {name: float(value) for name, value in metrics.items()}
        return Score({FINAL_REWARD: (reward + float(group_reward), 1.0)}, metrics=numbers or None)

    async def close(self) -> None:
        if hasattr(self, "_builder"):
            await self._builder.cleanup()

    async def _act(self, reply: Message, *, cut: bool) -> Any:
        from tinker_cookbook.completers import TokensWithLogprobs
        from tinker_cookbook.rl.types import Transition

        action = self._renderer.said(reply, cut=cut)
        stop_reason: Any = "length" if cut else "stop"
        result = await self._env.step(action, extra={"stop_reason": stop_reason})
        self._transitions.append(
            Transition(
                ob=self._observation,
                ac=TokensWithLogprobs(tokens=action, maybe_logprobs=None, stop_reason=stop_reason),
                reward=result.reward,
                episode_done=result.episode_done or cut,
                metrics=result.metrics,
                logs=result.logs,
            )
        )
        self._observation = result.next_observation
        return result

    def _news(self, reply: Message | None) -> list[dict[str, Json]]:
        """The messages of the observation that the policy has not seen. A history that was rewritten is all new."""
        prompt: list[dict[str, Json]] = self._renderer.prompt(self._observation)
        before = [*self._seen, *([] if reply is None else [{"role": "assistant", "content": reply.text}])]
        self._seen = prompt
        if prompt[: len(before)] == before:
            news = prompt[len(before) :]
        else:
            news, self._shown_from = prompt, self._count
        self._count += len(news)
        return news
