"""One endpoint, named by its base URL: requests to it, the errors that its refusals are, and the check before a run.

Statuses 5xx, 408, 409 and 429 and transport errors are infrastructure failures, which may be retried. Any other status
and an undecodable reply are policy errors.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from windrow.errors import ContextOverflow, EndpointError, InfraError, PolicyError, WindrowError
from windrow.policies.base import Completion, Request, Route
from windrow.policies.dialects import DIALECTS, Dialect, scoring
from windrow.policies.endpoint_failures import Unreachable, call_error_type, retry_after
from windrow.policies.endpoint_health import EndpointHealth
from windrow.policies.http_client import (
    CertificateError,
    ContentError,
    HttpClient,
    HttpError,
    RepliesTooLarge,
    Response,
    http_client,
)
from windrow.policies.wire import UNDECODABLE, TokenizerReply, decode_models, decode_tokenizer_reply, encode
from windrow.records import Json, Message
from windrow.util.byte_budget import FREE_BYTES, REPLIES, HeldBytes, too_much
from windrow.util.redaction import Redactor

Read = TypeVar("Read")

KEY_HEADERS = frozenset({"Authorization", "x-api-key"})
TRANSIENT_STATUSES = frozenset({408, 409, 429})
SHOWN_CHARS = 300
MAX_REPLY_BYTES = 64 << 20  # 128k tokens with their logprobs are half of it
_OVERFLOW = re.compile(
    r"context_length_exceeded|context length|context window|context size|prompt is too long|too many tokens",
    re.I,
)

PING = Request(
    messages=(Message(role="user", content="ping", origin="task"),),
    tools=(),
    sampling={"max_tokens": 1},
    id="ping",
    attempt=1,
    turn=0,
    new_connection=True,
)


class Endpoint:
    """One model server: its dialect, its health, the calls in flight, and the HTTP client that sends them."""

    def __init__(
        self,
        base_url: str,
        redactor: Redactor,
        dialect: Dialect = DIALECTS["openai"],
        *,
        context_tokens: int | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.dialect = dialect
        self.context_tokens = context_tokens  # of one episode, where it is known
        self.health = EndpointHealth()
        self.in_flight = 0  # calls
        self.routes = 0  # rollouts that were sent here
        self._redactor = redactor
        self._client: HttpClient | None = None
        self._new_connections = False
        self._sends_key = False

    @property
    def dialect(self) -> Dialect:
        return self._dialect

    @dialect.setter
    def dialect(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.url = dialect.url(self.base_url)  # where completions are asked for

    def open(self, headers: Mapping[str, str]) -> None:
        """Make the HTTP client; `headers` are sent with every request."""
        self._client = http_client(self.base_url, headers, max_body_bytes=MAX_REPLY_BYTES)
        self._sends_key = not KEY_HEADERS.isdisjoint(headers)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    def on_new_connections(self) -> Endpoint:
        """This endpoint with a new connection for each request, which its server cannot have closed already."""
        fresh = copy.copy(self)
        fresh._new_connections = True
        return fresh

    async def send(self, url: str, body: dict[str, Json]) -> Response:
        """Send one request, once, and return any response; InfraError where none came."""
        assert self._client is not None, "open() comes first"
        try:
            return await self._client.post(url, encode(body), new_connection=self._new_connections)
        except RepliesTooLarge as problem:
            raise _dropped(url, problem) from None
        except ContentError as problem:
            raise self._unusable(url, problem) from None
        except HttpError as problem:
            raise call_error_type(problem)(self._transport(problem), kind="transport") from None

    def _unusable(self, url: str, problem: ContentError) -> PolicyError:
        text = f"{url} answered with {problem}, not {self.dialect.answers}"
        return PolicyError(text, kind="bad_reply", retryable=True)

    async def complete(self, request: Request, model: str) -> Completion:
        """One completion, in the endpoint's dialect, or for forced ids in the dialect of the same server that scores them."""
        dialect = self.dialect if request.forced is None else scoring(self.dialect)
        if dialect is None:
            raise PolicyError(
                f"{self.base_url} cannot be asked as {self.dialect.name!r} how likely given ids are: serve the model "
                f"with vLLM, SGLang or llama.cpp, and name its dialect",
                kind="no_scoring",
            )
        asked = self.on_new_connections() if request.new_connection else self
        completion = await dialect.complete(request, model, asked)
        if request.route is not None and (size := reply_chars(completion)) > FREE_BYTES:
            self._keep(size, request.route)
        return completion

    def _keep(self, size: int, route: Route) -> None:
        """Count a large reply for as long as the episode lasts, which holds it."""
        held = HeldBytes(REPLIES)
        if not held.cover(size):
            raise _dropped(self.url, too_much())
        route.held.append(held)

    async def ask(self, dialect: Dialect, body: dict[str, Json]) -> bytes:
        """The answer to one completion request."""
        url = self.url if dialect is self._dialect else dialect.url(self.base_url)
        response = await self.send(url, body)
        if response.status != 200:
            raise self._refusal(url, response)
        return response.body

    async def ask_tokenizer(self, path: str, body: dict[str, Json]) -> TokenizerReply:
        """The answer of the server's tokenizer or chat template at `path`."""
        url = self.base_url.removesuffix("/v1") + path
        response = await self.send(url, body)
        if response.status != 200:
            raise self._refusal(url, response)
        try:
            return decode_tokenizer_reply(response.body)
        except UNDECODABLE as problem:
            raise self.bad_reply(path, str(problem)) from None

    def bad_reply(self, path: str, why: str) -> PolicyError:
        """The error for an answer at `path` that lacks what it should have."""
        root = self.base_url.removesuffix("/v1")
        return PolicyError(f"{root}{path} answered something else: {why}", kind="bad_reply", retryable=True)

    def read(self, dialect: Dialect, body: bytes, reader: Callable[[bytes], Read]) -> Read:
        """The result of `reader`; PolicyError where the answer is not one of this dialect."""
        try:
            return reader(body)
        except UNDECODABLE as problem:
            raise PolicyError(
                f"{dialect.url(self.base_url)} answered {_looks_like(body)}, not {dialect.answers} "
                f"({problem}): {self._shown(body)}",
                kind="bad_reply",
                retryable=True,
            ) from None

    def _refusal(self, url: str, response: Response) -> WindrowError:
        """The error for a status other than 200."""
        status, detail = response.status, self._shown(response.body)
        text = f"{url} answered {status}: {detail}"
        if status >= 500 or status in TRANSIENT_STATUSES:
            return InfraError(
                text, kind=f"http_{status}", retry_after_s=retry_after(response.header("retry-after"))
            )
        if status in (400, 413, 422) and _OVERFLOW.search(detail):
            return ContextOverflow(text)
        # A key or a model that the endpoint no longer takes is not this sample's fault: it is tried again.
        return PolicyError(text, kind=f"http_{status}", retryable=status in (401, 403, 404))

    async def check(self, model: str, timeout_s: float) -> None:
        """Check before the first rollout that this endpoint can serve the run; EndpointError if not."""
        status, body = await self._probe(self.base_url + "/models", None, timeout_s)
        models: list[str] = []
        if status == 200:
            try:
                models = decode_models(body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                if body.lstrip()[:1] == b"<":
                    raise EndpointError(
                        f"{self.base_url}/models answered HTML, not JSON. Is the base URL right? It usually "
                        f"ends in /v1"
                    ) from None
        if model in models:
            return
        if self.dialect.takes_ids:
            await self._try(model, timeout_s)
            return
        ask = self.dialect.body(PING, model)
        status, body = await self._probe(self.url, encode(ask), timeout_s)
        if status == 200:
            try:
                self.read(self.dialect, body, lambda answer: self.dialect.read(answer, PING))
            except PolicyError as problem:
                raise EndpointError(f"{problem}. Is the base URL right? It usually ends in /v1") from None
        elif status == 404 or (400 <= status < 500 and "model" in self._shown(body).lower()):
            served = self._redactor.text(f" It serves: {', '.join(models[:10])}.") if models else ""
            raise EndpointError(
                f"model {model!r} is not known at {self.base_url}.{served} "
                f"It answered {status}: {self._shown(body)}"
            )

    async def _try(self, model: str, timeout_s: float) -> None:
        """Sample one token, with as many requests as the dialect takes."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.complete(PING, model)
        except TimeoutError:
            raise Unreachable(f"{self.url} did not answer within {timeout_s:g} s") from None
        except (InfraError, PolicyError) as problem:
            raise EndpointError(
                f"model {model!r} at {self.base_url} cannot be asked as {self.dialect.name!r}: {problem}"
            ) from None

    async def get_object(self, path: str, timeout_s: float) -> dict[str, Any]:
        """The JSON object at a path of the server; an empty one where there is none."""
        assert self._client is not None
        url = self.base_url.removesuffix("/v1") + path
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._client.get(url, new_connection=True)
            value = msgspec.json.decode(response.body) if response.status == 200 else {}
        except (HttpError, TimeoutError, *UNDECODABLE):
            return {}
        return value if isinstance(value, dict) else {}

    async def alive(self, timeout_s: float) -> bool:
        """Whether the endpoint answers with a status below 500."""
        assert self._client is not None
        try:
            async with asyncio.timeout(timeout_s):
                return (await self._client.get(self.base_url + "/models", new_connection=True)).status < 500
        except (HttpError, TimeoutError):
            return False

    async def _probe(self, url: str, data: bytes | None, timeout_s: float) -> tuple[int, bytes]:
        assert self._client is not None
        get, post = self._client.get, self._client.post
        try:
            async with asyncio.timeout(timeout_s):
                asked = (
                    get(url, new_connection=True) if data is None else post(url, data, new_connection=True)
                )
                response = await asked
        except TimeoutError:
            raise Unreachable(
                f"{url} did not answer within {timeout_s:g} s. Is the model still loading? "
                f"--set policy.probe_timeout_s=… waits longer"
            ) from None
        except ContentError as problem:
            raise EndpointError(
                f"{self._unusable(url, problem)}. Is the base URL right? It usually ends in /v1"
            ) from None
        except CertificateError as problem:
            raise EndpointError(f"cannot trust {self.base_url}: {self._transport(problem)}") from None
        except HttpError as problem:
            raise Unreachable(
                f"cannot reach {self.base_url}: {self._transport(problem)}. Is the server running?"
            ) from None
        status, body = response.status, response.body
        if status in (401, 403):
            hint = "check the key" if self._sends_key else _no_key_hint(self.dialect)
            raise EndpointError(f"{url} answered {status}: {self._shown(body)} ({hint})")
        if 300 <= status < 400:
            raise EndpointError(f"{url} answers with a redirect ({status}); give the URL it leads to")
        return status, body

    def _shown(self, body: bytes) -> str:
        """The error message in a server's answer, shortened and redacted."""
        text = body.decode(errors="replace").strip()
        try:
            error = json.loads(text).get("error")
            text = error.get("message", text) if isinstance(error, dict) else error or text
        except (ValueError, AttributeError, RecursionError):
            pass
        text = self._redactor.text(str(text))
        return text[:SHOWN_CHARS] + ("…" if len(text) > SHOWN_CHARS else "") or "(an empty body)"

    def _transport(self, problem: Exception) -> str:
        if isinstance(problem, CertificateError):
            return (
                f"its certificate is refused ({problem}). Where it is your own, "
                f"SSL_CERT_FILE=FILE names the certificate to trust"
            )
        return self._redactor.text(str(problem) or type(problem).__name__)


def reply_chars(completion: Completion) -> int:
    """The length of what an episode keeps of a completion."""
    size = len(completion.content or "") + len(completion.reasoning or "")
    return (
        size + sum(len(call.arguments) for call in completion.tool_calls) if completion.tool_calls else size
    )


def _dropped(url: str, problem: object) -> PolicyError:
    return PolicyError(f"{url}: a reply was dropped: {problem}", kind="replies_too_large", retryable=True)


def _looks_like(body: bytes) -> str:
    if body.lstrip()[:1] == b"<":
        return "HTML"
    return "something else" if body else "an empty body"


def _no_key_hint(dialect: Dialect) -> str:
    return f"no key was sent: set {dialect.key_variable}, or name another variable with --api-key-env"
