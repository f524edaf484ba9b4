"""What is written down: the records of schema 1, plain and frozen.

A `Rollout` is one attempt at one sample of one task, with everything that happened in it. Fields with a default of
None in `Message`, `Turn`, `ToolCall`, `Tokens` and `RecordedScore` are left out of the file when they are empty; every
other field is always written. Readers ignore fields they do not know, so that fields can be added within schema 1.

`docs/file-format.md` is the promise; this module is its code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

import msgspec

SCHEMA_VERSION = 1

Role = Literal["system", "developer", "user", "assistant", "tool"]
Origin = Literal["task", "policy", "env", "tool", "user"]
Status = Literal["completed", "truncated", "failed", "cancelled"]
Stop = Literal[
    "answered",
    "env_done",
    "tool_stopped",
    "parse_error",
    "max_turns",
    "max_episode_tokens",
    "max_tool_calls",
    "length",
    "context_overflow",
    "timeout",
    "error",
    "cancelled",
]
# The ends that cut an episode off: its status is truncated.
LIMITS: tuple[Stop, ...] = (
    "max_turns",
    "max_episode_tokens",
    "max_tool_calls",
    "length",
    "context_overflow",
    "timeout",
)
Owner = Literal["policy", "env", "tool", "scorer", "infra"]
Reason = Literal["interrupted", "budget", "surplus", "stale"]
Grade = Literal["none", "pending", "graded", "failed"]
Capture = Literal["tokens", "logprobs", "text", "none"]
TurnRole = Literal["agent", "auxiliary", "judge", "discarded"]

OPPONENT = "opponent"  # the agent of a rollout that another policy than the run's has played

Json = Any  # a JSON value: dict, list, str, int, float, bool or None
AttemptId = tuple[str, int]  # (rollout id, attempt)
MAX_LAMPORT = 2**53
Lamport = Annotated[int, msgspec.Meta(ge=0, le=MAX_LAMPORT)]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One row of work. `task["field"]` reads the row as it was read from its file."""

    key: str
    digest: str
    source: str
    split: str | None
    index: int
    tags: tuple[str, ...]
    data: dict[str, Json] | None

    def __getitem__(self, field: str) -> Json:
        return (self.data or {})[field]

    def get(self, field: str, default: Json = None) -> Json:
        return (self.data or {}).get(field, default)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call as the policy wrote it; `arguments` is its own text, never rewritten."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message. `content` is a string or a list of parts; `turn` is the turn that wrote it."""

    role: Role
    content: str | list[dict[str, Json]] | None
    origin: Origin
    tool_calls: tuple[Call, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    turn: int | None = None

    @property
    def text(self) -> str:
        """The text of the message, whatever shape its content has."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part_text(part) for part in self.content or ())


def part_text(part: Mapping[str, Json]) -> str:
    """The text of a content part; `null` is none."""
    text = part.get("text")
    return "" if text is None else str(text)


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens as the policy's server counted them, and what they cost where a price is known."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None

    def __add__(self, other: Usage) -> Usage:
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cost=sum(costs) if costs else None,
        )


class TeacherTokens(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What another model says of a turn's output: a float32 logprob for each id, and its likeliest tokens (as `top`)."""

    logprobs: bytes
    model: str
    top: Json = None


class Tokens(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn's tokens. Arrays are little-endian int32 (ids) and float32 (logprobs), base64 in the file.

    The prompt is the first `prefix` tokens of the turn it `continues` (prompt and output), then `prompt_new`.
    """

    prefix: int
    prompt_new: bytes
    output: bytes
    logprobs: bytes | None
    logprob_kind: str | None
    continues: int | None = None
    top: Json = None
    teacher: TeacherTokens | None = None  # of a grading: never in the rollout's own line


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call as it was run. `arguments` is an object, or the raw string that would not parse as one."""

    id: str
    name: str
    arguments: dict[str, Json] | str
    result: int
    failed: bool
    started_at: float
    seconds: float
    error: str | None = None


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """How one tool was used: calls that were run, those of them that failed, seconds in all."""

    calls: int = 0
    failures: int = 0
    seconds: float = 0.0


class RecordedScore(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One raw number that a scorer gave; `scorer` is its name, absent when the environment itself scored.

    A score that `withholds` says that the attempt can have no reward, whatever the other scores are.
    """

    value: float
    weight: float
    evidence: Json = None
    scorer: str | None = None
    withholds: bool = False


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model call. `reads` are the ranges of message indexes that made its prompt, `writes` its reply's index.

    `parse_error`: calls in the reply that could not be read, or what the environment could not read in it. From
    `reward` on: what the environment's Step said of this turn.
    """

    role: TurnRole
    reads: tuple[tuple[int, int], ...]
    writes: int | None
    tokens: Tokens | None
    finish: str | None
    usage: Usage | None
    versions: tuple[tuple[int, str], ...]
    started_at: float
    first_token_s: float | None
    seconds: float
    retries: int
    tool_calls: tuple[ToolCall, ...]
    tools_seconds: float
    model: str | None = None
    sampling: dict[str, Json] | None = None
    parse_error: str | None = None
    reward: float | None = None
    scores: dict[str, float] | None = None
    metrics: dict[str, float] | None = None
    state: Json = None
    info: Json = None


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Whose fault it was, in which phase, and whether trying again may help."""

    owner: Owner
    kind: str
    message: str
    phase: str
    retryable: bool
    traceback: str | None = None


class PolicyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who played. `version` is the oldest that sampled any of it (`lowest_version`); lines of older logs have none."""

    model: str
    sampling: dict[str, Json]
    fingerprint: str
    version: str | None = None


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds by phase, measured on the monotonic clock; `started_at` is the wall clock (Unix time)."""

    started_at: float
    queued: float = 0.0
    setup: float = 0.0
    policy: float = 0.0
    env: float = 0.0
    tools: float = 0.0
    score: float = 0.0
    total: float = 0.0


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, from its task to its reward."""

    v: int = SCHEMA_VERSION
    id: str
    attempt: int
    group: str
    sample: int
    episode: str | None
    seat: int | None
    seats: int | None
    seed: int
    task: Task
    env: str
    agent: str
    policy: PolicyRecord
    tools: tuple[dict[str, Json], ...]
    status: Status
    stop: Stop
    error: ErrorRecord | None
    reason: Reason | None
    grade: Grade
    grading: str | None  # fingerprint of the scorers that gave `scores`
    reward: float | None
    scores: dict[str, RecordedScore]
    metrics: dict[str, float]
    state: Json
    messages: tuple[Message, ...]
    turns: tuple[Turn, ...]
    usage: Usage
    timing: Timing
    capture: Capture

    @property
    def reply(self) -> str:
        """The text of the policy's last message, empty if it never answered."""
        for message in reversed(self.messages):
            if message.origin == "policy":
                return message.text
        return ""

    @property
    def key(self) -> AttemptId:
        """What names this attempt, and no other."""
        return self.id, self.attempt

    @property
    def done(self) -> bool:
        return is_done(self.status, self.reason)

    @property
    def opponent(self) -> bool:
        """Whether a fixed opponent played this seat: it is in no mean of the policy's and in no training row."""
        return self.agent == OPPONENT

    @property
    def truncated(self) -> bool:
        return self.status == "truncated"

    @property
    def completion(self) -> tuple[Message, ...]:
        """The messages from the policy's first one on, each once: its replies, and what they brought about."""
        first = next((n for n, message in enumerate(self.messages) if message.origin == "policy"), None)
        return () if first is None else self.messages[first:]

    @property
    def generation_seconds(self) -> tuple[float, ...]:
        """What each turn's model call took."""
        return tuple(turn.seconds for turn in self.turns)

    @property
    def tool_seconds(self) -> tuple[float, ...]:
        """What the tools of each turn took, those that ran side by side counted once."""
        return tuple(turn.tools_seconds for turn in self.turns)

    @property
    def tool_use(self) -> dict[str, ToolUse]:
        """By tool: calls, failures, seconds."""
        return _tool_use(self.turns)


class RolloutGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The final attempts of all samples of one task: what a group-relative trainer centres over."""

    id: str
    task: Task
    rollouts: tuple[Rollout, ...]

    @property
    def rewards(self) -> tuple[float | None, ...]:
        return tuple(rollout.reward for rollout in self.rollouts)

    @property
    def zero_variance(self) -> bool:
        """Whether there are two rewards or more, and all the same: nothing to centre."""
        rewards = [reward for reward in self.rewards if reward is not None]
        return len(rewards) > 1 and min(rewards) == max(rewards)

    @property
    def truncated(self) -> tuple[bool, ...]:
        return tuple(rollout.truncated for rollout in self.rollouts)

    @property
    def completions(self) -> tuple[tuple[Message, ...], ...]:
        return tuple(rollout.completion for rollout in self.rollouts)

    @property
    def tool_use(self) -> dict[str, ToolUse]:
        """By tool, over all samples: calls, failures, seconds."""
        return _tool_use(turn for rollout in self.rollouts for turn in rollout.turns)


class Score(msgspec.Struct, frozen=True):
    """What a scorer or `Env.score` returns: one value, or several as {name: (value, weight)}.

    With `withholds`, they are recorded and the attempt has no reward, whatever other scorers say: it was kept from
    its task, and 0 would teach something else.
    """

    value: float | dict[str, tuple[float, float]]
    evidence: Json = None
    metrics: dict[str, float] | None = None
    withholds: bool = False


class Judgement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a judge: what it was asked, what it said, and why that could not be read, if it could not.

    `about` says what was in question (a criterion, a pair); `cached`: the same had been asked before.
    """

    messages: tuple[Message, ...]
    reply: str
    model: str
    usage: Usage | None
    seconds: float
    about: str | None = None
    problem: str | None = None
    cached: bool = False


class Grading(msgspec.Struct, frozen=True, kw_only=True):
    """A line of scores.jsonl: one scorer's whole grading of one unit, a rollout or a group, named by its id.

    `scores` are by attempt in the order of `members`; none for a member means that the scorer does not apply to it. An
    error leaves the members ungraded, to be graded again. `usage` is what the judge's calls took, without cached ones.
    `lamport` is one more than the highest that its writer had seen in the run: of two verdicts the higher is the later.
    """

    v: int = SCHEMA_VERSION
    unit: str
    members: tuple[AttemptId, ...]
    scorer: str
    fingerprint: str
    generation: int
    scores: tuple[dict[str, RecordedScore], ...]
    metrics: tuple[dict[str, float], ...] = ()
    error: ErrorRecord | None = None
    usage: Usage | None = None
    graded_at: float = 0.0
    judgements: tuple[Judgement, ...] = ()
    # By member: of each turn, what a teacher says of its ids.
    tokens: tuple[dict[int, TeacherTokens], ...] = ()
    lamport: Lamport | msgspec.UnsetType = (
        msgspec.UNSET
    )  # given by the sink; lines of older versions have none


def _tool_use(turns: Iterable[Turn]) -> dict[str, ToolUse]:
    use_by_tool: dict[str, ToolUse] = {}
    for call in (call for turn in turns for call in turn.tool_calls):
        before = use_by_tool.get(call.name, ToolUse())
        use_by_tool[call.name] = ToolUse(
            calls=before.calls + 1,
            failures=before.failures + call.failed,
            seconds=before.seconds + call.seconds,
        )
    return use_by_tool


def lowest_version(turns: Iterable[Turn]) -> str | None:
    """The lowest policy version of these turns. Whole numbers compare as such; other names have no order, so they give
    a version only where all are the same."""
    versions = {version for turn in turns for _, version in turn.versions}
    if len(versions) > 1 and not all(map(is_whole_number, versions)):
        return None
    return min(versions, key=lambda version: int(version) if len(versions) > 1 else 0, default=None)


def is_whole_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def is_done(status: str, reason: str | None) -> bool:
    """Whether this attempt settles its slot: it ran to an end of its own, or is never to be run again."""
    return status in ("completed", "truncated") or reason in ("surplus", "stale")


class Rewarded(Protocol):
    """A turn, or the part of one that a reward is made of."""

    @property
    def reward(self) -> float | None: ...


def reward_of(
    status: str, grade: Grade, scores: Mapping[str, RecordedScore], turns: Sequence[Rewarded]
) -> float | None:
    """Σ weight·value over the scores plus Σ turn rewards; None unless the attempt ended well and is graded."""
    if grade != "graded" or status not in ("completed", "truncated"):
        return None
    total = rewarded = 0.0
    for score in scores.values():
        total += score.weight * score.value
    for turn in turns:
        if turn.reward is not None:
            rewarded += turn.reward
    return total + rewarded


def is_withheld(scores: Mapping[str, RecordedScore]) -> bool:
    """Whether a score says that the attempt can have no reward."""
    return any(score.withholds for score in scores.values())


encode = msgspec.json.Encoder().encode
decode_rollout = msgspec.json.Decoder(Rollout).decode
decode_grading = msgspec.json.Decoder(Grading).decode
