"""Token in, token out: the prompt is sent as ids, and goes on from the very ids that were sampled before.

The next prompt of an episode is what its last call saw and said, id for id, and then the ids of what the messages add
to it. Whether they only add is looked at in every call: the text of the ids so far has to be the beginning of the text
that the chat template makes of all messages. Where it is not (a template that drops old reasoning, an edited history),
the whole new text is tokenised, and the recorded prompt does not extend the earlier turn: a fork, which is reported.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from windrow.errors import PolicyError
from windrow.policies.base import Completion, ForcedTokens, Request, Route
from windrow.policies.capture import packed, scored_tokens
from windrow.policies.dialects.base import TOKENS, Dialect
from windrow.policies.prompt_ids import PromptReader, pack_ids
from windrow.policies.top_logprobs import TopTokens, with_top
from windrow.policies.wire import wire_message
from windrow.records import Json, Message, Usage

if TYPE_CHECKING:
    from windrow.policies.endpoint import Endpoint

MOST_BRANCHES = 16  # held for an episode; what goes on from an older one is tokenised as a whole
MAX_TOKENS = 1024  # where nothing is said: on the routes that take ids, servers stop after a few dozen
END_OF_THOUGHT = "</think>"


class Sampled(NamedTuple):
    """A reply as the server tells it."""

    text: str | None  # None: it is the text of the ids, without the token that ended it
    ids: Sequence[int]  # with the token that ended it
    logprobs: Sequence[float | None] | None  # one for each id; None where the server left one out
    finish: str | None
    prompt_tokens: int | None  # None: the server does not count them
    cached_tokens: int = 0
    model: str | None = None
    version: str | None = None
    prompt: bytes | None = None  # its ids as the server has seen them, packed, where it tells
    # The likeliest tokens for each id, where they are asked for.
    top: Sequence[TopTokens | None] | None = None
    overflowed: bool = False  # the context was full: the reply ended there, or went on without its beginning


class Scored(NamedTuple):
    """What a model gives for ids that were not its own: a logprob for each, the likeliest in their places, the cost."""

    logprobs: Sequence[float]
    top: Sequence[TopTokens] | None
    usage: Usage


class Rendering(NamedTuple):
    """What the chat template makes of the messages; `ids` where the server gives them with it."""

    text: str
    ids: list[int] | None


class Branch:
    """Calls that go on from each other: their text and ids, and where each of them ended."""

    __slots__ = ("ends", "ids", "text")

    def __init__(self, text: str, ids: Sequence[int]) -> None:
        self.text = text
        self.ids = array("i", ids)
        self.ends = [(len(text), len(ids))]

    def reaches(self, text: str) -> tuple[int, int]:
        """How far `text` begins with a call of this branch: in characters and in ids."""
        return next((end for end in reversed(self.ends) if text.startswith(self.text[: end[0]])), (0, 0))

    def extend(self, text: str, ids: Sequence[int]) -> None:
        """`text` and `ids` are the whole of what the branch has now."""
        self.text = text
        self.ids.extend(ids[len(self.ids) :])
        self.ends.append((len(text), len(ids)))


class TokenDialect(Dialect):
    """The base of dialects that send prompts as ids. A subclass says how its server renders, tokenizes and samples."""

    captures = TOKENS
    takes_ids = True
    reads_tool_calls = False
    gives_top_logprobs = True
    answers = "a completion"

    async def render(self, request: Request, model: str, endpoint: Endpoint) -> Rendering:
        """All messages through the server's chat template, up to where the reply begins."""
        raise NotImplementedError

    async def tokenize(self, text: str, model: str, endpoint: Endpoint, *, whole: bool) -> list[int]:
        """`whole` text begins as a prompt does; other text goes on from ids."""
        raise NotImplementedError

    async def detokenize(self, ids: Sequence[int], model: str, endpoint: Endpoint) -> str:
        """The text of ids, special tokens included."""
        raise NotImplementedError

    def body_of(self, ids: list[int], request: Request, model: str) -> dict[str, Json]:
        raise NotImplementedError

    def sampled(self, answer: bytes, prompts: PromptReader) -> Sampled:
        """What the answer tells; `prompts` reads the ids of the prompt, where they are told."""
        raise NotImplementedError

    def likeliest(self, answer: bytes, reply: Sampled) -> Sequence[TopTokens | None] | None:
        """The likeliest tokens for each id of the reply; None where the server told of none."""
        raise NotImplementedError

    async def score_forced(self, forced: ForcedTokens, top: int, model: str, endpoint: Endpoint) -> Scored:
        """The logprobs of ids that are given."""
        raise NotImplementedError

    async def complete(self, request: Request, model: str, endpoint: Endpoint) -> Completion:
        if request.forced is not None:
            return await self._scored(request.forced, request.top_logprobs, model, endpoint)
        rendering = await self.render(request, model, endpoint)
        branches = branches_of(request.route)
        branch, (chars, id_count) = longest(branches, rendering.text)
        if branch is None:
            ids = rendering.ids
            if ids is None:
                ids = await self.tokenize(rendering.text, model, endpoint, whole=True)
        else:
            added = await self.tokenize(rendering.text[chars:], model, endpoint, whole=False)
            ids = [*branch.ids[:id_count], *added]
        self.check_length(ids, endpoint)
        answer = await endpoint.ask(self, self.body_of(ids, request, model))
        reply = endpoint.read(self, answer, lambda body: self._read_reply(body, request))
        if reply.logprobs is not None and None in reply.logprobs:
            reply = await self.fill(ids, reply, endpoint)
        sampled_text = await self.detokenize(reply.ids, model, endpoint) if reply.ids else ""
        if reply.text is None:
            spoken = reply.ids[:-1] if reply.finish == "stop" else reply.ids
            reply = reply._replace(text=await self.detokenize(spoken, model, endpoint) if spoken else "")
        remember(branches, branch, rendering.text + sampled_text, [*ids, *reply.ids])
        whole = not reply.overflowed or len(ids) + len(reply.ids) <= await self.context_tokens(endpoint)
        return self._completion(request, ids, reply, whole=whole)

    async def _scored(self, forced: ForcedTokens, top: int, model: str, endpoint: Endpoint) -> Completion:
        """The ids as they were given, with the logprobs that the model gives them."""
        scored = await self.score_forced(forced, top, model, endpoint)
        if forced.text is not None:
            output_text = await self.detokenize(forced.output, model, endpoint)
            if not same_words(forced.text, output_text):
                raise PolicyError(
                    f"to {model!r} at {endpoint.base_url} the ids say {output_text!r:.80}, not {forced.text!r:.80}: it has "
                    f"another vocabulary",
                    kind="other_vocabulary",
                )
        tokens = scored_tokens(forced.prompt, forced.output, scored.logprobs)
        return Completion(
            content=None,
            finish=None,
            usage=scored.usage,
            tokens=with_top(tokens, top, scored.top),
            capture="tokens",
            model=model,
        )

    def _read_reply(self, answer: bytes, request: Request) -> Sampled:
        reply = self.sampled(answer, request.prompts)
        has_top = request.top_logprobs and reply.logprobs is not None
        return reply._replace(top=self.likeliest(answer, reply)) if has_top else reply

    async def fill(self, ids: list[int], reply: Sampled, endpoint: Endpoint) -> Sampled:
        """A reply in which some logprobs are left out, with those that are to be had."""
        return reply

    async def context_tokens(self, endpoint: Endpoint) -> int:
        """How many tokens the server holds at a time; 0 where it does not say."""
        return 0

    def check_length(self, ids: list[int], endpoint: Endpoint) -> None:
        """Raise ContextOverflow for a prompt that is known not to fit."""

    def _completion(self, request: Request, ids: list[int], reply: Sampled, *, whole: bool) -> Completion:
        """`whole`: the prompt was there to the end."""
        prompt = pack_ids(ids)
        seen = whole and reply.prompt_tokens in (None, len(ids)) and reply.prompt in (None, prompt)
        tokens, capture = packed(
            request.capture,
            prompt=prompt if seen else None,
            output=reply.ids,
            logprobs=known_logprobs(reply.logprobs),
            kind=self.logprob_kind,
        )
        text = reply.text or ""
        thought, end, spoken = text.rpartition(END_OF_THOUGHT)
        return Completion(
            content=spoken.lstrip("\n") if end else text,
            reasoning=thought.removeprefix("<think>").strip("\n") if end else None,
            finish=reply.finish,
            usage=Usage(
                prompt_tokens=len(ids) if reply.prompt_tokens is None else reply.prompt_tokens,
                completion_tokens=len(reply.ids),
                cached_tokens=reply.cached_tokens,
            ),
            tokens=with_top(tokens, request.top_logprobs, reply.top),
            capture=capture,
            model=reply.model,
            version=reply.version,
        )


def known_logprobs(logprobs: Sequence[float | None] | None) -> Sequence[float] | None:
    """All of them or none."""
    if logprobs is None:
        return None
    present = [logprob for logprob in logprobs if logprob is not None]
    return present if len(present) == len(logprobs) else None


def same_words(text: str, output_text: str) -> bool:
    """Whether `output_text`, the text of all ids of a reply, has the characters of `text` in their order.

    A record has the text without special tokens; spaces, and characters that are cut off, are told in several ways.
    """
    remaining = iter(output_text)
    return all(character in remaining for character in "".join(text.replace("\ufffd", "").split()))


def branches_of(route: Route | None) -> list[Branch]:
    """The branches of the episode that a call belongs to; of none, a call that goes on from nothing."""
    if route is None:
        return []
    if route.branches is None:
        route.branches = []
    branches: list[Branch] = route.branches
    return branches


def longest(branches: list[Branch], text: str) -> tuple[Branch | None, tuple[int, int]]:
    """The branch that holds most of the beginning of `text`, of equals the latest."""
    best: Branch | None = None
    most = (0, 0)
    for branch in reversed(branches):
        reached = branch.reaches(text)
        if reached > most:
            best, most = branch, reached
    return best, most


def remember(branches: list[Branch], branch: Branch | None, text: str, ids: list[int]) -> None:
    """Keep where a call ended: further on its branch, or on a new one where others went on from there already."""
    if (
        branch is not None
        and text.startswith(branch.text)
        and branch.ids == array("i", ids[: len(branch.ids)])
    ):
        branch.extend(text, ids)
    else:
        branches.append(Branch(text, ids))
        del branches[:-MOST_BRANCHES]


def template_items(message: Message) -> list[Json]:
    """A message as a chat template takes it: with its reasoning, which the template may keep or drop."""
    wire = wire_message(message)
    if message.reasoning:
        wire["reasoning_content"] = message.reasoning
    return [wire]
