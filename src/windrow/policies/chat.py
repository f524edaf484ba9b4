"""The `chat` policy: any OpenAI-compatible /v1/chat/completions endpoint, or several that serve the same model."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from urllib.parse import urlsplit

from windrow.config import PolicyConfig, expand
from windrow.errors import InfraError, PolicyError, UsageError
from windrow.policies.base import ANY_SAMPLING, Completion, Policy, Request
from windrow.policies.capturing import LEVELS, asks, packed
from windrow.policies.endpoint import DEFAULT_KEY_VARIABLE, Endpoint
from windrow.policies.http import aiohttp
from windrow.policies.pool import Pool
from windrow.policies.rates import Rates
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
        base_urls: Sequence[str],
        *,
        key: str | None = None,
        redactor: Redactor | None = None,
        probe: bool = True,
        probe_timeout_s: float = 20.0,
        max_outage_s: float = 600.0,
        rates: Rates | None = None,
    ) -> None:
        self.model = model
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._redactor = redactor or Redactor()
        self._probe = probe
        self._probe_timeout_s = probe_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._max_outage_s = max_outage_s
        self._rates = rates
        self._use(base_urls)

    def _use(self, base_urls: Sequence[str]) -> None:
        self._pool = Pool(
            [Endpoint(url, self._redactor) for url in base_urls],
            lambda message: self.notify(self._redactor.text(message)),
            model=self.model,
            max_outage_s=self._max_outage_s,
            probe_timeout_s=self._probe_timeout_s,
        )

    @property
    def where(self) -> str:
        """The URLs that are asked."""
        return ", ".join(endpoint.base_url for endpoint in self._pool.endpoints)

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
            timeout=aiohttp.ClientTimeout(total=None),
            headers=self._headers,
        )
        for endpoint in self._pool.endpoints:
            endpoint.connect(self._session)
        if self._probe:
            await self._pool.check()

    async def close(self) -> None:
        await self._pool.close()
        if self._session is not None:
            await self._session.close()

    def hold(self, request: Request) -> Awaitable[None] | None:
        if not self._pool.may_go():
            return self._held(None)
        turn = self._rates.take() if self._rates is not None else None
        return None if turn is None else self._held(turn)

    async def _held(self, turn: Awaitable[None] | None) -> None:
        """Until it is this call's turn and an endpoint may be asked."""
        while True:
            if turn is not None:
                await turn
            if self._pool.may_go():
                return
            if turn is not None and self._rates is not None:
                self._rates.settle(0)  # it is not sent now
            await self._pool.wait()
            turn = self._rates.take() if self._rates is not None else None

    async def complete(self, request: Request) -> Completion:
        pool = self._pool
        endpoint = pool.pick(request.route)
        endpoint.in_flight += 1
        used: int | None = None  # tokens: unknown where the call is cut off
        try:
            completion = await self._ask(request, endpoint)
            if (usage := completion.usage) is not None:
                used = usage.prompt_tokens + usage.completion_tokens
        except InfraError as problem:
            used = 0
            pool.failed(endpoint, request, problem)
            raise
        except PolicyError:
            used = 0
            pool.answered(endpoint)
            raise
        finally:
            endpoint.in_flight -= 1
            if self._rates is not None:
                self._rates.settle(used)
        if endpoint.health.troubled:
            pool.answered(endpoint)
        return completion

    async def _ask(self, request: Request, endpoint: Endpoint) -> Completion:
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
        """A raw request to the first endpoint: its status and its answer."""
        endpoint = self._pool.endpoints[0]
        response, answer = await endpoint.send(endpoint.url, body)
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
    given = [config.base_url] if isinstance(config.base_url, str) else config.base_url
    base_urls = [expand(url, where="policy.base_url") for url in given]
    for url in base_urls:
        _check_url(url)
    twice = next((url for url in base_urls if base_urls.count(url) > 1), None)
    if twice is not None:
        raise UsageError(f"--base-url {twice}: given twice")
    key = api_key(
        config.api_key_env or DEFAULT_KEY_VARIABLE, redactor, required=config.api_key_env is not None
    )
    return ChatPolicy(
        model,
        base_urls,
        key=key,
        redactor=redactor,
        probe=config.probe,
        probe_timeout_s=config.probe_timeout_s,
        max_outage_s=config.max_outage_s,
        rates=_rates(config),
    )


def _rates(config: PolicyConfig) -> Rates | None:
    if config.requests_per_minute is None and config.tokens_per_minute is None:
        return None
    return Rates(config.requests_per_minute, config.tokens_per_minute, max_tokens=config.sampling.max_tokens)


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
