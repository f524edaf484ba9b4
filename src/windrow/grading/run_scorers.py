"""Choosing the scorers of a run: those that it names, else those that its environments bring; and their fingerprint.

An environment brings scorers (`Env.scorers`) and may score groups itself (`Env.score_group`). Rows with an `answer`
in the environment `problem` are scored by `number` or `exact`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from windrow.config import ScorerConfig
from windrow.engine.components import Components
from windrow.engine.models import Model
from windrow.envs import BaseEnv, Env
from windrow.envs.scoring import AnyScorer, GroupScorer
from windrow.errors import UsageError
from windrow.grading.scorers import ENV_SCORER, configured_scorer
from windrow.grading.user_functions import scorer_of
from windrow.identity import fingerprint
from windrow.records import Json
from windrow.registry import name_of
from windrow.store.manifest import Fingerprint
from windrow.tasks.row_problems import RowProblems, list_problems

DEFAULT_SCORERS_ENV = "problem"


class RunScorers(msgspec.Struct, frozen=True, kw_only=True):
    """The scorers of a run, the models that each of them asks, by scorer and name, and the hash of their fingerprint."""

    scorers: tuple[AnyScorer, ...] = ()
    models: dict[str, dict[str, Model]] = {}
    fingerprint: str | None = None


def named_scorers(
    configs: Iterable[ScorerConfig], functions: Iterable[Callable[..., Any]], run_env: type[BaseEnv]
) -> tuple[AnyScorer, ...]:
    """The scorers that a run names, then those that a program gives as functions."""
    return check_names_differ(
        (
            *(configured_scorer(config, None, run_env) for config in configs),
            *(scorer_of(function) for function in functions),
        )
    )


def check_names_differ(scorers: Iterable[AnyScorer]) -> tuple[AnyScorer, ...]:
    """Return the scorers; refuse two of the same name, since a verdict is known by its scorer's name."""
    scorers = tuple(scorers)
    names = [scorer.name for scorer in scorers]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"scorer {name!r} is named twice")
    return scorers


def env_scorers(envs: Iterable[type[BaseEnv]], components: Components) -> list[AnyScorer]:
    """The scorers that the environments of a run's rows bring. Only the run's own environment has settings."""
    by_name: dict[str, AnyScorer] = {}
    for env in sorted(envs, key=name_of):
        settings = components.env_settings if env is components.env else {}
        for config in env.scorers(settings):
            scorer = configured_scorer(config, name_of(env), components.env)
            if config.name in by_name:
                raise UsageError(
                    f"the environments {by_name[config.name].env!r} and {name_of(env)!r} both bring a scorer "
                    f"{config.name!r}; name the scorers with --scorer"
                )
            by_name[config.name] = scorer
    return list(by_name.values())


def unused_settings_notes(components: Components) -> tuple[str, ...]:
    """What to tell the user when scorers are named and the environment's settings were for a scorer of its own."""
    if not components.env_settings or components.env.identity(components.env_settings):
        return ()
    return tuple(
        f"env.settings are for the scorer {config.name!r}, whose place the named ones take; they are not used"
        for config in components.env.scorers(components.env_settings)
    )


def env_group_scorers(envs: Iterable[type[BaseEnv]], components: Components) -> list[AnyScorer]:
    """The scorer of the environment that scores groups itself, if there is one; two of them are refused."""
    scoring = sorted((env for env in envs if _scores_groups(env)), key=name_of)
    if len(scoring) > 1:
        raise UsageError(
            f"the environments {name_of(scoring[0])!r} and {name_of(scoring[1])!r} both score groups; collect them "
            f"into runs of their own"
        )
    return [
        configured_scorer(
            ScorerConfig(name=ENV_SCORER, settings=components.env_settings if env is components.env else {}),
            name_of(env),
            components.env,
        )
        for env in scoring
    ]


def answer_scorer(
    rows: int, all_numbers: bool, unanswered: RowProblems, run_env: type[BaseEnv]
) -> tuple[list[AnyScorer], tuple[str, ...]]:
    """The scorer of rows with answers, and what to tell the user about the choice."""
    if not rows:
        return [], ()
    if len(unanswered) == rows:
        return [], ("no row has an 'answer': rollouts will not be graded (grade: none)",)
    if unanswered:
        raise UsageError(
            f"some rows have an 'answer' and some do not. {list_problems(unanswered)}\n"
            f"Add the answers, or name scorers of your own with --scorer module:function"
        )
    name, why = (
        ("number", "every answer is a number") if all_numbers else ("exact", "not every answer is a number")
    )
    scorer = configured_scorer(ScorerConfig(name=name), DEFAULT_SCORERS_ENV, run_env)
    return [scorer], (f"scorer: {name} ({why}; --scorer names another)",)


def scorer_config(scorer: AnyScorer) -> ScorerConfig:
    """The configuration from which another process can make the same scorer."""
    config: ScorerConfig | None = getattr(scorer, "config", None)
    return config or ScorerConfig(name=scorer.name)


def after_commit_scorers(scorers: Iterable[AnyScorer]) -> list[str]:
    """The names of the scorers that judge after the commit."""
    return [scorer.name for scorer in scorers if isinstance(scorer, GroupScorer) or scorer.after_commit]


def grading_fingerprint(
    scorers: Sequence[AnyScorer], models: Mapping[str, Mapping[str, Model]]
) -> Fingerprint | None:
    """The fingerprint of everything that shapes verdicts: the scorers with their weights and settings, and their judges;
    nothing volatile."""
    if not scorers:
        return None
    envs = {scorer.env for scorer in scorers}
    entries = [_entry(scorer, models.get(scorer.name, {})) for scorer in scorers]
    if len(envs) > 1:
        for scorer, entry in zip(scorers, entries, strict=True):
            entry["env"] = scorer.env
    of: dict[str, Json] = {"scorers": entries, "env": envs.pop() if len(envs) == 1 else None}
    return Fingerprint(fingerprint(of), of)


def _entry(scorer: AnyScorer, models: Mapping[str, Model]) -> dict[str, Json]:
    config = scorer_config(scorer)
    identity = getattr(scorer, "identity", dict)
    entry: dict[str, Json] = {
        "name": scorer.name,
        "weight": config.weight,
        "settings": identity(config.settings),
        "version": getattr(scorer, "version", None),
    }
    if isinstance(scorer, GroupScorer):
        entry["unit"] = "group"
    if models:
        entry["models"] = {
            name: {"policy": model.policy.identity(), "sampling": model.sampling}
            for name, model in models.items()
        }
    return entry


def _scores_groups(env: type[BaseEnv]) -> bool:
    return env.score_group.__func__ is not Env.score_group.__func__  # type: ignore[attr-defined]
