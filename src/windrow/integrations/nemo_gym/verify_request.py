"""The body of a `/verify` request: an episode as its parameters and the response that its messages make."""

from __future__ import annotations

from windrow.envs import Episode
from windrow.integrations.nemo_gym.results import result_row
from windrow.integrations.nemo_gym.rows import PARAMS
from windrow.records import Json, PolicyRecord, Rollout, Timing, Usage

_FIELDS = (PARAMS, "response")


def verify_request(episode: Episode) -> dict[str, Json]:
    """The parameters and the response of an episode, without any verdict."""
    usages = [turn.usage for turn in episode.turns if turn.usage is not None]
    rollout = Rollout(
        id=episode.task.digest,
        attempt=1,
        group="",
        sample=0,
        episode=None,
        seat=None,
        seats=None,
        seed=0,
        task=episode.task,
        env="",
        agent="",
        policy=PolicyRecord(model="", sampling={}, fingerprint=""),
        tools=(),
        status=episode.status,
        stop=episode.stop,
        error=None,
        reason=None,
        grade="none",
        grading=None,
        reward=None,
        scores={},
        metrics={},
        state=episode.state,
        messages=episode.messages,
        turns=episode.turns,
        usage=sum(usages, Usage()),
        timing=Timing(started_at=0.0),
        capture="text",
    )
    result = result_row(rollout)
    return {key: result[key] for key in _FIELDS}
