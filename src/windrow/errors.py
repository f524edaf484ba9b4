"""The errors Windrow raises. Each knows whose fault it is, what kind it is and whether trying again may help."""

from __future__ import annotations

import traceback

from windrow.records import ErrorRecord, Owner


class WindrowError(Exception):
    """Base of all. `str(error)` is for a person: what was wrong, where, and what to do."""

    owner: Owner = "infra"
    kind: str = "error"
    retryable: bool = False

    def __init__(self, message: str, *, kind: str | None = None, retryable: bool | None = None) -> None:
        super().__init__(message)
        if kind is not None:
            self.kind = kind
        if retryable is not None:
            self.retryable = retryable


class UsageError(WindrowError):
    """The command, the configuration or the input is wrong; nothing was run."""

    kind = "usage"


class PolicyError(WindrowError):
    """The policy refused the request or answered with something that is not a completion."""

    owner: Owner = "policy"
    kind = "policy"
    retries = 0  # how often the call had been sent before, without an answer


class ContextOverflow(PolicyError):
    """The prompt does not fit the model's context. This ends an episode; it does not fail it."""

    kind = "context_overflow"


class EnvError(WindrowError):
    owner: Owner = "env"
    kind = "env"
    retryable = True


class ToolError(WindrowError):
    """A tool failed; the model is told and the episode goes on."""

    owner: Owner = "tool"
    kind = "tool"


class ScorerError(WindrowError):
    owner: Owner = "scorer"
    kind = "scorer"
    retryable = True


class InfraError(WindrowError):
    """Something between us and the policy failed: transport, overload, a deadline.

    `again` says whether the same call may be sent again at once; `retry_after_s` is the server's own wish, and
    `held` says that the policy sees to it.
    """

    owner: Owner = "infra"
    kind = "infra"
    retryable = True

    def __init__(
        self, message: str, *, kind: str | None = None, again: bool = True, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, kind=kind)
        self.again = again
        self.retry_after_s = retry_after_s
        self.held = False
        self.retries = 0  # how often the call was sent again before it was given up


class StaleConnection(InfraError):
    """A connection that was used before ended without a word: its server may never have seen the request."""

    kind = "transport"


class OutageError(InfraError):
    """No endpoint has answered for longer than a run waits: nothing more can be collected now, and the run stops."""

    kind = "outage"

    def __init__(self, message: str) -> None:
        super().__init__(message, again=False)


class EndpointError(WindrowError):
    """The endpoint cannot serve this run at all (found by the probe at the start): the run stops."""

    owner: Owner = "policy"
    kind = "endpoint"


class ServiceError(WindrowError):
    """A service that the run needs did not come up, or died: nothing more can be collected now."""

    kind = "service"


class StoreError(WindrowError):
    """The run directory cannot be written or read."""

    kind = "store"


class ExportError(WindrowError):
    """Nothing of a run could be exported."""

    kind = "export"


MAX_MESSAGE_CHARS = 8_000  # of what is kept of an exception: some quote a whole document


def error_record(error: BaseException, *, owner: Owner, phase: str) -> ErrorRecord:
    """What is kept of `error`; `owner` says whose fault an exception is that is not one of ours."""
    if isinstance(error, WindrowError):
        return ErrorRecord(
            owner=error.owner,
            kind=error.kind,
            message=_cut(str(error)),
            phase=phase,
            retryable=error.retryable,
            traceback=None,
        )
    if isinstance(error, TimeoutError):
        return ErrorRecord(
            owner=owner, kind="timeout", message=_cut(str(error)) or "timed out", phase=phase, retryable=True
        )
    lines = traceback.format_exception(error, limit=-8)
    try:
        message = str(error) or type(error).__name__
    except Exception:  # an exception that cannot even say what it is
        message = type(error).__name__
    return ErrorRecord(
        owner=owner,
        kind=type(error).__name__,
        message=_cut(message),
        phase=phase,
        retryable=True,
        traceback=_cut("".join(lines)),
    )


def _cut(text: str) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= MAX_MESSAGE_CHARS:
        return text
    half = MAX_MESSAGE_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


def first_of(problems: BaseExceptionGroup[WindrowError]) -> WindrowError:
    """The first error of a group, however deeply it is nested."""
    problem: BaseException = problems
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    assert isinstance(problem, WindrowError)
    return problem
