"""The `chat` policy: any OpenAI-compatible /v1/chat/completions endpoint."""

from __future__ import annotations

from urllib.parse import urlsplit

from windrow.config import PolicyConfig, expand
from windrow.errors import UsageError
from windrow.policies.base import ANY_SAMPLING, Completion, Policy, Request
from windrow.policies.capturing import LEVELS, asks, packed
from windrow.policies.endpoint import DEFAULT_KEY_VARIABLE, Endpoint
from windrow.policies.http import aiohttp
from windrow.policies.wire import Choice, Reply, wire_message
from windrow.records import Capture, Json, Tokens
from windrow.secrets import Redactor, api_key


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
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._redactor = redactor or Redactor()
        self._probe = probe
        self._probe_timeout_s = probe_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._use(base_url)

    def _use(self, base_url: str) -> None:
        self._endpoint = Endpoint(base_url, self._redactor)

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
            timeout=aiohttp.ClientTimeout(total=None),
            headers=self._headers,
        )
        self._endpoint.connect(self._session)
        if self._probe:
            await self._endpoint.check(self.model, self._probe_timeout_s)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def complete(self, request: Request) -> Completion:
        endpoint = self._endpoint
        prompt = await self._prompt_ids(request, endpoint) if asks(request.capture, "tokens") else None
        reply = await endpoint.chat(self._body(request))
        choice = reply.choices[0]
        tokens, reached = self._tokens(reply, choice, request.capture, prompt)
        message = choice.message
        return Completion(
            content=message.said,
            tokens=tokens,
            capture=reached,
            tool_calls=message.calls if message.tool_calls else (),
            reasoning=message.reasoning_content or message.reasoning,
            finish=choice.finish_reason,
            usage=reply.usage.counted if reply.usage is not None else None,
            model=reply.model,
        )

    async def post(self, body: dict[str, Json]) -> tuple[int, bytes]:
        """A raw request to the endpoint: its status and its answer."""
        response, answer = await self._endpoint.send(self._endpoint.url, body)
        return response.status, answer

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

    async def _prompt_ids(self, request: Request, endpoint: Endpoint) -> list[int] | None:
        """The ids of the prompt, where they are not part of the reply."""
        return None

    def _tokens(
        self, reply: Reply, choice: Choice, capture: Capture, prompt: list[int] | None
    ) -> tuple[Tokens | None, Capture]:
        entries = choice.entries
        return packed(
            capture,
            prompt=prompt or reply.prompt_token_ids,
            output=choice.token_ids,
            logprobs=None if entries is None else [entry.logprob for entry in entries],
        )


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
