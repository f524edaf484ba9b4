"""`trl`: rows of token ids, masks and logprobs for TRL's trainers, one JSON object per line, with plain lists.

A row is a training sequence: one per rollout, or several if its prompts did not grow from each other (`segment`).
Every sampled token is trained in exactly one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windrow.errors import UsageError
from windrow.exports.advantages import ADVANTAGES, ALL_THE_SAME
from windrow.exports.base import Example, Exporter, Unfit
from windrow.exports.exact import verified_sequences
from windrow.exports.selection import NOT_GRADED
from windrow.exports.tokens.linking import Merging
from windrow.exports.tokens.sequences import TrainingSequence
from windrow.exports.tokens.teacher import teacher_logprobs
from windrow.policies.wire import decode_object
from windrow.records import Call, Json, Message, Rollout, is_whole_number, lowest_version


class Trl(Exporter):
    """`advantages`: none, grpo, centered or population (its asynchronous worker's), over the graded rollouts of a group.

    `end_of_turn`: ids that end a reply; with them sequences are merged as `windrow tokens --tolerant` does.
    """

    def __init__(self, *, advantages: str = "none", end_of_turn: Sequence[int] = ()) -> None:
        super().__init__()
        if not isinstance(end_of_turn, list | tuple) or any(type(id) is not int for id in end_of_turn):
            raise UsageError(f"end_of_turn {end_of_turn!r:.200}: expected a list of ids, such as [2, 198]")
        self._merging = Merging(tolerant=bool(end_of_turn), end_of_turn=frozenset(end_of_turn))
        if advantages not in ("none", *ADVANTAGES):
            raise UsageError(f"advantages {advantages!r}: expected one of none, {', '.join(ADVANTAGES)}")
        self._advantage = ADVANTAGES.get(advantages)
        self.needs_groups = self._advantage is not None

    def rows(self, example: Example) -> list[dict[str, Json]]:
        rollout = example.rollout
        if rollout.capture != "tokens":
            raise Unfit(f"captured as {rollout.capture} (collect with --capture tokens)")
        sequences = verified_sequences(rollout, self.notes, self._merging)
        if not sequences:
            raise Unfit("with no sampled token")
        extra = self._extra(example)
        return [_row(rollout, sequence) | _teacher(rollout, sequence) | extra for sequence in sequences]

    def _extra(self, example: Example) -> dict[str, Json]:
        """One advantage for all rows of a rollout."""
        if self._advantage is None:
            return {}
        if example.rollout.reward is None:
            raise Unfit(NOT_GRADED)
        if min(example.rewards) == max(example.rewards):
            self.notes[ALL_THE_SAME] += 1
        return {"advantage": self._advantage(example.rollout.reward, example.rewards)}


def _messages(messages: Iterable[Message]) -> list[dict[str, Json]]:
    """The conversation as its reward functions read it; arguments that are no JSON object stay text."""
    return [_message(message) for message in messages]


def _message(message: Message) -> dict[str, Json]:
    row: dict[str, Json] = {"role": message.role, "content": message.content or ""}
    if message.reasoning:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        row["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {"name": call.name, "arguments": _arguments(call)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        row["tool_call_id"] = message.tool_call_id
    return row if message.name is None else {**row, "name": message.name}


def _arguments(call: Call) -> Json:
    arguments = decode_object(call.arguments or "{}")
    return call.arguments if arguments is None else arguments


def _whole(version: str | None) -> int | None:
    return int(version) if version is not None and is_whole_number(version) else None


def _teacher(rollout: Rollout, sequence: TrainingSequence) -> dict[str, Json]:
    """What a teacher gives the same ids, where one was asked."""
    logprobs = teacher_logprobs(rollout.turns, sequence)
    return {} if logprobs is None else {"teacher_logprobs": logprobs[sequence.prompt_length :].tolist()}


def _row(rollout: Rollout, sequence: TrainingSequence) -> dict[str, Json]:
    start = sequence.prompt_length
    return {
        "prompt_ids": sequence.prompt_ids.tolist(),
        "completion_ids": sequence.completion_ids.tolist(),
        "completion_mask": sequence.completion_mask.astype("i1").tolist(),
        "logprobs": sequence.completion_logprobs.tolist(),
        "prompt": _messages(rollout.messages[: len(rollout.messages) - len(rollout.completion)]),
        "completion": _messages(rollout.completion),
        "reward": rollout.reward,
        # null rather than {}: an empty object makes `datasets` read the file with ten digits a number
        "rewards": {name: score.value for name, score in rollout.scores.items()} or None,
        "reward_weights": {name: score.weight for name, score in rollout.scores.items()} or None,
        "metrics": rollout.metrics or None,
        "model_version": _whole(rollout.policy.version or lowest_version(rollout.turns)),
        "rollout_id": rollout.id,
        "segment": sequence.segment,
        "segments": sequence.facts.segments,
        "group": rollout.group,
        "sample": rollout.sample,
        "task": rollout.task.key,
        "model": rollout.policy.model,
        "status": rollout.status,
        "stop": rollout.stop,
        "truncated": sequence.facts.truncated,
        "unanswered_tool_calls": sequence.unanswered_tool_calls,
        "logprob_kind": sequence.logprob_kind,
        "versions": [
            {"start": first - start, "stop": stop - start, "version": version}
            for first, stop, version in sequence.versions
        ],
    }
