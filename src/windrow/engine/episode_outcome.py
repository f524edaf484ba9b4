"""The outcome of an episode: how it ended, why, and whether it has been graded.

The first end counts. Anything reported after it leaves the outcome as it is, unless the episode as a whole overrules
one of its seats.
"""

from __future__ import annotations

from windrow.records import ErrorRecord, Grade, Reason, Status, Stop


class EpisodeOutcome:
    """`status` and `stop` are None until the episode has ended. `grade` is set when it has been scored."""

    __slots__ = ("error", "grade", "reason", "status", "stop")

    def __init__(self) -> None:
        self.status: Status | None = None
        self.stop: Stop | None = None
        self.error: ErrorRecord | None = None
        self.reason: Reason | None = None
        self.grade: Grade = "none"

    @property
    def ended(self) -> bool:
        return self.status is not None

    def ending(self) -> tuple[Status, Stop]:
        """The status and the stop of an episode that has ended."""
        assert self.status is not None, "the episode has not ended"
        assert self.stop is not None
        return self.status, self.stop

    @property
    def scorable(self) -> bool:
        """Whether the episode ended in a way that can be scored: it was played, to its end or to a limit."""
        return self.status in ("completed", "truncated")

    def end(
        self, status: Status, stop: Stop, *, error: ErrorRecord | None = None, reason: Reason | None = None
    ) -> None:
        """End the episode, if it has not ended yet."""
        if self.status is None:
            self.status, self.stop, self.error, self.reason = status, stop, error, reason

    def fail(self, error: ErrorRecord) -> None:
        self.end("failed", "error", error=error)

    def overrule(
        self, status: Status, stop: Stop, *, error: ErrorRecord | None = None, reason: Reason | None = None
    ) -> None:
        """Replace the outcome of a seat by that of the whole episode, whether the seat had ended or not."""
        self.status, self.stop, self.error, self.reason = status, stop, error, reason
        self.grade = "none"

    def fail_scoring(self, error: ErrorRecord) -> None:
        """Keep how the episode ended; the grade is `failed`, and the error says why."""
        self.error = error
        self.grade = "failed"

    def interrupt_env_scoring(self) -> None:
        """Take the end back: only the running environment can score the episode, so the attempt has to be repeated."""
        self.status = self.stop = self.error = self.reason = None

    def grade_later(self) -> None:
        """Keep how the episode ended: scorers can judge the record after the commit."""
        self.grade = "pending"

    def mark_graded(self) -> None:
        """Every scorer of the episode has given its verdict."""
        self.grade = "graded"
