"""The recorder: writes one attempt down as it happens.

Everything that an environment, an agent or a policy does reaches the record through here. It is frozen on the way in:
changing a message or a state afterwards does not change the record. `episode_outcome` holds how the episode ended;
`record_building` makes the rollout from a recorder.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import msgspec

from windrow.engine.episode_outcome import EpisodeOutcome
from windrow.engine.message_lookup import Ranges
from windrow.engine.token_deltas import TokenDeltas
from windrow.envs import Act, Step
from windrow.envs.scoring import Verdict
from windrow.errors import PolicyError
from windrow.policies import Completion
from windrow.policies.capture import held, lower
from windrow.policies.wire import decode_object
from windrow.records import (
    OPPONENT,
    Call,
    Capture,
    Json,
    Message,
    Origin,
    PolicyRecord,
    RecordedScore,
    Stop,
    Tokens,
    ToolCall,
    Turn,
    TurnRole,
)
from windrow.tasks.plan import Slot
from windrow.util.freeze import Freezer, number
from windrow.util.token_contexts import BrokenContext, whole_prompt

REWARD = "reward"  # the score of a seat that was rewarded without a turn
MAX_SHOWN_CHARS = 500  # of arguments that cannot be read; the whole text stands in the message
_STOPS = (None, *get_args(Stop))


class PhaseTimer:
    """Adds the seconds between entering and leaving to those of a phase."""

    __slots__ = ("_phase", "_seconds", "_started")

    def __init__(self, seconds: dict[str, float], phase: str) -> None:
        self._seconds = seconds
        self._phase = phase

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._phase] += time.monotonic() - self._started


class Seat(msgspec.Struct, frozen=True):
    """Seat `number` of an episode that has `count` seats."""

    episode: str
    number: int
    count: int


class Recorder:
    """The messages, turns, scores, metrics and times of one attempt, or of one seat of it."""

    def __init__(
        self,
        slot: Slot,
        *,
        env: str,
        agent: str,
        policy: PolicyRecord,
        grading: str | None = None,
        capture: Capture = "text",
        seat: Seat | None = None,
    ) -> None:
        self.slot = slot
        self.seat = seat
        self.env = env
        self.agent = agent
        self.policy = policy
        self.grading = grading
        self.capture = capture
        self.captured = capture  # the lowest level that any reply reached
        self.outcome = EpisodeOutcome()
        self.messages: list[Message] = []
        self.turns: list[Turn] = []
        self.tools: tuple[dict[str, Json], ...] = ()
        self.tool_call_count = 0
        self.scores: dict[str, RecordedScore] = {}
        self.metrics: dict[str, float] = {}
        self.state: Json = None
        self.freezer = Freezer()
        self.phase = "setup"
        self.seconds = dict.fromkeys(("setup", "policy", "env", "tools", "score"), 0.0)
        self.started = time.monotonic()
        self.started_at = time.time()
        self._token_deltas = TokenDeltas()
        self._sampled_tokens = 0  # of all replies, as counted by the server

    @property
    def has_parts(self) -> bool:
        """Whether the content of any message is a list."""
        return self.freezer.parts

    def context_tokens(self) -> int | None:
        """The tokens of the episode so far, each counted once; None if the server did not report usage.

        This is the last context, which holds everything before it. An agent may send less than that: then it is the
        number of sampled tokens, if that is larger.
        """
        if not self.turns:
            return 0
        usage = self.turns[-1].usage
        return (
            None
            if usage is None
            else max(usage.prompt_tokens + usage.completion_tokens, self._sampled_tokens)
        )

    def has_step_rewards(self) -> bool:
        return any(turn.reward is not None for turn in self.turns)

    def reply_of(self, turn: int) -> Message | None:
        """The reply of this turn; None if there is no such turn or its call failed."""
        message_index = self.turns[turn].writes if 0 <= turn < len(self.turns) else None
        return None if message_index is None else self.messages[message_index]

    # -- what is shown

    def timed(self, phase: str) -> PhaseTimer:
        """Enter `phase`: the time until the exit is counted there, and so is a failure."""
        self.phase = phase
        return PhaseTimer(self.seconds, phase)

    def add(self, messages: Iterable[Message | Mapping[str, Any]], origin: Origin) -> None:
        self.messages += self.frozen(messages, origin)

    def frozen(self, messages: Iterable[Message | Mapping[str, Any]], origin: Origin) -> list[Message]:
        """The messages as they would be recorded."""
        return [self.freezer.message(message, origin) for message in messages]

    def offer_tools(self, schemas: Iterable[Mapping[str, Any]]) -> None:
        """Record the schemas of the tools that the policy is shown."""
        self.tools = tuple(self.freezer.value(schema, "a tool's schema") for schema in schemas)

    def set_state(self, state: Json) -> None:
        """Record the state of an environment that does not run here."""
        self.state = self.freezer.value(state, "state")

    def add_metrics(self, metrics: Mapping[str, Any]) -> None:
        self.metrics |= self.freezer.numbers(metrics, "metrics") or {}

    # -- model calls

    def model_failed(
        self, *, seconds: float, retries: int, sampling: Mapping[str, Json] | None, reads: Ranges
    ) -> None:
        """Record a model call that ended without a completion as a turn of its own."""
        self.turns.append(
            Turn(
                role=self._turn_role(),
                reads=reads,
                writes=None,
                tokens=None,
                finish=None,
                usage=None,
                versions=(),
                started_at=time.time() - seconds,
                first_token_s=None,
                seconds=seconds,
                retries=retries,
                tool_calls=(),
                tools_seconds=0.0,
                sampling=dict(sampling) if sampling else None,
            )
        )

    def model_replied(
        self,
        completion: Completion,
        *,
        seconds: float,
        retries: int,
        sampling: Mapping[str, Json] | None,
        reads: Ranges,
    ) -> Message:
        """Record a model call and its reply; returns the reply as it is recorded."""
        started_at = time.time() - seconds
        freezer = self.freezer
        reply = freezer.reply(
            completion.content, completion.tool_calls, completion.reasoning, len(self.turns)
        )
        self.captured = lower(self.captured, held(completion.capture, completion.tokens))
        self.messages.append(reply)
        usage, version = completion.usage, completion.version
        unread = (*completion.malformed, *map(_unreadable_arguments, completion.tool_calls))
        parse_error = "; ".join(filter(None, unread))
        if usage is not None:
            self._sampled_tokens += usage.completion_tokens
        model = freezer.optional(completion.model)
        self.turns.append(
            Turn(
                role=self._turn_role(),
                reads=reads,
                writes=len(self.messages) - 1,
                tokens=self._stored_tokens(completion) if completion.tokens is not None else None,
                finish=freezer.optional(completion.finish),
                usage=usage,
                versions=((0, freezer.text(version)),) if version else (),
                started_at=started_at,
                first_token_s=completion.first_token_s,
                seconds=seconds,
                retries=retries,
                tool_calls=(),
                tools_seconds=0.0,
                model=model if model != self.policy.model else None,
                sampling=dict(sampling) if sampling else None,
                parse_error=freezer.text(parse_error) if parse_error else None,
            )
        )
        return reply

    def _turn_role(self) -> TurnRole:
        return "auxiliary" if self.agent == OPPONENT else "agent"

    def _stored_tokens(self, completion: Completion) -> Tokens | None:
        """The reply's tokens without the part of the prompt that an earlier turn holds."""
        tokens = completion.tokens
        if tokens is not None and (tokens.top is not None or tokens.teacher is not None):
            tokens = msgspec.structs.replace(tokens, top=self._frozen_top(tokens.top), teacher=None)
        if tokens is None or held(completion.capture, tokens) != "tokens":
            return tokens
        try:
            prompt = whole_prompt(tokens, self.turns)
        except BrokenContext as problem:
            raise PolicyError(
                f"policy {self.policy.model!r} returned tokens that do not fit: {problem}",
                kind="bad_completion",
            ) from None
        return self._token_deltas.stored(prompt, tokens, len(self.turns))

    def _frozen_top(self, top: Json) -> Json:
        try:
            return self.freezer.value(top, "top")
        except ValueError as problem:
            raise PolicyError(
                f"policy {self.policy.model!r} returned tokens that cannot be kept: {problem}",
                kind="bad_completion",
            ) from None

    # -- tools and the environment

    def count_tool_calls(self, count: int) -> None:
        """Count calls that are about to run."""
        self.tool_call_count += count

    def tools_ran(self, calls: Iterable[ToolCall], seconds: float, turn: int) -> None:
        """Add calls to this turn, whether its reply asked for them or the agent ran them after it."""
        frozen_calls = (
            msgspec.structs.replace(call, error=self.freezer.text(call.error)) if call.error else call
            for call in calls
        )
        before = self.turns[turn]
        self.turns[turn] = msgspec.structs.replace(
            before,
            tool_calls=(*before.tool_calls, *frozen_calls),
            tools_seconds=before.tools_seconds + seconds,
        )

    def stepped(self, step: Step, turn: int) -> None:
        """Record a step of the environment on the turn that it answers, and its messages after all others.

        A match may step the same turn several times: rewards add up, and scores and metrics are merged by name.
        """
        if step.acts:
            self._acted(step.acts, turn, has_message=bool(step.messages))
        if step.stop not in _STOPS:
            raise ValueError(f"step() said stop={step.stop!r}; it is one of {', '.join(get_args(Stop))}")
        if fields := self._frozen_fields(step):
            self._add_to_turn(turn, fields)
            self.state = fields.get("state", self.state)
        self.messages += [self.freezer.message(message, _origin(message)) for message in step.messages]

    def _frozen_fields(self, step: Step) -> dict[str, Any]:
        """The fields of a turn that the step sets."""
        freezer = self.freezer
        fields: dict[str, Any] = {}
        if step.reward is not None:
            fields["reward"] = number(step.reward, "step reward")
        if step.scores is not None:
            fields["scores"] = freezer.numbers(step.scores, "step scores")
        if step.metrics is not None:
            fields["metrics"] = freezer.numbers(step.metrics, "step metrics")
        if step.state is not None:
            fields["state"] = freezer.value(step.state, "step state")
        if step.info is not None:
            fields["info"] = freezer.value(step.info, "step info")
        if step.parse_error is not None:
            fields["parse_error"] = freezer.text(step.parse_error)
        return fields

    def _add_to_turn(self, turn: int, fields: dict[str, Any]) -> None:
        before = self.turns[turn]
        if before.reward is not None and "reward" in fields:
            fields["reward"] = number(before.reward + fields["reward"], "step reward")
        for name in ("scores", "metrics"):
            if (earlier := getattr(before, name)) is not None and name in fields:
                fields[name] = {**earlier, **fields[name]}
        self.turns[turn] = msgspec.structs.replace(before, **fields)

    def _acted(self, acts: Sequence[Act], turn: int, *, has_message: bool) -> None:
        """Record as tool calls what the environment did because the reply asked for it in words."""
        if not has_message:
            raise ValueError("step() did something (acts) without a message that says what came of it")
        freezer = self.freezer
        first_number = self.tool_call_count
        self.tool_call_count += len(acts)
        calls = [
            ToolCall(
                id=f"act-{act_number}",
                name=freezer.text(act.name),
                arguments=freezer.value(dict(act.arguments), "an act's arguments"),
                result=len(self.messages),
                failed=act.error is not None,
                error=act.error,
                started_at=number(act.started_at, "an act's started_at"),
                seconds=number(act.seconds, "an act's seconds"),
            )
            for act_number, act in enumerate(acts, start=first_number)
        ]
        self.tools_ran(calls, sum(call.seconds for call in calls), turn)

    def rewarded_without_turn(self, step: Step) -> None:
        """Record a step of a seat that has had no turn: its reward becomes the score `reward`."""
        if step.reward is not None:
            earlier = self.scores[REWARD].value if REWARD in self.scores else 0.0
            reward = number(number(step.reward, "step reward") + earlier, "step reward")
            self.scores[REWARD] = RecordedScore(value=reward, weight=1.0)
        if step.metrics is not None:
            self.metrics |= self.freezer.numbers(step.metrics, "step metrics") or {}
        if step.state is not None:
            self.state = self.freezer.value(step.state, "step state")

    # -- scoring

    def judged(self, verdict: Verdict) -> None:
        self.scores.update(verdict.scores)
        self.metrics.update(verdict.metrics)


def _unreadable_arguments(call: Call) -> str | None:
    """What is wrong with the arguments of a native call. It is run all the same: its result tells the model."""
    if decode_object(call.arguments or "{}") is not None:
        return None
    return f"the arguments of {call.name!r} are not a JSON object: {call.arguments[:MAX_SHOWN_CHARS]}"


def _origin(message: Message | Mapping[str, Any]) -> Origin:
    """The origin of a step's message: the environment, unless the message names a user."""
    return "user" if isinstance(message, Message) and message.origin == "user" else "env"
