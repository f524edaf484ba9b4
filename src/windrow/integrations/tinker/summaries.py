"""A rollout as a line of tinker-cookbook's rollout summaries, schema version 1: one trajectory, a step for each call of the policy.

`total_reward` is the sum of the steps' rewards and `final_reward`: a step has what the environment gave for it, the end what the scorers gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from windrow.integrations.tinker.traces import trace_of
from windrow.records import Grading, Json, Rollout, Stop, Turn, is_whole_number, lowest_version
from windrow.util.token_contexts import ID_BYTES

SCHEMA_VERSION = 1
PARSE_ERROR, PARSE_ERROR_MASKED = "parse_error", "parse_error_masked"
STOPS: dict[Stop, str] = {  # their reasons; error and cancelled have none
    "answered": "completed",
    "env_done": "completed",
    "tool_stopped": "tool_stopped",
    "parse_error": "parse_error",
    "max_turns": "max_turns",
    "max_episode_tokens": "max_tokens",
    "length": "max_tokens",
    "max_tool_calls": "max_tool_calls",
    "context_overflow": "context_overflow",
    "timeout": "rollout_timeout",
}


class Form(NamedTuple):
    """The values that all lines of an export share, and the level of detail."""

    split: str | None = None
    iteration: int = 0
    trace: bool = True
    mask_parse_errors: bool = False


def summary_line(rollout: Rollout, form: Form, gradings: Sequence[Grading] = ()) -> dict[str, Json]:
    """Raises IndexError for a turn that names messages which are not there."""
    final = sum(score.weight * score.value for score in rollout.scores.values())
    return {
        "schema_version": SCHEMA_VERSION,
        "split": form.split or split_of(rollout.task.split),
        "iteration": form.iteration,
        **places(rollout),
        "tags": [rollout.task.source, *rollout.task.tags],
        "sampling_client_step": _step_of(rollout.policy.version or lowest_version(rollout.turns)),
        "total_reward": rollout.reward,
        "final_reward": None if rollout.reward is None else float(final),
        "trajectory_metrics": rollout.metrics
        | {f"score/{name}": score.value for name, score in rollout.scores.items()},
        "steps": _steps(rollout, form, gradings),
        "final_ob_len": 0,  # nothing is rendered after the last reply
        "windrow": _origin(rollout),
    }


def places(rollout: Rollout) -> dict[str, int]:
    """Return the group and trajectory numbers of a rollout, by task and sample; they do not depend on the rest of the
    export.
    """
    seats = rollout.seats or 1
    return {"group_idx": rollout.task.index, "traj_idx": rollout.sample * seats + (rollout.seat or 0)}


def split_of(split: str | None) -> str:
    return "train" if split in (None, "train") else f"eval/{split}"


def is_masked(turn: Turn, form: Form) -> bool:
    return form.mask_parse_errors and turn.parse_error is not None


def _steps(rollout: Rollout, form: Form, gradings: Sequence[Grading]) -> list[dict[str, Json]]:
    turns = [turn for turn in rollout.turns if turn.role == "agent"]
    steps = []
    for step_index, turn in enumerate(turns):
        last = step_index == len(turns) - 1
        ob_len, ac_len = _lengths(turn)
        step: dict[str, Json] = {
            "step_idx": step_index,
            "ob_len": ob_len,
            "ac_len": ac_len,
            "reward": 0.0 if turn.reward is None else turn.reward,
            "episode_done": last and rollout.status in ("completed", "truncated"),
            "metrics": _metrics(rollout, turn, form, last=last),
            "logs": {} if turn.parse_error is None else {PARSE_ERROR: turn.parse_error},
            "stop_reason": _stop_reason(turn),
        }
        if form.trace:
            step["trace"] = trace_of(rollout, turn, last=last, gradings=gradings)
        steps.append(step)
    return steps


def _stop_reason(turn: Turn) -> str | None:
    """Return the sampler's reason; a call that gave no reply has none."""
    if turn.writes is None and turn.tokens is None and turn.usage is None:
        return None
    return "length" if turn.finish == "length" else "stop"


def _metrics(rollout: Rollout, turn: Turn, form: Form, *, last: bool) -> dict[str, float]:
    step_metrics = dict(turn.metrics or {})
    if turn.parse_error is not None:
        step_metrics[PARSE_ERROR] = 1.0
    if is_masked(turn, form):
        step_metrics[PARSE_ERROR_MASKED] = 1.0
    if last and rollout.stop in STOPS:
        step_metrics[f"stop/{STOPS[rollout.stop]}"] = 1.0
        if turn.finish == "length":
            step_metrics["max_tokens_reached"] = 1.0
        if rollout.stop == "context_overflow":
            step_metrics["context_overflow"] = 1.0
    return step_metrics


def _lengths(turn: Turn) -> tuple[int | None, int | None]:
    """Return the lengths of prompt and reply in tokens: as captured, or else as the server counted, or else unknown.

    A call without a reply counted nothing: 0 and 0, as in their own transition for a prompt that is too long.
    """
    if turn.tokens is not None:
        return turn.tokens.prefix + len(turn.tokens.prompt_new) // ID_BYTES, len(
            turn.tokens.output
        ) // ID_BYTES
    if turn.usage is not None:
        return turn.usage.prompt_tokens, turn.usage.completion_tokens
    return (0, 0) if turn.writes is None else (None, None)


def _step_of(version: str | None) -> int | None:
    return int(version) if version is not None and is_whole_number(version) else None


def _origin(rollout: Rollout) -> dict[str, Json]:
    """Return the values that their schema has no field for."""
    return {
        "rollout_id": rollout.id,
        "attempt": rollout.attempt,
        "group": rollout.group,
        "sample": rollout.sample,
        "seat": rollout.seat,
        "task": rollout.task.key,
        "model": rollout.policy.model,
        "status": rollout.status,
        "stop": rollout.stop,
        "grade": rollout.grade,
        "error": None
        if (error := rollout.error) is None
        else {"owner": error.owner, "kind": error.kind, "message": error.message},
    }
