"""Factories for `tinker:MODULE:FACTORY`: builders of tinker-cookbook itself, unmodified."""

from __future__ import annotations

from functools import partial
from typing import Any

from tinker_cookbook.completers import MessageCompleter
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticEnv
from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import GuessNumberDataset
from tinker_cookbook.recipes.multiplayer_rl.twenty_questions.env import TwentyQuestionsEnvGroupBuilder
from tinker_cookbook.rl.problem_env import ProblemGroupBuilder
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset


class Oracle(MessageCompleter):
    async def __call__(self, messages: Any) -> Any:
        return {"role": "assistant", "content": "Yes"}


def sums(renderer: Any) -> list[EnvGroupBuilder]:
    return [
        ProblemGroupBuilder(
            env_thunk=partial(
                ArithmeticEnv, x, 3, renderer, convo_prefix=ArithmeticEnv.standard_fewshot_prefix()
            ),
            num_envs=2,
            dataset_name="arithmetic",
        )
        for x in (4, 5)
    ]


def numbers(renderer: Any) -> RLDataset:
    return GuessNumberDataset(answers=[512, 100], renderer=renderer, batch_size=2, group_size=4)


def questions(renderer: Any) -> EnvGroupBuilder:
    return TwentyQuestionsEnvGroupBuilder(Oracle(), "apple", renderer, 2)


def nothing() -> str:
    return "no builder"
