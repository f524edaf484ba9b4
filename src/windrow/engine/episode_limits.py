"""The limits of one episode: each ends the episode before the call that would exceed it."""

from __future__ import annotations

from windrow.config import LimitsConfig
from windrow.engine.recorder import Recorder
from windrow.errors import PolicyError
from windrow.records import Json, Stop


class EpisodeLimits:
    """Counts what an episode uses up, and ends it before a call that would exceed a limit."""

    __slots__ = ("_parse_errors", "_recorder", "config")

    def __init__(self, config: LimitsConfig, recorder: Recorder) -> None:
        self.config = config
        self._recorder = recorder
        self._parse_errors = 0  # replies in a row that held nothing but malformed calls

    def allows_model_call(self, calls_under_way: int) -> bool:
        """Whether the policy may be asked once more. If not, the episode has ended."""
        config, recorder = self.config, self._recorder
        if recorder.outcome.ended:
            return False
        stop: Stop | None = None
        if len(recorder.turns) + calls_under_way >= config.max_turns:
            stop = "max_turns"
        elif config.max_episode_tokens is not None and self._tokens_so_far() >= config.max_episode_tokens:
            stop = "max_episode_tokens"
        if stop is not None:
            recorder.outcome.end("truncated", stop)
        return stop is None

    def cap_sampling(self, sampling: dict[str, Json]) -> tuple[dict[str, Json], int | None]:
        """The sampling of the next call, and the tokens left in the episode's budget if they became its max_tokens."""
        budget = self.config.max_episode_tokens
        if budget is None:
            return sampling, None
        tokens_left = budget - self._tokens_so_far()
        max_tokens = sampling.get("max_tokens")
        if max_tokens is not None and max_tokens <= tokens_left:
            return sampling, None
        return {**sampling, "max_tokens": tokens_left}, tokens_left

    def _tokens_so_far(self) -> int:
        tokens = self._recorder.context_tokens()
        if tokens is None:
            raise PolicyError(
                "the endpoint reports no token usage, so --max-episode-tokens cannot be kept", kind="no_usage"
            )
        return tokens

    def allows_tool_calls(self, count: int) -> bool:
        """Whether this many tools may be called; they are counted. If not, the episode has ended."""
        limit, recorder = self.config.max_tool_calls, self._recorder
        if limit is not None and recorder.tool_call_count + count > limit:
            recorder.outcome.end("truncated", "max_tool_calls")
            return False
        recorder.count_tool_calls(count)
        return True

    def check_acts(self) -> None:
        """End the episode if the acts of a step, which nobody could forbid, have used up its tool calls."""
        limit, recorder = self.config.max_tool_calls, self._recorder
        if limit is not None and recorder.tool_call_count >= limit:
            recorder.outcome.end("truncated", "max_tool_calls")

    def allows_correction(self) -> bool:
        """Whether a reply of nothing but malformed calls may be corrected. If not, the episode has ended."""
        self._parse_errors += 1
        if self._parse_errors > self.config.max_parse_errors:
            self._recorder.outcome.end("completed", "parse_error")
            return False
        return True

    def reply_was_readable(self) -> None:
        self._parse_errors = 0
