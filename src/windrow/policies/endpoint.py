"""One base URL: requests to it, what its refusals mean, and whether it can serve a run at all.

Whose fault a failure is: 5xx, 408, 409, 429 and transport are infrastructure's and may be tried again; any other
status and an undecodable reply are the policy's.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from windrow.errors import ContextOverflow, EndpointError, InfraError, PolicyError, WindrowError
from windrow.policies.base import Completion, Request
from windrow.policies.dialects import DIALECTS, Dialect, scoring
from windrow.policies.failing import Unreachable, retry_after, transport_error
from windrow.policies.health import Health
from windrow.policies.link import Answer, Links, NotTrusted, TooLong
from windrow.policies.wire import UNDECODABLE, Told, decode_models, decode_told, encode
from windrow.records import Json, Message
from windrow.secrets import Redactor

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
)


class Endpoint:
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
        self.health = Health()
        self.in_flight = 0  # calls
        self.routes = 0  # rollouts that were sent here
        self._redactor = redactor
        self._links: Links | None = None

    @property
    def dialect(self) -> Dialect:
        return self._dialect

    @dialect.setter
    def dialect(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.url = dialect.url(self.base_url)  # where completions are asked for

    def connect(self, links: Links) -> None:
        """Use these links, which are the policy's to close."""
        self._links = links

    async def send(self, url: str, body: dict[str, Json]) -> Answer:
        """One request, whatever the answer; InfraError where none came."""
        assert self._links is not None, "open() comes first"
        try:
            return await self._links.post(url, encode(body))
        except OSError as problem:
            raise transport_error(problem)(self._transport(problem), kind="transport") from None
        except TooLong:
            raise self._too_long() from None

    def _too_long(self) -> PolicyError:
        return PolicyError(
            f"{self.url} answered with more than {MAX_REPLY_BYTES >> 20} MiB, not {self.dialect.answers}",
            kind="bad_reply",
            retryable=True,
        )

    async def complete(self, request: Request, model: str) -> Completion:
        """One completion, in the endpoint's dialect, or in that of the same server which scores given ids."""
        dialect = self.dialect if request.given is None else scoring(self.dialect)
        if dialect is None:
            raise PolicyError(
                f"{self.base_url} cannot be asked as {self.dialect.name!r} how likely given ids are: serve the model "
                f"with vLLM, SGLang or llama.cpp, and name its dialect",
                kind="no_scoring",
            )
        return await dialect.complete(request, model, self)

    async def ask(self, dialect: Dialect, body: dict[str, Json]) -> bytes:
        """The answer to one completion request."""
        url = self.url if dialect is self.dialect else dialect.url(self.base_url)
        status, headers, answer = await self.send(url, body)
        if status != 200:
            raise self._refusal(url, status, headers, answer)
        return answer

    async def tell(self, path: str, body: dict[str, Json]) -> Told:
        """A question to the server beside the completions."""
        url = self.base_url.removesuffix("/v1") + path
        status, headers, answer = await self.send(url, body)
        if status != 200:
            raise self._refusal(url, status, headers, answer)
        try:
            return decode_told(answer)
        except UNDECODABLE as problem:
            raise self.bad_reply(path, str(problem)) from None

    def bad_reply(self, path: str, why: str) -> PolicyError:
        """What a server answered beside the completions is not what it should be."""
        root = self.base_url.removesuffix("/v1")
        return PolicyError(f"{root}{path} answered something else: {why}", kind="bad_reply", retryable=True)

    def read(self, dialect: Dialect, body: bytes, reader: Callable[[bytes], Read]) -> Read:
        """What `reader` makes of an answer; PolicyError where that is not what the dialect's servers answer."""
        try:
            return reader(body)
        except UNDECODABLE as problem:
            raise PolicyError(
                f"{dialect.url(self.base_url)} answered {_looks_like(body)}, not {dialect.answers} "
                f"({problem}): {self._shown(body)}",
                kind="bad_reply",
                retryable=True,
            ) from None

    def _refusal(self, url: str, status: int, headers: Any, body: bytes) -> WindrowError:
        """The error that an HTTP status is."""
        detail = self._shown(body)
        text = f"{url} answered {status}: {detail}"
        if status >= 500 or status in TRANSIENT_STATUSES:
            return InfraError(
                text, kind=f"http_{status}", retry_after_s=retry_after(headers.get("retry-after"))
            )
        if status in (400, 413, 422) and _OVERFLOW.search(detail):
            return ContextOverflow(text)
        # A key or a model that the endpoint no longer takes is not this sample's fault: it is tried again.
        return PolicyError(text, kind=f"http_{status}", retryable=status in (401, 403, 404))

    async def check(self, model: str, timeout_s: float) -> None:
        """Find out before the first rollout whether this endpoint can serve the run; EndpointError if not."""
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
            known = self._redactor.text(f" It serves: {', '.join(models[:10])}.") if models else ""
            raise EndpointError(
                f"model {model!r} is not known at {self.base_url}.{known} "
                f"It answered {status}: {self._shown(body)}"
            )

    async def _try(self, model: str, timeout_s: float) -> None:
        """One token, with all the requests that this takes."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.complete(PING, model)
        except TimeoutError:
            raise Unreachable(f"{self.url} did not answer within {timeout_s:g} s") from None
        except (InfraError, PolicyError) as problem:
            raise EndpointError(
                f"model {model!r} at {self.base_url} cannot be asked as {self.dialect.name!r}: {problem}"
            ) from None

    async def look(self, path: str, timeout_s: float) -> dict[str, Any]:
        """The object that stands at a path of the server; an empty one where there is none."""
        assert self._links is not None
        url = self.base_url.removesuffix("/v1") + path
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._links.get(url)
            found = msgspec.json.decode(answer.body) if answer.status == 200 else {}
        except (OSError, TimeoutError, TooLong, *UNDECODABLE):
            return {}
        return found if isinstance(found, dict) else {}

    async def alive(self, timeout_s: float) -> bool:
        """Whether anyone answers there, and not with a server's error."""
        assert self._links is not None
        try:
            async with asyncio.timeout(timeout_s):
                return (await self._links.get(self.base_url + "/models")).status < 500
        except (OSError, TooLong):
            return False

    async def _probe(self, url: str, data: bytes | None, timeout_s: float) -> tuple[int, bytes]:
        assert self._links is not None
        try:
            async with asyncio.timeout(timeout_s):
                asked = self._links.get(url) if data is None else self._links.post(url, data)
                status, _, body = await asked
        except TimeoutError:
            raise Unreachable(
                f"{url} did not answer within {timeout_s:g} s. Is the model still loading? "
                f"--set policy.probe_timeout_s=… waits longer"
            ) from None
        except TooLong:
            raise EndpointError(
                f"{self._too_long()}. Is the base URL right? It usually ends in /v1"
            ) from None
        except NotTrusted as problem:
            raise EndpointError(f"cannot trust {self.base_url}: {self._transport(problem)}") from None
        except OSError as problem:
            raise Unreachable(
                f"cannot reach {self.base_url}: {self._transport(problem)}. Is the server running?"
            ) from None
        if status in (401, 403):
            hint = "check the key" if self._links.has(KEY_HEADERS) else _no_key_hint(self.dialect)
            raise EndpointError(f"{url} answered {status}: {self._shown(body)} ({hint})")
        if 300 <= status < 400:
            raise EndpointError(f"{url} answers with a redirect ({status}); give the URL it leads to")
        return status, body

    def _shown(self, body: bytes) -> str:
        """What a server said, short and without secrets."""
        text = body.decode(errors="replace").strip()
        try:
            error = json.loads(text).get("error")
            text = error.get("message", text) if isinstance(error, dict) else error or text
        except (ValueError, AttributeError, RecursionError):
            pass
        text = self._redactor.text(str(text))
        return text[:SHOWN_CHARS] + ("…" if len(text) > SHOWN_CHARS else "") or "(an empty body)"

    def _transport(self, problem: Exception) -> str:
        if isinstance(problem, NotTrusted):
            return (
                f"its certificate is refused ({problem}). Where it is your own, "
                f"SSL_CERT_FILE=FILE names the certificate to trust"
            )
        return self._redactor.text(str(problem) or type(problem).__name__)


def _looks_like(body: bytes) -> str:
    if body.lstrip()[:1] == b"<":
        return "HTML"
    return "something else" if body else "an empty body"


def _no_key_hint(dialect: Dialect) -> str:
    return f"no key was sent: set {dialect.key_variable}, or name another variable with --api-key-env"
