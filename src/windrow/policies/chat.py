"""The `chat` policy: any OpenAI-compatible /v1/chat/completions endpoint.

A reply is decoded straight into typed structs. Whose fault a failure is: 5xx, 408, 409, 429 and transport are
infrastructure's and may be tried again; any other status and an undecodable reply are the policy's.
"""

from __future__ import annotations

import json
import re
import time
from email.utils import parsedate_to_datetime
from typing import Annotated, Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from windrow.config import PolicyConfig, expand
from windrow.errors import ContextOverflow, EndpointError, InfraError, PolicyError, UsageError, WindrowError
from windrow.policies.base import ANY_SAMPLING, Completion, Policy, Request
from windrow.policies.capturing import LEVELS, asks, packed
from windrow.records import Call, Capture, Json, Message, Tokens, Usage
from windrow.secrets import Redactor, api_key

DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
TRANSIENT_STATUSES = frozenset({408, 409, 429})
SHOWN_CHARS = 300
MAX_REPLY_BYTES = 64 << 20  # 128k tokens with their logprobs are half of it
_OVERFLOW = re.compile(
    r"context_length_exceeded|context length|context window|context size|prompt is too long|too many tokens",
    re.I,
)


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]  # as wide as a record keeps them
Logprob = Annotated[float, msgspec.Meta(ge=-1e38, le=1e38)]


class _Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] = ""


class _ToolCall(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Message(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Logprob(msgspec.Struct):
    logprob: Logprob
    id: TokenId | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Logprob] | None = None


class Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[TokenId] | None = None


class _Details(msgspec.Struct):
    cached_tokens: Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_tokens_details: _Details | None = None


class Reply(msgspec.Struct):
    choices: list[Choice]
    usage: _Usage | None = None
    model: str | None = None
    prompt_token_ids: list[TokenId] | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_encode = msgspec.json.Encoder().encode
_decode_reply = msgspec.json.Decoder(Reply).decode
_decode_models = msgspec.json.Decoder(_Models).decode


class ChatPolicy(Policy):
    name = "chat"
    accepts = ANY_SAMPLING
    captures: frozenset[Capture] = frozenset(LEVELS)

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        key: str | None = None,
        redactor: Redactor | None = None,
        probe: bool = True,
        probe_timeout_s: float = 20.0,
    ) -> None:
        self.model = model
        self._use(base_url)
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._redactor = redactor or Redactor()
        self._probe = probe
        self._probe_timeout_s = probe_timeout_s
        self._session: aiohttp.ClientSession | None = None

    def _use(self, base_url: str) -> None:
        self._base_url = base_url.rstrip("/")
        self._url = self._base_url + "/chat/completions"

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
            timeout=aiohttp.ClientTimeout(total=None),
            headers=self._headers,
        )
        if self._probe:
            await self._check_endpoint()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def complete(self, request: Request) -> Completion:
        prompt = await self._prompt_ids(request) if asks(request.capture, "tokens") else None
        response, body = await self._send(self._url, self._body(request))
        if response.status != 200:
            raise self._refusal(response.status, response.headers, body)
        return self._completion(body, response.content_type, request.capture, prompt)

    async def post(self, body: dict[str, Json]) -> tuple[int, bytes]:
        """A raw request to the endpoint: its status and its answer."""
        response, answer = await self._send(self._url, body)
        return response.status, answer

    async def _ask(self, path: str, body: dict[str, Json]) -> dict[str, Any]:
        """A question to the server beside the completions."""
        response, answer = await self._send(self._base_url.removesuffix("/v1") + path, body)
        if response.status != 200:
            raise self._refusal(response.status, response.headers, answer)
        decoded: dict[str, Any] = msgspec.json.decode(answer)
        return decoded

    async def _send(self, url: str, body: dict[str, Json]) -> tuple[aiohttp.ClientResponse, bytes]:
        """One request, whatever the answer; InfraError where none came."""
        assert self._session is not None, "open() comes first"
        try:
            async with self._session.post(url, data=_encode(body), allow_redirects=False) as response:
                return response, await self._whole(response)
        except (aiohttp.ClientError, OSError) as problem:
            raise InfraError(self._transport(problem), kind="transport") from None

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        """The body as it was before it was packed; one that is too long is not read to its end."""
        length, packed = response.content_length, "Content-Encoding" in response.headers
        if length is not None and length <= MAX_REPLY_BYTES and not packed:
            return await response.read()
        body = bytearray()
        if length is None or length <= MAX_REPLY_BYTES:
            async for part in response.content.iter_any():
                body += part
                if len(body) > MAX_REPLY_BYTES:
                    break
            else:
                return bytes(body)
        response.close()
        raise PolicyError(
            f"{self._url} answered with more than {MAX_REPLY_BYTES >> 20} MiB, not a chat completion",
            kind="bad_reply",
            retryable=True,
        )

    def _body(self, request: Request) -> dict[str, Json]:
        body: dict[str, Json] = {"model": self.model, "messages": [wire_message(m) for m in request.messages]}
        for option, value in request.sampling.items():
            if option == "extra":
                body.update(value)
            else:
                body[option] = value
        if asks(request.capture, "logprobs"):
            body |= {"logprobs": True, "top_logprobs": 0}
        if asks(request.capture, "tokens"):
            body["return_token_ids"] = True
        if request.tools:
            body["tools"] = [{"type": "function", "function": tool} for tool in request.tools]
        return body

    def _completion(
        self, body: bytes, content_type: str, capture: Capture = "text", prompt: list[int] | None = None
    ) -> Completion:
        try:
            reply = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as problem:
            raise PolicyError(
                f"{self._url} answered {_looks_like(body, content_type)}, not a chat completion "
                f"({problem}): {self._shown(body)}",
                kind="bad_reply",
                retryable=True,
            ) from None
        if not reply.choices:
            raise PolicyError(f"{self._url} answered without choices", kind="bad_reply", retryable=True)
        choice = reply.choices[0]
        message = choice.message
        content = message.content if not isinstance(message.content, list) else _joined(message.content)
        if content is None and message.refusal is not None:
            content = message.refusal
        tokens, reached = self._tokens(reply, choice, capture, prompt)
        return Completion(
            content=content,
            tokens=tokens,
            capture=reached,
            tool_calls=tuple(_call(call, n) for n, call in enumerate(message.tool_calls or ())),
            reasoning=message.reasoning_content or message.reasoning,
            finish=choice.finish_reason,
            usage=_usage(reply.usage),
            model=reply.model,
        )

    async def _prompt_ids(self, request: Request) -> list[int] | None:
        """The ids of the prompt, where they are not part of the reply."""
        return None

    def _tokens(
        self, reply: Reply, choice: Choice, capture: Capture, prompt: list[int] | None
    ) -> tuple[Tokens | None, Capture]:
        entries = choice.logprobs.content if choice.logprobs else None
        return packed(
            capture,
            prompt=prompt or reply.prompt_token_ids,
            output=choice.token_ids,
            logprobs=None if entries is None else [entry.logprob for entry in entries],
        )

    def _refusal(self, status: int, headers: Any, body: bytes) -> WindrowError:
        """The error that an HTTP status is."""
        detail = self._shown(body)
        text = f"{self._url} answered {status}: {detail}"
        if status >= 500 or status in TRANSIENT_STATUSES:
            return InfraError(
                text, kind=f"http_{status}", retry_after_s=_retry_after(headers.get("Retry-After"))
            )
        if status in (400, 413, 422) and _OVERFLOW.search(detail):
            return ContextOverflow(text)
        # A key or a model that the endpoint no longer takes is not this sample's fault: it is tried again.
        return PolicyError(text, kind=f"http_{status}", retryable=status in (401, 403, 404))

    async def _check_endpoint(self) -> None:
        """Find out before the first rollout whether this endpoint can serve the run."""
        status, _, body = await self._probe_call("GET", self._base_url + "/models", None)
        models: list[str] = []
        if status == 200:
            try:
                models = [model.id for model in _decode_models(body).data]
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                if body.lstrip()[:1] == b"<":
                    raise EndpointError(
                        f"{self._base_url}/models answered HTML, not JSON. Is the base URL right? It usually "
                        f"ends in /v1"
                    ) from None
        if self.model in models:
            return
        ask: dict[str, Json] = {
            "model": self.model,
            "messages": [{"role": "user", "content": "ping"}],
            "max_tokens": 1,
        }
        status, content_type, body = await self._probe_call("POST", self._url, _encode(ask))
        if status == 200:
            try:
                self._completion(body, content_type)
            except PolicyError as problem:
                raise EndpointError(f"{problem}. Is the base URL right? It usually ends in /v1") from None
        elif status == 404 or (400 <= status < 500 and "model" in self._shown(body).lower()):
            known = self._redactor.text(f" It serves: {', '.join(models[:10])}.") if models else ""
            raise EndpointError(
                f"model {self.model!r} is not known at {self._base_url}.{known} "
                f"It answered {status}: {self._shown(body)}"
            )

    async def _probe_call(self, method: str, url: str, data: bytes | None) -> tuple[int, str, bytes]:
        assert self._session is not None
        limit = aiohttp.ClientTimeout(total=self._probe_timeout_s)
        try:
            async with self._session.request(
                method, url, data=data, timeout=limit, allow_redirects=False
            ) as response:
                status, body = response.status, await self._whole(response)
        except TimeoutError:
            raise EndpointError(
                f"{url} did not answer within {self._probe_timeout_s:g} s. Is the model still loading? "
                f"--set policy.probe_timeout_s=… waits longer"
            ) from None
        except PolicyError as problem:
            raise EndpointError(f"{problem}. Is the base URL right? It usually ends in /v1") from None
        except aiohttp.ClientConnectorCertificateError as problem:
            raise EndpointError(f"cannot trust {self._base_url}: {self._transport(problem)}") from None
        except (aiohttp.ClientError, OSError) as problem:
            raise EndpointError(
                f"cannot reach {self._base_url}: {self._transport(problem)}. Is the server running?"
            ) from None
        if status in (401, 403):
            hint = "check the key" if "Authorization" in self._headers else _no_key_hint()
            raise EndpointError(f"{url} answered {status}: {self._shown(body)} ({hint})")
        if 300 <= status < 400:
            raise EndpointError(f"{url} answers with a redirect ({status}); give the URL it leads to")
        return status, response.content_type, body

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
        if isinstance(problem, aiohttp.ClientConnectorCertificateError):
            return (
                f"its certificate is refused ({problem.certificate_error}). Where it is your own, "
                f"SSL_CERT_FILE=FILE names the certificate to trust"
            )
        return self._redactor.text(str(problem) or type(problem).__name__)


def chat_policy(config: PolicyConfig, model: str, redactor: Redactor) -> ChatPolicy:
    if not config.base_url:
        raise UsageError(f"--model {model}: give --base-url URL of an OpenAI-compatible endpoint (…/v1)")
    base_url = expand(config.base_url, where="policy.base_url")
    _check_url(base_url)
    key = api_key(
        config.api_key_env or DEFAULT_KEY_VARIABLE, redactor, required=config.api_key_env is not None
    )
    return ChatPolicy(
        model,
        base_url,
        key=key,
        redactor=redactor,
        probe=config.probe,
        probe_timeout_s=config.probe_timeout_s,
    )


def _check_url(base_url: str) -> None:
    try:
        parts = urlsplit(base_url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        secret = "@" in parts.netloc or bool(parts.query or parts.fragment)
    except ValueError:
        valid = secret = False
    if secret or ("@" in base_url and not valid):  # not quoted back
        raise UsageError(
            "--base-url must not hold a user name, a password or a query: a key is given through the "
            "environment variable that --api-key-env names"
        )
    if not valid:
        raise UsageError(f"--base-url {base_url!r}: expected http://host[:port]/v1 or https://…")


def wire_message(message: Message) -> dict[str, Json]:
    """A message as the endpoint takes it: what the record calls it, without what only the record needs."""
    wire: dict[str, Json] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        wire["name"] = message.name
    return wire


def _decode(body: bytes) -> Reply:
    try:
        return _decode_reply(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # A reply cut in the middle of an emoji carries half a surrogate pair, which is not Unicode: the json module
        # takes it, and the recorder replaces it.
        if b"\\ud" not in body.lower():
            raise
        return msgspec.convert(json.loads(body), Reply)


def _call(call: _ToolCall, position: int) -> Call:
    arguments = call.function.arguments
    text = arguments if isinstance(arguments, str) else _encode(arguments).decode()
    return Call(id=call.id or f"call_{position}", name=call.function.name, arguments=text)


def _usage(usage: _Usage | None) -> Usage | None:
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
    )


def _joined(parts: list[dict[str, Any]]) -> str:
    return "".join(str(part.get("text", "")) for part in parts)


def _looks_like(body: bytes, content_type: str) -> str:
    if body.lstrip()[:1] == b"<" or "html" in content_type:
        return "HTML"
    return "something else" if body else "an empty body"


def _retry_after(value: str | None) -> float | None:
    """Retry-After in seconds: a number, or the time until an HTTP date."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _no_key_hint() -> str:
    return f"no key was sent: set {DEFAULT_KEY_VARIABLE}, or name another variable with --api-key-env"
