"""The `chat` policy: an endpoint in one of the dialects, or several that serve the same model."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from urllib.parse import urlsplit

from windrow.config import PolicyConfig, expand
from windrow.errors import InfraError, PolicyError, UsageError
from windrow.policies.base import Completion, Policy, PolicyNeeds, Request
from windrow.policies.capture import asks
from windrow.policies.dialects import AUTO, DIALECTS, Dialect, scoring
from windrow.policies.endpoint import Endpoint
from windrow.policies.endpoint_pool import EndpointPool
from windrow.policies.probe import Facts, find_out, identify, require, require_top
from windrow.policies.rate_limits import Rates
from windrow.records import Json
from windrow.util.redaction import Redactor, api_key


class ChatPolicy(Policy):
    """Sends each request to one of its endpoints; calls wait for rate limits and outages in `hold`."""

    name = "chat"
    context_tokens: int | None = None  # of one episode, where it is known

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
        dialect: str | Dialect = AUTO,
    ) -> None:
        self.model = model
        self._auto = dialect == AUTO
        if isinstance(dialect, str):
            dialect = DIALECTS["vllm" if dialect == AUTO else dialect]
        self.dialect = dialect
        self.accepts = self.dialect.accepts
        self.own_fields = self.dialect.own_fields
        self.captures = self.dialect.captures
        self.gives_top_logprobs = self.dialect.gives_top_logprobs
        self.scores_ids = scoring(self.dialect) is not None
        self.reads_tool_calls = self.dialect.reads_tool_calls
        if self.dialect.default_max_tokens is not None:
            self.default_sampling = {"max_tokens": self.dialect.default_max_tokens}
        self._headers = {"Content-Type": "application/json", **self.dialect.headers(key)}
        self._redactor = redactor or Redactor()
        self._probe = probe
        self._identified: set[Endpoint] = set()
        self._probe_timeout_s = probe_timeout_s
        self._max_outage_s = max_outage_s
        self._rates = rates
        self._use(base_urls)

    def _use(self, base_urls: Sequence[str]) -> None:
        self._pool = EndpointPool(
            [
                Endpoint(url, self._redactor, self.dialect, context_tokens=self.context_tokens)
                for url in base_urls
            ],
            lambda message: self.notify(self._redactor.text(message)),
            model=self.model,
            max_outage_s=self._max_outage_s,
            probe_timeout_s=self._probe_timeout_s,
            find_out=self._find_out,
        )

    async def _find_out(self, endpoint: Endpoint) -> None:
        """Check that the endpoint gives what is to be captured, where that is more than text."""
        needs = self.needs
        if asks(needs.capture, "logprobs"):
            facts = await self.facts(endpoint, needs)
            require(facts, needs.capture, endpoint.base_url)
            require_top(facts, needs.top_logprobs, endpoint.base_url)

    async def _identify(self, endpoint: Endpoint) -> None:
        """Set the dialect of an endpoint that is to score ids, where the configuration names none."""
        if endpoint not in self._identified:
            _, name = await identify(endpoint, self._probe_timeout_s)
            endpoint.dialect = DIALECTS[name or "openai"]
            self._identified.add(endpoint)

    async def facts(self, endpoint: Endpoint, needs: PolicyNeeds) -> Facts:
        """What an endpoint is, and how much of `needs` it gives."""
        return await find_out(
            endpoint,
            self.model,
            needs.capture,
            top=needs.top_logprobs,
            auto=self._auto,
            timeout_s=self._probe_timeout_s,
        )

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return self._pool.endpoints

    @property
    def where(self) -> str:
        """The base URLs, for messages."""
        return ", ".join(endpoint.base_url for endpoint in self._pool.endpoints)

    async def open(self, needs: PolicyNeeds | None = None) -> None:
        await super().open(needs)
        for endpoint in self._pool.endpoints:
            endpoint.open(self._headers)
        if self._probe:
            await self._pool.check()

    async def close(self) -> None:
        await self._pool.close()
        for endpoint in self._pool.endpoints:
            await endpoint.close()

    def hold(self, request: Request) -> Awaitable[None] | None:
        if not self._pool.is_available():
            return self._held(None)
        turn = self._rates.take() if self._rates is not None else None
        return None if turn is None else self._held(turn)

    async def _held(self, turn: Awaitable[None] | None) -> None:
        """Wait until it is this call's turn and an endpoint is available."""
        while True:
            if turn is not None:
                await turn
            if self._pool.is_available():
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
            if request.forced is not None and self._auto:
                await self._identify(endpoint)
            completion = await endpoint.complete(request, self.model)
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

    async def post(self, body: dict[str, Json]) -> tuple[int, bytes]:
        """Send a raw request to the first endpoint; return its status and its answer."""
        endpoint = self._pool.endpoints[0].on_new_connections()
        response = await endpoint.send(endpoint.url, body)
        return response.status, response.body


def chat_policy(config: PolicyConfig, model: str, redactor: Redactor) -> ChatPolicy:
    if not config.base_url:
        raise UsageError(f"--model {model}: give --base-url URL of an OpenAI-compatible endpoint (…/v1)")
    urls = [config.base_url] if isinstance(config.base_url, str) else config.base_url
    base_urls = [expand(url, where="policy.base_url") for url in urls]
    for url in base_urls:
        _check_url(url)
    twice = next((url for url in base_urls if base_urls.count(url) > 1), None)
    if twice is not None:
        raise UsageError(f"--base-url {twice}: given twice")
    variable = "OPENAI_API_KEY" if config.dialect == AUTO else DIALECTS[config.dialect].key_variable
    key = api_key(config.api_key_env or variable, redactor, required=config.api_key_env is not None)
    return ChatPolicy(
        model,
        base_urls,
        key=key,
        redactor=redactor,
        probe=config.probe,
        probe_timeout_s=config.probe_timeout_s,
        max_outage_s=config.max_outage_s,
        rates=_rates(config),
        dialect=config.dialect,
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
