"""The logprobs of forced ids from llama.cpp, which reports none for a prompt: the ids are made to be sampled.

A grammar that lets only one id through at each place has the server sample the whole output in one call, and tell the
model's own logprob at every step. Where the server does not follow (a part of a character ends the match, a token
that ends replies, a version without such grammars), the output is halved, down to single ids. Those are made likely by a bias, which
changes what is sampled and not the logprobs that are reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from windrow.errors import InfraError, PolicyError
from windrow.policies.base import ForcedTokens
from windrow.policies.dialects.token_in_token_out import Sampled, Scored
from windrow.policies.prompt_ids import PromptReader
from windrow.policies.top_logprobs import TopTokens
from windrow.records import Json, Usage

if TYPE_CHECKING:
    from windrow.policies.dialects.llamacpp import LlamacppCompletion
    from windrow.policies.endpoint import Endpoint

SURE = 1000.0  # added to a logit: nothing else is sampled


class _IdScore(NamedTuple):
    logprob: float
    top: TopTokens


async def score_forced_ids(
    dialect: LlamacppCompletion, forced: ForcedTokens, top: int, endpoint: Endpoint
) -> Scored:
    dialect.check_length([*forced.prompt, *forced.output], endpoint)
    forcing = _Forcing(dialect, top, endpoint)
    # The last id is often one that ends replies, which no grammar takes.
    scores = [
        *await forcing.run([*forced.prompt], [*forced.output[:-1]]),
        *await forcing.run([*forced.prompt, *forced.output[:-1]], [*forced.output[-1:]]),
    ]
    return Scored(
        [score.logprob for score in scores], [score.top for score in scores] if top else None, forcing.usage
    )


class _Forcing:
    """The calls that the ids of one output take."""

    def __init__(self, dialect: LlamacppCompletion, top: int, endpoint: Endpoint) -> None:
        self._dialect = dialect
        self._top = top
        self._endpoint = endpoint
        self.usage = Usage()
        self._grammars = True  # until the server refuses one

    async def run(self, prefix: list[int], ids: list[int]) -> list[_IdScore]:
        if not ids:
            return []
        if len(ids) == 1:
            return [await self._single(prefix, ids[0])]
        scores = await self._followed(prefix, ids) if self._grammars else None
        if scores is not None:
            return scores
        half = len(ids) // 2
        first = await self.run(prefix, ids[:half])
        return first + await self.run([*prefix, *ids[:half]], ids[half:])

    async def _followed(self, prefix: list[int], ids: list[int]) -> list[_IdScore] | None:
        """What one call tells in which only these ids could be sampled; None where it did not go so."""
        grammar = "root ::= " + " ".join(f"<[{number}]>" for number in ids)
        try:
            reply = await self._sampled(prefix, len(ids), {"grammar": grammar, "temperature": 0})
        except InfraError as problem:
            if problem.kind != "http_500":
                raise
            return None
        except PolicyError as problem:
            if problem.kind != "http_400":
                raise
            self._grammars = False
            return None
        if list(reply.ids) != ids or reply.logprobs is None or None in reply.logprobs:
            return None
        by_position = reply.top or [()] * len(ids)
        return [
            _IdScore(logprob or 0.0, top or ())
            for logprob, top in zip(reply.logprobs, by_position, strict=True)
        ]

    async def _single(self, prefix: list[int], token: int) -> _IdScore:
        bias: dict[str, Json] = {"logit_bias": [[token, SURE]], "temperature": 0}
        reply = await self._sampled(prefix, 1, bias)
        if list(reply.ids) == [token] and reply.logprobs and reply.logprobs[0] is not None:
            return _IdScore(reply.logprobs[0], (reply.top or [()])[0] or ())
        logprob, top = await self._dialect.score(prefix, token, self._endpoint)  # a part of a character
        self.usage += Usage(prompt_tokens=len(prefix), completion_tokens=1)
        if logprob is None:
            raise PolicyError(
                f"{self._endpoint.base_url} does not know the id {token}: it has another vocabulary",
                kind="other_vocabulary",
            )
        return _IdScore(logprob, top)

    async def _sampled(self, prefix: list[int], count: int, options: dict[str, Json]) -> Sampled:
        body: dict[str, Json] = {"prompt": prefix, "n_predict": count, "n_probs": max(1, self._top)}
        body |= {"return_tokens": True, "stream": False, **options}
        answer = await self._endpoint.ask(self._dialect, body)
        reply = self._endpoint.read(self._dialect, answer, self._read)
        self.usage += Usage(
            prompt_tokens=reply.prompt_tokens or 0,
            completion_tokens=len(reply.ids),
            cached_tokens=reply.cached_tokens,
        )
        if reply.prompt_tokens != len(prefix):
            raise PolicyError(
                f"the server saw {reply.prompt_tokens} ids of a prompt of {len(prefix)}", kind="bad_reply"
            )
        return reply

    def _read(self, answer: bytes) -> Sampled:
        reply = self._dialect.sampled(answer, PromptReader())
        has_top = self._top and reply.logprobs is not None  # nothing is told of a part of a character
        return reply._replace(top=self._dialect.likeliest(answer, reply)) if has_top else reply
