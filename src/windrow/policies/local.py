"""The `local` policy: llama.cpp in this process, for `--model local` and `--model local:/path/any.gguf`.

xllamacpp opens an OpenAI-compatible port on loopback; this is a chat policy that brings its own endpoint. The model's
file hash is its identity, so that the same name with other weights is another policy.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from windrow.config import LocalConfig
from windrow.errors import EndpointError, UsageError
from windrow.policies.base import PolicyNeeds
from windrow.policies.chat import ChatPolicy
from windrow.policies.dialects.llamacpp import LlamacppEmbedded
from windrow.policies.endpoint import Endpoint
from windrow.policies.models import DEFAULT_MODEL, file_sha256, find_model
from windrow.records import Json
from windrow.util.redaction import Redactor

MAX_TOKENS = 512  # a small model may ramble until its context is full
MAX_THREADS = 8  # more only helps larger models; policy.local.threads says otherwise
ACCEPTS = frozenset(
    "temperature top_p top_k min_p max_tokens stop presence_penalty frequency_penalty seed extra".split()
)
DEFAULT_SAMPLING: Mapping[str, Json] = MappingProxyType({"max_tokens": MAX_TOKENS})


class LocalPolicy(ChatPolicy):
    name = "local"

    def __init__(self, path: Path, config: LocalConfig, redactor: Redactor) -> None:
        super().__init__(f"local:{path.stem}", (), redactor=redactor, dialect=LlamacppEmbedded())
        self.accepts = ACCEPTS
        self.default_sampling = DEFAULT_SAMPLING
        self.context_tokens = config.context_tokens
        self._path = path
        self._config = config
        self._sha256 = file_sha256(path)
        self._server: Any = None
        self.default_concurrency = 2 * config.parallel
        self.default_capture = "tokens"

    def identity(self) -> dict[str, Json]:
        return {**super().identity(), "sha256": self._sha256, "context_tokens": self._config.context_tokens}

    async def open(self, needs: PolicyNeeds | None = None) -> None:
        self._server = await asyncio.to_thread(_start, self._path, self.model, self._config)
        self._use([self._server.listening_address + "/v1"])
        await super().open(needs)

    async def _find_out(self, endpoint: Endpoint) -> None:
        """Nothing to find out: the server is our own."""

    async def close(self) -> None:
        await super().close()
        self._server = None  # the server ends with its object


def local_policy(target: str, config: LocalConfig, redactor: Redactor) -> LocalPolicy:
    """`target` is empty for the default model, else the path of a GGUF file."""
    path = Path(target) if target else find_model(DEFAULT_MODEL).path
    if not path.is_file():
        if target:
            raise UsageError(f"--model local:{target}: there is no such file")
        raise UsageError(f"the model file {path.name} is not here yet; type: windrow models pull")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UsageError(f"{path} is not a GGUF file")
    _xllamacpp()
    return LocalPolicy(path, config, redactor)


def default_threads() -> int:
    """As many as there are idle cores now. llama.cpp's threads wait for each other in a spin: one more than there
    are cores for costs far more than one fewer (measured: bench/RESULTS.md)."""
    idle = len(os.sched_getaffinity(0)) - int(os.getloadavg()[0])
    return max(1, min(idle, MAX_THREADS))


def _start(path: Path, alias: str, config: LocalConfig) -> Any:
    xllamacpp = _xllamacpp()
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.model_alias = {alias}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.n_parallel = config.parallel
    parameters.n_ctx = config.context_tokens * config.parallel
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = (
        config.threads or default_threads()
    )
    parameters.use_jinja = True
    parameters.verbosity = -1
    parameters.ui = False
    try:
        return xllamacpp.Server(parameters)
    except RuntimeError as problem:
        raise EndpointError(f"llama.cpp cannot load {path}: {problem}") from None


def _xllamacpp() -> Any:
    try:
        import xllamacpp
    except ImportError:
        raise UsageError(
            "--model local needs the extra 'local'; type: pip install 'windrow-rl[local]'"
        ) from None
    return xllamacpp
