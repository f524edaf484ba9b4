"""The interface of a dialect: it writes requests for one kind of server and reads the answers as completions.

A dialect holds no state of an episode: one object serves them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from windrow.errors import PolicyError
from windrow.policies.base import ANY_SAMPLING, OWN_FIELDS, Completion, Request, extra_problem
from windrow.records import Capture, Json

if TYPE_CHECKING:
    from windrow.policies.endpoint import Endpoint

TEXT: frozenset[Capture] = frozenset({"none", "text"})
LOGPROBS: frozenset[Capture] = TEXT | {"logprobs"}
TOKENS: frozenset[Capture] = LOGPROBS | {"tokens"}


class BadReply(ValueError):
    """An answer that decodes but is not a completion; the message says what is wrong with it."""


class Dialect:
    """One way of asking a model server for a completion."""

    name: ClassVar[str]
    path: ClassVar[str]
    at_root: ClassVar[bool] = False  # the path lies beside /v1, not below it
    captures: ClassVar[frozenset[Capture]] = TEXT  # what a reply can reach
    accepts: ClassVar[frozenset[str]] = ANY_SAMPLING
    default_max_tokens: ClassVar[int | None] = None  # where the server takes no request without a number
    key_variable: ClassVar[str] = "OPENAI_API_KEY"
    takes_ids: ClassVar[bool] = False  # prompts are sent as ids
    reads_tool_calls: ClassVar[bool] = True  # finds native tool calls in the reply
    gives_top_logprobs: ClassVar[bool] = False  # tells the likeliest tokens at each place
    logprob_kind: str | None = None  # `raw` or `processed`, where it is known
    answers: ClassVar[str] = "a chat completion"  # what is expected, in messages
    option_names: ClassVar[
        Mapping[str, str]
    ] = {}  # what this server calls our sampling options, where it differs
    writes: ClassVar[frozenset[str]] = frozenset()  # the other fields that it writes itself, if only at times

    def url(self, base_url: str) -> str:
        return (base_url.removesuffix("/v1") if self.at_root else base_url) + self.path

    def headers(self, key: str | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    @cached_property
    def own_fields(self) -> frozenset[str]:
        """The fields that `sampling.extra` may not name: the record says what they were, and it is to be right."""
        options = self.accepts - {"extra"}
        return (
            OWN_FIELDS | self.writes | options | {self.option_names.get(option, option) for option in options}
        )

    def put_options(self, body: dict[str, Json], request: Request) -> None:
        """Write the request's sampling options into `body`."""
        for option, value in request.sampling.items():
            if option != "extra":
                body[self.option_names.get(option, option)] = value
                continue
            if problem := extra_problem(value, self.own_fields):
                raise PolicyError(problem, kind="own_field")
            body.update(value)

    def body(self, request: Request, model: str) -> dict[str, Json]:
        """The JSON body of the request."""
        raise NotImplementedError

    def read(self, answer: bytes, request: Request) -> Completion:
        """The completion in `answer`; BadReply or a decoding error where it has none."""
        raise NotImplementedError

    async def complete(self, request: Request, model: str, endpoint: Endpoint) -> Completion:
        """One call, with as many requests as it takes."""
        answer = await endpoint.ask(self, self.body(request, model))
        return endpoint.read(self, answer, lambda body: self.read(body, request))


def some_of(*options: str) -> frozenset[str]:
    """The sampling options that a dialect takes, and `extra`, which always goes into the body as it is."""
    return frozenset(options) | {"extra"}
