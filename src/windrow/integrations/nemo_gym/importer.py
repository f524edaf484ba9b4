"""`windrow import --from nemo-gym`: the rollouts and failures that NeMo Gym has written, as attempts of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from windrow.collecting.importing import ImportedAttempt, Importer, UnreadableLine
from windrow.engine.context import RunContext
from windrow.engine.episode_scoring import EnvScore, score_episode
from windrow.engine.external_episode import record_external_episode
from windrow.engine.record_building import build_rollout
from windrow.engine.recorder import Recorder
from windrow.envs import Episode
from windrow.envs.opening import opening
from windrow.errors import EnvError, UsageError
from windrow.integrations.nemo_gym.episodes import JUDGE_FAILED, NEVER_JUDGED, finite, played_of
from windrow.integrations.nemo_gym.files import files_of
from windrow.integrations.nemo_gym.results import REWARD, STATE, read_result, with_answer
from windrow.integrations.nemo_gym.rollout_lines import read_lines
from windrow.integrations.nemo_gym.rows import FAILURE_CLASS, agent_of, has_input, opening_of, params_of
from windrow.records import Json, PolicyRecord, Rollout, Score, Task
from windrow.tasks.plan import Slot
from windrow.util.freeze import Freezer


def open_files(rollouts: str, *, inputs: str | None = None, failures: str | None = None) -> NemoGymImporter:
    """The files of a run: those beside the rollouts, unless others are named. The inputs must exist."""
    path = Path(rollouts)
    beside = files_of(path)
    inputs_path = Path(inputs) if inputs is not None else beside.inputs
    failures_path = Path(failures) if failures is not None else beside.failures
    if not path.exists():
        raise UsageError(f"there is no file {path}; give the rollouts that NeMo Gym wrote")
    if not inputs_path.exists():
        raise UsageError(
            f"there is no file {inputs_path}; give the inputs of {path.name} with --inputs FILE: without them nobody knows "
            f"which rollouts are missing"
        )
    if failures is not None and not failures_path.exists():
        raise UsageError(f"there is no file {failures_path}; leave --failures out if nothing failed")
    return NemoGymImporter(inputs_path, [*([failures_path] if failures_path.exists() else []), path])


class NemoGymImporter(Importer):
    """Reads each file up to its size at the start: NeMo Gym may still be writing."""

    def __init__(self, inputs: Path, files: list[Path]) -> None:
        self.inputs = inputs
        self._sizes = {path: path.stat().st_size for path in files}

    def parts(self) -> Iterator[Iterator[ImportedAttempt | UnreadableLine]]:
        for path, size in self._sizes.items():
            yield read_lines(path, size)

    def has_other_input(self, attempt: ImportedAttempt, task: Task) -> bool:
        of_attempt, of_row = params_of(attempt.content).get("input"), params_of(task.data or {}).get("input")
        return bool(of_attempt and of_row and of_attempt != of_row)

    async def rollout(
        self, attempt: ImportedAttempt, slot: Slot, context: RunContext, *, unjudged: bool
    ) -> Rollout:
        """As it would have been recorded, had the result come just now.

        All that the line has is kept, whatever the run captures. The run's scorers judge it as any other; where there
        are none, the written reward counts. A result that no judge could judge stays unjudged if `unjudged`, else it
        has failed.
        """
        result: dict[str, Json] = Freezer().value(finite(attempt.content), "the line")
        setup = context.episode_setup(slot.task)
        recorder = Recorder(
            slot,
            env=setup.env_name,
            agent=setup.agent_name,
            policy=PolicyRecord(
                model=context.policy.model,
                sampling=context.sampling(slot.task),
                fingerprint=context.behaviour,
            ),
            grading=context.grading,
            capture="tokens",
        )
        recorder.add(_opening(slot, context, result), "task")
        played = played_of(result, slot.task, recorder.messages, agent=agent_of(result) or setup.agent_name)
        judge_failed = result.get(FAILURE_CLASS) == JUDGE_FAILED and played.error is None
        if judge_failed and not (unjudged and setup.scorers):
            problem = EnvError(played.state[STATE].get(NEVER_JUDGED) or JUDGE_FAILED, kind=JUDGE_FAILED)
            problem.owner = "scorer"
            played = msgspec.structs.replace(played, error=problem)
        record_external_episode(recorder, played)
        if recorder.outcome.scorable:
            await score_episode(context, setup, recorder, None if setup.scorers else _written_reward(result))
        return _dated(_with_rest(build_rollout(recorder), result, slot.task), result)


def _written_reward(result: dict[str, Json]) -> EnvScore:
    """Return the reward in the result, as the environment's own."""

    async def own_score(episode: Episode) -> Score:
        return Score({REWARD: (result[REWARD], 1.0)})

    return own_score


def _opening(slot: Slot, context: RunContext, result: dict[str, Json]) -> list[dict[str, Any]]:
    """Return the first messages that the model was shown: those of the result, or else those of the row."""
    return opening_of(result) if has_input(result) else opening(slot.task, context.prompt)


def _with_rest(rollout: Rollout, result: dict[str, Json], task: Task) -> Rollout:
    """Return the rollout with the parts of the result that have no other field. They are compared with the finished
    record, because the run's sampling is written with its rows, and the result's row may lack it.
    """
    if not rollout.policy.sampling:
        return rollout
    state = rollout.state.get(STATE, {}) if isinstance(rollout.state, dict) else {}
    try:
        fields = read_result(result, task.data or {}).fields
    except ValueError:
        return rollout
    others = {key: value for key, value in state.items() if key not in ("fields", "rest")}
    exact = with_answer(msgspec.structs.replace(rollout, task=task), result, fields)
    rest = exact.state[STATE] if exact.state else {}
    return msgspec.structs.replace(rollout, state=Freezer().value({STATE: {**rest, **others}}, "state"))


def _dated(rollout: Rollout, result: dict[str, Json]) -> Rollout:
    """Return the rollout with the time of its response as its start, if the response has one."""
    response = result.get("response")
    created_at = response.get("created_at") if isinstance(response, dict) else None
    if isinstance(created_at, bool) or not isinstance(created_at, int | float):
        return rollout
    timing = msgspec.structs.replace(rollout.timing, started_at=float(created_at))
    return msgspec.structs.replace(rollout, timing=timing)
