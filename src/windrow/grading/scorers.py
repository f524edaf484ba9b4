"""Scorers by name: `number`, `exact`, …, or a user's own `module:function`.

A user's scorer is `(task, reply) -> float | dict | Score`, plain or async. A plain one runs in a thread, so that it
cannot hold up the run, and so does an async one that was found to; with the attribute `after_commit = True` it runs once the rollout is on disk.
One that takes `ctx` may ask a judge (`await ctx.ask(…)`), and runs after the commit too. With `unit = "group"` it
takes a group instead: `(group) -> {(id, attempt): float | Score | None}`. One that takes `completions` or
`completion_ids` is a trainer's reward function, and judges a group too.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping

from windrow.config import ScorerConfig, expand, nearest
from windrow.envs import BaseEnv, Episode, ScoreContext, find_env
from windrow.envs.scoring import AnyScorer, Verdict
from windrow.errors import ScorerError, UsageError
from windrow.grading import answers
from windrow.grading.base import BaseScorer
from windrow.grading.math import check_installed, math_judge
from windrow.grading.pattern_processes import regex_judge
from windrow.grading.user_functions import EnvGroupScorer, scorer_of
from windrow.identity import digest
from windrow.records import Json, RecordedScore
from windrow.registry import name_of, resolve

Judge = Callable[[str, Json, Mapping[str, Json]], answers.AnswerMatch | Awaitable[answers.AnswerMatch]]

BUILT_IN: dict[str, tuple[Judge, tuple[str, ...]]] = {
    "exact": (answers.exact, ()),
    "contains": (answers.contains, ()),
    "regex": (regex_judge, ("pattern",)),
    "choice": (answers.choice, ()),
    "number": (answers.number, ("tolerance",)),
    "math": (math_judge, ("cpu_s",)),
}
# Scorers that are classes, imported when they are named: module:Class(name, weight, settings).
CLASSES = {
    "rubric": "windrow.grading.rubric:RubricScorer",
    "preference": "windrow.grading.preference:PreferenceScorer",
    "relative": "windrow.grading.relative:RelativeScorer",
    "best-of-n": "windrow.grading.best_of_n:BestOfN",
    "teacher": "windrow.grading.teacher:TeacherScorer",
}
ENV_SCORER = "env"  # how the group scores of an environment itself are named
FORMAT_WEIGHT = "format_weight"
MAX_ANSWER_CHARS = 200


class AnswerScorer(BaseScorer):
    """Compares the last reply with the row's `answer`: correctness under the scorer's name, form as NAME.format.

    The answer that it read in the reply is the evidence.
    """

    version = 1
    needs_answer = True
    only_reads = True

    def __init__(self, name: str, judge: Judge, weight: float, settings: Mapping[str, Json]) -> None:
        super().__init__(name, weight, settings)
        self._judge = judge
        self._format_name = f"{name}.format"
        self._format_weight = float(settings.get(FORMAT_WEIGHT, 0.0))

    async def judge(self, episode: Episode, ctx: ScoreContext) -> Verdict:
        answer = episode.task.get("answer")
        if answer is None:
            raise ScorerError(f"scorer {self.name!r} needs an 'answer' in the task row", retryable=False)
        judged = self._judge(episode.reply, answer, self.settings)
        match = judged if isinstance(judged, answers.AnswerMatch) else await judged
        evidence = {"answer": _short(match.final_answer)} if match.looks_for_answer else None
        scores = {
            self.name: RecordedScore(
                value=float(match.correct), weight=self.weight, evidence=evidence, scorer=self.name
            ),
            self._format_name: RecordedScore(
                value=float(match.well_formed), weight=self._format_weight, scorer=self.name
            ),
        }
        return Verdict(scores, {})


def _short(answer: str | None) -> str | None:
    """A long answer is cut; its digest still tells it from other answers with the same beginning."""
    if answer is None or len(answer) <= MAX_ANSWER_CHARS:
        return answer
    return f"{answer[:MAX_ANSWER_CHARS]}… {digest(answer)}"


def make_scorer(config: ScorerConfig) -> AnyScorer:
    settings = expand(config.settings, where=f"scorer {config.name!r}")
    if config.isolate and (config.name in BUILT_IN or config.name in CLASSES):
        raise UsageError(f"scorer {config.name!r}: 'isolate' is for functions of your own (module:function)")
    if config.name in BUILT_IN:
        judge, known = BUILT_IN[config.name]
        _check_settings(config.name, settings, (*known, FORMAT_WEIGHT))
        if judge is math_judge:
            check_installed()
        return AnswerScorer(config.name, judge, config.weight, settings)
    part = resolve("scorer", CLASSES.get(config.name, config.name), {**BUILT_IN, **CLASSES})
    if isinstance(part, type) and issubclass(part, BaseScorer):
        if config.isolate:
            raise UsageError(f"scorer {config.name!r} is a class; 'isolate' is for functions")
        try:
            scorer: AnyScorer = part(config.name, config.weight, settings)  # type: ignore[assignment]
        except ValueError as problem:
            raise UsageError(f"scorer {config.name!r}: {problem}") from None
        return scorer
    if not callable(part):
        raise UsageError(f"scorer {config.name!r} is not a function (task, reply) -> float | dict | Score")
    return scorer_of(part, name=config.name, weight=config.weight, settings=settings, isolate=config.isolate)


def only_compares(name: Json, settings: Json) -> bool:
    """Whether a scorer does nothing but compare a reply with an answer: it imports, starts, reads and asks nothing that
    its name or its settings say."""
    values = settings.values() if isinstance(settings, Mapping) else ()
    return name in BUILT_IN and not any(isinstance(value, str) and "${" in value for value in values)


def configured_scorer(config: ScorerConfig, env: str | None, run_env: type[BaseEnv]) -> AnyScorer:
    """The scorer of this name, for the episodes of `env` alone, if that is given; `run_env` is the run's environment."""
    if config.name == ENV_SCORER:
        scorer: AnyScorer = EnvGroupScorer(
            run_env if env in (None, name_of(run_env)) else find_env(str(env)), config.settings
        )
    else:
        scorer = make_scorer(config)
        scorer.env = env
    scorer.config = config
    return scorer


def _check_settings(name: str, settings: Mapping[str, Json], known: tuple[str, ...]) -> None:
    for key, value in settings.items():
        if key not in known:
            raise UsageError(f"scorer {name!r} has no setting {key!r}{nearest(key, known)}")
        if key == "pattern":
            try:
                re.compile(value)
            except (re.error, TypeError) as problem:
                raise UsageError(f"scorer {name!r}: the pattern does not compile: {problem}") from None
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"scorer {name!r}: {key} must be a number, found {value!r}")
        elif key == "cpu_s" and value < 1:
            raise UsageError(f"scorer {name!r}: {key} must be at least 1 second, found {value!r}")
