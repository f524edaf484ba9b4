"""WebGym's trajectory files as plain data: the names are those of its classes, the values are dicts, lists, texts and numbers.

    {"trajectories": [[step, …], …], "metadata": {…}}
    step = {"observation": {…}, "action": {…}, "response": {…}, "reward": {…}, "same_as_next_screenshot": false}

What a record of ours knows beyond that stands under `windrow`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import PurePosixPath

from windrow.integrations.webgym.metrics import ANSWER
from windrow.integrations.webgym.rows import (
    DIFFICULTY,
    NAME,
    WEBSITE,
    difficulty_of,
    facts_of,
    is_row,
    limits_of,
)
from windrow.integrations.webgym.steps import Page, Taken, outcome_of, steps_of
from windrow.records import Json, Rollout
from windrow.store.blobs import FOLDER
from windrow.store.manifest import Manifest

Trajectory = list[dict[str, Json]]


class TrajectoryMaker:
    """Makes trajectories of the rollouts of a run. `image_root` is prepended to the paths of screenshots, which are
    otherwise relative to the run directory.
    """

    def __init__(self, manifest: Manifest, *, image_root: str = "") -> None:
        of = manifest.behaviour.of
        self._forced = (of.get("limits") or {}).get("max_turns") if of.get("limits_over_rows") else None
        settings = (of.get("env") or {}).get("settings") or {}
        self._thousandths = settings.get("coordinates") == "thousandths"
        self._image_root = image_root
        self._count = 0

    def trajectory(self, rollout: Rollout) -> Trajectory:
        taken = steps_of(rollout, thousandths=self._thousandths)
        task = self._task(rollout)
        images = [step.page.image for step in taken]
        steps = [self._step(rollout, task, step, final=step is taken[-1]) for step in taken]
        for number, step in enumerate(steps):
            after = images[number + 1] if number + 1 < len(images) else None
            step["same_as_next_screenshot"] = after is not None and after == images[number]
        if steps:
            steps[0]["trajectory_metadata"] = {"keypoint_step_ids": [], "windrow": _of_rollout(rollout)}
        self._count += 1
        return steps

    def _task(self, rollout: Rollout) -> dict[str, Json]:
        row = rollout.task.data or {}
        is_webgym_row = is_row(row)
        limits = limits_of(row, rollout.task.split) if is_webgym_row else {}
        return {
            "task_name": row.get(NAME) or row.get("instruction") or row.get("prompt"),
            "domain": row.get("domain"),
            "subdomain": row.get("subdomain"),
            "website": row.get(WEBSITE) or row.get("start_url") or row.get("url"),
            "difficulty": difficulty_of(row) if is_webgym_row else row.get(DIFFICULTY),
            "evaluator_reference": list(facts_of(row)) if is_webgym_row else row.get("facts"),
            "reference_answer": row.get("definite_answer"),
            "attempt_level": 0,
            "task_id": row.get("task_id", rollout.task.key),
            "max_steps": self._forced or limits.get("max_turns"),
            "trajectory_index": self._count,
        }

    def _step(self, rollout: Rollout, task: dict[str, Json], step: Taken, *, final: bool) -> dict[str, Json]:
        return {
            "observation": {
                "task": task,
                "image_path": self._image(step.page),
                "ac_tree": step.page.text,
                "page_metadata": {"title": step.page.title, "url": step.page.url},
            },
            "action": {
                "action": {"key": step.key, "arguments": step.arguments},
                "action_string": _words(step),
            },
            "response": {"raw_response": step.reply, "answering_tokens": {}, "raw_prompt": ""},
            "reward": {
                "reward": step.reward,
                "evaluation": _evaluation(rollout) if final else "",
                "is_blocked": step.blocked,
                "submit": step.key == ANSWER,
                "submission_judgment": None,
            },
            "windrow": {"turn": step.turn, "problem": step.failed},
        }

    def _image(self, page: Page) -> str | None:
        if page.image is None:
            return None
        return str(PurePosixPath(self._image_root, FOLDER, page.image[:2], page.image[2:]))


def metadata_of(manifest: Manifest, iteration: int, rank: int | None) -> dict[str, Json]:
    """Return the metadata of a trajectory file. The time is the run's, so that the same run gives the same bytes."""
    config = manifest.config
    return {
        "solution_model": (config.get("policy") or {}).get("model"),
        "judge_model": (config.get("judge") or {}).get("model"),
        "dataset_file": (config.get("tasks") or {}).get("path"),
        "split": manifest.split,
        "server_size": config.get("concurrency"),
        "max_steps": (config.get("limits") or {}).get("max_turns"),
        "timestamp": datetime.fromtimestamp(manifest.created_at, UTC).isoformat(),
        "iteration": iteration,
        "windrow": {
            "version": manifest.windrow,
            "source": manifest.source,
            "behaviour": manifest.behaviour.hash,
            "rank": rank,
        },
    }


def _of_rollout(rollout: Rollout) -> dict[str, Json]:
    return {
        "id": rollout.id,
        "attempt": rollout.attempt,
        "group": rollout.group,
        "sample": rollout.sample,
        "outcome": outcome_of(rollout),
        "grade": rollout.grade,
        "model": rollout.policy.model,
        "tokens": [rollout.usage.prompt_tokens, rollout.usage.completion_tokens],
    }


def _words(step: Taken) -> str:
    argument_text = ", ".join(f"{name}={value!r}" for name, value in step.arguments.items())
    return f"{step.key}({argument_text})"


def _evaluation(rollout: Rollout) -> str:
    """Return the scorers' verdicts, one line each; or the reason why there is no reward."""
    if rollout.reward is None:
        why = rollout.error.message if rollout.error is not None else f"grade: {rollout.grade}"
        return f"not judged ({why})"
    return "\n".join(f"{name}: {score.value:g}" for name, score in rollout.scores.items())
