"""Judges: the models that scorers ask. They are opened once, called concurrently, and never asked the same question
twice.

A `JudgeContext` serves one grading: it records each call as evidence, and adds up the usage.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import Generic, NamedTuple, TypeVar, cast

import msgspec

from windrow.engine.models import Model, priced
from windrow.envs.base import Messages
from windrow.errors import PolicyError, ScorerError
from windrow.identity import digest
from windrow.policies import Completion, Request
from windrow.policies.base import ForcedTokens
from windrow.policies.calls import complete
from windrow.records import Judgement, Message, TeacherTokens, Usage
from windrow.store.judgements import Judgements, JudgeReply
from windrow.util.blobs import Blobs, MemoryBlobs, shown
from windrow.util.deadlines import Deadline
from windrow.util.freeze import Freezer

T = TypeVar("T")

DEFAULT_CONCURRENCY = 64
TRIES = 3  # of one judgement, each after the first with what was wrong with the one before

AGAIN = (
    "Your answer could not be read: {problem}. Answer once more, in exactly the form that was asked for, "
    "and with nothing else."
)


class Judges:
    """The models of all scorers that have some, by scorer and name."""

    def __init__(
        self,
        models: Mapping[str, Mapping[str, Model]],
        *,
        call_timeout_s: float,
        concurrency: int | None = None,
        judgements: Judgements | None = None,
        blobs: Blobs | None = None,
        on_usage: Callable[[Usage], None] = lambda usage: None,
    ) -> None:
        self._models = models
        self._call_timeout_s = call_timeout_s
        self._call_slots = {
            id(model): asyncio.Semaphore(
                concurrency or model.policy.default_concurrency or DEFAULT_CONCURRENCY
            )
            for model in self.all()
        }
        self._asking: dict[str, asyncio.Event] = {}
        self.judgements = judgements or Judgements()
        self.blobs = blobs or MemoryBlobs()
        self._on_usage = on_usage

    def all(self) -> Iterable[Model]:
        """Return each model once, even if several scorers ask it."""
        return {id(model): model for models in self._models.values() for model in models.values()}.values()

    def context(self, scorer: str) -> JudgeContext:
        return JudgeContext(self, scorer, self._models.get(scorer, {}))

    async def open(self, notify: Callable[[str], None]) -> None:
        for model in self.all():
            await model.open(notify)

    async def close(self) -> None:
        async with AsyncExitStack() as stack:  # each is closed, whatever the others do
            for model in self.all():
                stack.push_async_callback(model.policy.close)

    async def answer(
        self, model: Model, asked: tuple[Message, ...], read: Callable[[str], T | Awaitable[T]]
    ) -> ReadReply[T]:
        """Return the judge's reply to these messages. The same question is asked once, even if several callers ask it
        concurrently, and a readable reply is stored.
        """
        key = _key(model, asked)
        while (other := self._asking.get(key)) is not None:
            await other.wait()
        earlier_reply = await self.judgements.get(key)
        if earlier_reply is not None:
            earlier = await _read_reply(earlier_reply.reply, earlier_reply.usage, read, None)
            return earlier._replace(cached=True)
        self._asking[key] = asyncio.Event()
        try:
            async with self.call_slot(model):  # until it is stored: a crash loses only calls that have a slot
                request = Request(
                    messages=await shown(asked, self.blobs),
                    tools=(),
                    sampling=model.sampling,
                    id=key,
                    attempt=1,
                    turn=0,
                )
                completion = await self.completion(model, request)
                text = Freezer().text(completion.content or "")
                read_reply = await _read_reply(text, completion.usage, read, completion.finish)
                if read_reply.problem is None:
                    await self.judgements.keep(
                        JudgeReply(key=key, reply=read_reply.reply, usage=read_reply.usage)
                    )
                return read_reply
        finally:
            self._asking.pop(key).set()

    def call_slot(self, model: Model) -> asyncio.Semaphore:
        """Return a slot for one call of the model; the number of slots limits its concurrent calls."""
        return self._call_slots[id(model)]

    async def completion(self, model: Model, request: Request) -> Completion:
        """Make one call; its usage is counted even if the reply is of no use."""
        try:
            completion = await complete(
                model.policy,
                request,
                retries=model.call_retries,
                backoff_s=model.backoff_s,
                timeout_s=self._call_timeout_s,
            )
        except PolicyError as problem:
            raise ScorerError(
                f"the judge {model.policy.model!r}: {problem}", kind=problem.kind, retryable=False
            ) from problem
        usage = priced(completion.usage, model.price)
        if usage is not None:
            self._on_usage(usage)
        return completion if usage is completion.usage else msgspec.structs.replace(completion, usage=usage)


class JudgeContext:
    """Implements `ScoreContext` for one grading of one scorer."""

    def __init__(self, judges: Judges, scorer: str, models: Mapping[str, Model]) -> None:
        self._judges = judges
        self._scorer = scorer
        self._models = models
        self.judgements: list[Judgement] = []
        self.usage: Usage | None = None
        self._deadline: Deadline | None = None

    def model(self, name: str) -> Model:
        model = self._models.get(name)
        if model is None:
            raise ScorerError(
                f"scorer {self._scorer!r} has no judge {name!r}; give one with --judge MODEL", retryable=False
            )
        return model

    def timed_by(self, deadline: Deadline) -> None:
        """Set the deadline of the scorer's own time, which is paused while a judge is called."""
        self._deadline = deadline

    @contextmanager
    def _call(self) -> Iterator[None]:
        if self._deadline is not None:
            self._deadline.pause()
        try:
            yield
        finally:
            if self._deadline is not None:
                self._deadline.resume()

    def spend(self, usage: Usage | None) -> None:
        """Count the usage of a call."""
        if usage is not None:
            self.usage = usage if self.usage is None else self.usage + usage

    def blob_path(self, name: str) -> str | None:
        return self._judges.blobs.path(name)

    async def ask(
        self,
        messages: Messages,
        read: Callable[[str], T | Awaitable[T]],
        *,
        about: str | None = None,
        judge: str = "judge",
    ) -> T:
        model = self.model(judge)
        freezer = Freezer()
        asked = tuple(freezer.message(message, "env") for message in messages)
        problem: str | None = None
        for _ in range(TRIES):
            read_reply = await self._ask_once(model, asked, read, about)
            problem = read_reply.problem
            if problem is None:
                return cast(T, read_reply.finding)
            again = AGAIN.format(problem=problem)
            asked = (*asked, _message("assistant", read_reply.reply), _message("user", again))
        raise ScorerError(
            f"the judge {model.policy.model!r} gave no judgement that could be read in {TRIES} tries"
            + (f" ({about})" if about else "")
            + f": {problem}",
            kind="unreadable_judgement",
        )

    async def scored(self, given: ForcedTokens, *, top: int = 0, judge: str = "judge") -> TeacherTokens:
        model = self.model(judge)
        request = Request(
            messages=(),
            tools=(),
            sampling={},
            id=f"{self._scorer}-{id(self):x}",
            attempt=1,
            turn=0,
            capture="tokens",
            top_logprobs=top,
            forced=given,
        )
        with self._call():
            completion = await self._judges.completion(model, request)
        self.spend(completion.usage)
        tokens = completion.tokens
        if tokens is None or tokens.logprobs is None or len(tokens.logprobs) != 4 * len(given.output):
            raise ScorerError(
                f"the judge {model.policy.model!r} gave no logprob for each of {len(given.output)} ids"
            )
        if top and tokens.top is None:
            raise ScorerError(f"the judge {model.policy.model!r} did not tell its {top} likeliest tokens")
        likeliest = Freezer().value(tokens.top, "top")
        return TeacherTokens(logprobs=tokens.logprobs, model=model.policy.model, top=likeliest)

    async def _ask_once(
        self,
        model: Model,
        asked: tuple[Message, ...],
        read: Callable[[str], T | Awaitable[T]],
        about: str | None,
    ) -> ReadReply[T]:
        started = time.monotonic()
        with self._call():
            read_reply = await self._judges.answer(model, asked, read)
        if not read_reply.cached:
            self.spend(read_reply.usage)
        self.judgements.append(
            Judgement(
                messages=asked,
                reply=read_reply.reply,
                model=model.policy.model,
                usage=read_reply.usage,
                seconds=time.monotonic() - started,
                about=about,
                problem=read_reply.problem,
                cached=read_reply.cached,
            )
        )
        return read_reply


class ReadReply(NamedTuple, Generic[T]):
    """A judge's reply, with the verdict that was read in it or the problem with reading it."""

    reply: str
    usage: Usage | None
    finding: T | None
    problem: str | None
    cached: bool = False


async def _read_reply(
    reply: str, usage: Usage | None, read: Callable[[str], T | Awaitable[T]], finish: str | None
) -> ReadReply[T]:
    if finish == "length":
        return ReadReply(reply, usage, None, "it was cut off at the judge's max_tokens")
    try:
        finding = read(reply)
        return ReadReply(reply, usage, await finding if inspect.isawaitable(finding) else finding, None)
    except ValueError as wrong:
        return ReadReply(reply, usage, None, str(wrong) or "it is not in the form that was asked for")


def _message(role: str, content: str) -> Message:
    return Freezer().message({"role": role, "content": content}, "env")


def _key(model: Model, asked: tuple[Message, ...]) -> str:
    """Return the key of a judgement: the model, its settings, and the messages."""
    return digest(
        {
            "judge": model.policy.identity(),
            "sampling": model.sampling,
            "messages": [[message.role, message.content] for message in asked],
        }
    )
