"""The recorder: writes one attempt down as it happens, on every path, and holds its outcome.

What an environment, an agent or a policy does reaches the record only through here, frozen: mutating a message or a
state later changes nothing. The first end counts; what is reported after it does not change the outcome.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import msgspec

from windrow.engine.token_deltas import Continuing
from windrow.engine.window import Ranges
from windrow.envs import Act, Episode, Step
from windrow.envs.scoring import Verdict
from windrow.errors import PolicyError
from windrow.policies import Completion
from windrow.policies.capture import held, lower
from windrow.records import (
    OPPONENT,
    Capture,
    ErrorRecord,
    Grade,
    Json,
    Message,
    Origin,
    PolicyRecord,
    Reason,
    RecordedScore,
    Rollout,
    Status,
    Stop,
    Task,
    Timing,
    Tokens,
    ToolCall,
    Turn,
    TurnRole,
    Usage,
    reward_of,
)
from windrow.tasks.plan import Slot
from windrow.util.freeze import Freezer, copied, copied_messages, copied_task, number
from windrow.util.token_contexts import BrokenContext, whole_prompt

REWARD = "reward"  # the score of a seat that was rewarded without a turn
_STOPS = (None, *get_args(Stop))


class Timed:
    """Adds the seconds between entering and leaving to a phase's."""

    __slots__ = ("_phase", "_seconds", "_started")

    def __init__(self, seconds: dict[str, float], phase: str) -> None:
        self._seconds = seconds
        self._phase = phase

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._phase] += time.monotonic() - self._started


class Seat(msgspec.Struct, frozen=True):
    """A seat of an episode that has `count` of them."""

    episode: str
    number: int
    count: int


class Recorder:
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
        self._reached = capture  # the lowest level of any reply
        self.messages: list[Message] = []
        self.tools: tuple[dict[str, Json], ...] = ()
        self.tool_calls = 0
        self.phase = "setup"
        self.metrics: dict[str, float] = {}
        self.scores: dict[str, RecordedScore] = {}
        self.grade: Grade = "none"
        self._turns: list[Turn] = []
        self._continuing = Continuing()
        self._sampled = 0  # tokens of all replies, as the server counted them
        self._state: Json = None
        self._outcome: tuple[Status, Stop, ErrorRecord | None, Reason | None] | None = None
        self._freezer = Freezer()
        self._seconds = dict.fromkeys(("setup", "policy", "env", "tools", "score"), 0.0)
        self._started = time.monotonic()
        self._started_at = time.time()

    # -- what happened

    def timed(self, phase: str) -> Timed:
        """Everything inside happens in `phase`: its time is counted there, and so is its failure."""
        self.phase = phase
        return Timed(self._seconds, phase)

    def add(self, messages: Iterable[Message | Mapping[str, Any]], origin: Origin) -> None:
        self.messages += self.frozen(messages, origin)

    def frozen(self, messages: Iterable[Message | Mapping[str, Any]], origin: Origin) -> list[Message]:
        """The messages as they would be recorded."""
        return [self._freezer.message(message, origin) for message in messages]

    def frozen_numbers(self, values: Mapping[str, Any]) -> dict[str, float]:
        return self._freezer.numbers(values, "metrics") or {}

    def leave(self, state: Json) -> None:
        """The state in which the environment is, or was when nobody here looked."""
        self._state = self._freezer.value(state, "state")

    def offer(self, tools: Iterable[Mapping[str, Any]]) -> None:
        """The schemas of the tools that the policy is shown."""
        self.tools = tuple(self._freezer.value(tool, "a tool's schema") for tool in tools)

    def called(
        self,
        completion: Completion | None,
        *,
        seconds: float,
        retries: int,
        sampling: Mapping[str, Json] | None,
        reads: Ranges,
    ) -> Message | None:
        """A model call ended, with a completion or without one; returns the reply as it is recorded."""
        turn = len(self._turns)
        role: TurnRole = "auxiliary" if self.agent == OPPONENT else "agent"
        sampling = dict(sampling) if sampling else None
        started_at = time.time() - seconds
        if completion is None:
            self._turns.append(
                Turn(
                    role=role,
                    reads=reads,
                    writes=None,
                    tokens=None,
                    finish=None,
                    usage=None,
                    versions=(),
                    started_at=started_at,
                    first_token_s=None,
                    seconds=seconds,
                    retries=retries,
                    tool_calls=(),
                    tools_seconds=0.0,
                    sampling=sampling,
                )
            )
            return None
        freeze = self._freezer
        reply = freeze.reply(completion.content, completion.tool_calls, completion.reasoning, turn)
        self._reached = lower(self._reached, held(completion.capture, completion.tokens))
        self.messages.append(reply)
        usage, version, malformed = completion.usage, completion.version, completion.malformed
        if usage is not None:
            self._sampled += usage.completion_tokens
        model = freeze.optional(completion.model)
        self._turns.append(
            Turn(
                role=role,
                reads=reads,
                writes=len(self.messages) - 1,
                tokens=self._stored(completion) if completion.tokens is not None else None,
                finish=freeze.optional(completion.finish),
                usage=usage,
                versions=((0, freeze.text(version)),) if version else (),
                started_at=started_at,
                first_token_s=completion.first_token_s,
                seconds=seconds,
                retries=retries,
                tool_calls=(),
                tools_seconds=0.0,
                model=model if model != self.policy.model else None,
                sampling=sampling,
                parse_error=freeze.text("; ".join(malformed)) if malformed else None,
            )
        )
        return reply

    def _stored(self, completion: Completion) -> Tokens | None:
        """The reply's tokens without those of the prompt that an earlier turn holds."""
        tokens = completion.tokens
        if tokens is not None and (tokens.top is not None or tokens.teacher is not None):
            tokens = msgspec.structs.replace(tokens, top=self._frozen_top(tokens.top), teacher=None)
        if tokens is None or held(completion.capture, tokens) != "tokens":
            return tokens
        try:
            prompt = whole_prompt(tokens, self._turns)
        except BrokenContext as problem:
            raise PolicyError(
                f"policy {self.policy.model!r} returned tokens that do not fit: {problem}",
                kind="bad_completion",
            ) from None
        return self._continuing.stored(prompt, tokens, len(self._turns))

    def _frozen_top(self, top: Json) -> Json:
        try:
            return self._freezer.value(top, "top")
        except ValueError as problem:
            raise PolicyError(
                f"policy {self.policy.model!r} returned tokens that cannot be kept: {problem}",
                kind="bad_completion",
            ) from None

    def reply_of(self, turn: int) -> Message | None:
        """What this turn said, if there is such a turn and it said something."""
        writes = self._turns[turn].writes if 0 <= turn < len(self._turns) else None
        return None if writes is None else self.messages[writes]

    def tools_ran(self, calls: Iterable[ToolCall], seconds: float, turn: int) -> None:
        """The calls belong to this turn, whether its reply asked for them or the agent ran them after it."""
        frozen = (
            msgspec.structs.replace(call, error=self._freezer.text(call.error)) if call.error else call
            for call in calls
        )
        before = self._turns[turn]
        self._turns[turn] = msgspec.structs.replace(
            before,
            tool_calls=(*before.tool_calls, *frozen),
            tools_seconds=before.tools_seconds + seconds,
        )

    def stepped(self, step: Step, turn: int) -> None:
        """What the environment's step said goes onto the turn it answered, its messages after it.

        What is said of a turn again, as a match may, is added: rewards add up, the rest by name.
        """
        freeze = self._freezer
        if step.acts:
            self._acted(step.acts, turn, told=bool(step.messages))
        if step.stop not in _STOPS:
            raise ValueError(f"step() said stop={step.stop!r}; it is one of {', '.join(get_args(Stop))}")
        said: dict[str, Any] = {}
        if step.reward is not None:
            said["reward"] = number(step.reward, "step reward")
        if step.scores is not None:
            said["scores"] = freeze.numbers(step.scores, "step scores")
        if step.metrics is not None:
            said["metrics"] = freeze.numbers(step.metrics, "step metrics")
        if step.state is not None:
            said["state"] = freeze.value(step.state, "step state")
        if step.info is not None:
            said["info"] = freeze.value(step.info, "step info")
        if step.parse_error is not None:
            said["parse_error"] = freeze.text(step.parse_error)
        if said:
            before = self._turns[turn]
            if before.reward is not None and "reward" in said:
                said["reward"] = number(before.reward + said["reward"], "step reward")
            for name in ("scores", "metrics"):
                if (earlier := getattr(before, name)) is not None and name in said:
                    said[name] = {**earlier, **said[name]}
            self._turns[turn] = msgspec.structs.replace(before, **said)
            self._state = said.get("state", self._state)
        self.messages += [freeze.message(message, _speaker(message)) for message in step.messages]

    def _acted(self, acts: Sequence[Act], turn: int, *, told: bool) -> None:
        """What the environment did because the reply said so in words is a tool call like any other."""
        if not told:
            raise ValueError("step() did something (acts) without a message that says what came of it")
        freeze = self._freezer
        first = self.tool_calls
        self.tool_calls += len(acts)
        calls = [
            ToolCall(
                id=f"act-{place}",
                name=freeze.text(act.name),
                arguments=freeze.value(dict(act.arguments), "an act's arguments"),
                result=len(self.messages),
                failed=act.error is not None,
                error=act.error,
                started_at=number(act.started_at, "an act's started_at"),
                seconds=number(act.seconds, "an act's seconds"),
            )
            for place, act in enumerate(acts, start=first)
        ]
        self.tools_ran(calls, sum(call.seconds for call in calls), turn)

    def judged(self, verdict: Verdict) -> None:
        self.scores.update(verdict.scores)
        self.metrics.update(verdict.metrics)

    def rewarded(self, step: Step) -> None:
        """What is said of a seat that has had no turn: its reward is the score `reward`."""
        if step.reward is not None:
            reward = number(step.reward, "step reward") + (
                self.scores[REWARD].value if REWARD in self.scores else 0.0
            )
            self.scores[REWARD] = RecordedScore(value=number(reward, "step reward"), weight=1.0)
        if step.metrics is not None:
            self.metrics |= self._freezer.numbers(step.metrics, "step metrics") or {}
        if step.state is not None:
            self._state = self._freezer.value(step.state, "step state")

    # -- how it ended

    @property
    def ended(self) -> bool:
        return self._outcome is not None

    @property
    def status(self) -> Status | None:
        return self._outcome[0] if self._outcome else None

    def end(
        self, status: Status, stop: Stop, *, error: ErrorRecord | None = None, reason: Reason | None = None
    ) -> None:
        if self._outcome is None:
            self._outcome = (status, stop, error, reason)

    @property
    def error(self) -> ErrorRecord | None:
        return self._outcome[2] if self._outcome else None

    def overrule(
        self, status: Status, stop: Stop, *, error: ErrorRecord | None = None, reason: Reason | None = None
    ) -> None:
        """The episode of which this is a seat ended otherwise, and so did the seat, whatever it had come to."""
        self._outcome = (status, stop, error, reason)
        self.grade = "none"

    def fail(self, error: ErrorRecord) -> None:
        self.end("failed", "error", error=error)

    def scoring_failed(self, error: ErrorRecord) -> None:
        """The outcome stands; the grade is failed, and the error says why."""
        assert self._outcome is not None
        status, stop, _, reason = self._outcome
        self._outcome = (status, stop, error, reason)
        self.grade = "failed"

    def scoring_cut(self, *, own: bool) -> None:
        """Cancelled while it was scored: scorers can judge the record later, the environment cannot (`own`)."""
        if own:
            self._outcome = None
        else:
            self.grade = "pending"

    # -- the record

    @property
    def has_parts(self) -> bool:
        """Whether the content of any message is a list."""
        return self._freezer.parts

    @property
    def turn_count(self) -> int:
        return len(self._turns)

    def context_tokens(self) -> int | None:
        """Tokens of the episode so far, each counted once; None where the server did not say.

        The last context, which holds all that came before; where an agent asks with less than that, what was sampled
        in all, if that is more.
        """
        if not self._turns:
            return 0
        last = self._turns[-1].usage
        return None if last is None else max(last.prompt_tokens + last.completion_tokens, self._sampled)

    def has_step_rewards(self) -> bool:
        return any(turn.reward is not None for turn in self._turns)

    def episode(self) -> Episode:
        """A copy for a scorer, which may do with it as it likes."""
        assert self._outcome is not None
        status, stop, *_ = self._outcome
        return shown_episode(
            self.slot.task, tuple(self.messages), tuple(self._turns), self._state, status, stop
        )

    def check_reward(self) -> None:
        """Raise ValueError where finite scores add up to something that is not."""
        number(reward_of("completed", "graded", self.scores, self._turns), "the reward")

    def rollout(self) -> Rollout:
        assert self._outcome is not None, "an attempt is recorded when it has ended"
        status, stop, error, reason = self._outcome
        turns = tuple(self._turns)
        messages = self.messages
        seat = self.seat
        kept = self.capture != "none"
        errors = answers = 0
        for turn in turns:
            errors += turn.parse_error is not None
        if turns and (self.tools or errors):
            self.metrics.setdefault("parse_errors_per_turn", errors / len(turns))
            self.metrics.setdefault("turns", float(len(turns)))
        for message in messages:  # calls that never got a result: a limit, a crash or the end came before
            if message.tool_calls and message.origin == "policy":
                answers += len(message.tool_calls)
            elif message.role == "tool" and message.origin == "tool":
                answers -= 1
        if answers:
            self.metrics["unanswered_tool_calls"] = float(answers)
        if self._freezer.repaired:
            self.metrics["repaired_strings"] = float(self._freezer.repaired)
        seconds = self._seconds
        slot = self.slot
        return Rollout(
            id=slot.id,
            attempt=slot.attempt,
            group=slot.group,
            sample=slot.sample,
            episode=seat.episode if seat else None,
            seat=seat.number if seat else None,
            seats=seat.count if seat else None,
            seed=slot.seed,
            task=slot.recorded_task,
            env=self.env,
            agent=self.agent,
            policy=self.policy,
            tools=self.tools,
            status=status,
            stop=stop,
            error=self._clean(error) if error is not None else None,
            reason=reason,
            grade=self.grade,
            grading=self.grading if self.grade != "none" else None,
            reward=reward_of(status, self.grade, self.scores, turns),
            scores=self.scores,
            metrics=self.metrics,
            state=self._state if kept else None,
            messages=tuple(messages) if kept else (),
            turns=turns if kept else tuple(_bare(turn) for turn in turns),
            usage=_total(turns),
            timing=Timing(
                started_at=self._started_at,
                setup=seconds["setup"],
                policy=seconds["policy"],
                env=seconds["env"],
                tools=seconds["tools"],
                score=seconds["score"],
                total=time.monotonic() - self._started,
            ),
            capture=self._reached,
        )

    def _clean(self, error: ErrorRecord) -> ErrorRecord:
        fields: dict[str, Any] = self._freezer.value(error, "error")
        return ErrorRecord(**fields)


def _total(turns: Sequence[Turn]) -> Usage:
    if len(turns) == 1:
        return turns[0].usage or Usage()
    return sum([turn.usage for turn in turns if turn.usage is not None], Usage())


def _speaker(message: Message | Mapping[str, Any]) -> Origin:
    """Who says a step's message: the environment, unless it says that a user does."""
    return "user" if isinstance(message, Message) and message.origin == "user" else "env"


def shown_episode(
    task: Task,
    messages: tuple[Message, ...],
    turns: tuple[Turn, ...],
    state: Json,
    status: Status,
    stop: Stop,
) -> Episode:
    """What a scorer is shown; it shares nothing mutable with the record."""
    return Episode(
        task=copied_task(task),
        messages=copied_messages(messages),
        turns=tuple(
            turn
            if turn.state is None and turn.info is None
            else msgspec.structs.replace(turn, state=copied(turn.state), info=copied(turn.info))
            for turn in turns
        ),
        state=copied(state),
        status=status,
        stop=stop,
    )


def _bare(turn: Turn) -> Turn:
    """A turn under `capture: none`: its numbers, without what was said."""
    return msgspec.structs.replace(
        turn, reads=(), writes=None, tool_calls=(), parse_error=None, state=None, info=None
    )
