"""`web`: a task in a real browser. The row has the start page and the instruction; the policy acts until it answers.

    {"start_url": "https://shop.example", "instruction": "Put two apples into the basket.", "expect"?: {…}, "page_reward"?: …}

An action is a line of the reply (`actions: text`) or a tool call (`actions: tools`); either way it is recorded as a tool
call with its result and its time. The state of each turn has the browser's address and a summary of the observation, and
counts walls, dummy actions and homepage loops. A start page that cannot be opened and a lost browser are errors, never
rewards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from windrow.envs.base import Act, Env, Episode, Observation, Step
from windrow.envs.opening import check_opening, opening
from windrow.envs.web import blocklist
from windrow.envs.web.action_parser import read_action
from windrow.envs.web.actions import (
    Action,
    Answer,
    Back,
    allowed,
    arguments_of,
    make_action,
    name_of,
    schema_of,
)
from windrow.envs.web.browser_session import BrowserSession
from windrow.envs.web.episode_counts import EpisodeCounts
from windrow.envs.web.failures import PageError
from windrow.envs.web.first_page import begin, start_of
from windrow.envs.web.launch import playwright
from windrow.envs.web.page_checks import checked, expect_of
from windrow.envs.web.page_observation import PageObservation
from windrow.envs.web.page_rewards import PageReward, Paid, find_hook
from windrow.envs.web.pool import browsers, close_browsers
from windrow.envs.web.prompt import TASK, correction, in_view, joined, system, user_message
from windrow.envs.web.settings import shaping, web_options
from windrow.envs.web.walls import Wall, wall
from windrow.errors import ToolError, UsageError
from windrow.records import Json, Message, Score, Stop, Task
from windrow.tasks.trust import Demand, module_demands
from windrow.tools import Tool, ToolResult

STOPS: Mapping[str, Stop] = {"bad_actions": "parse_error", "answer": "answered"}


class WebEnv(Env):
    name = "web"
    version = 1
    takes_prompt = True
    connects = True
    measured = frozenset({"waits", "observe_s", "waited_s", "browser_queued_s"})

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        options = web_options(settings)
        if options.page_reward is not None:
            _hook(options.page_reward)
        playwright()

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        hook = row.get("page_reward")
        if hook is not None:
            if not isinstance(hook, str):
                raise ValueError(f"'page_reward' must be a name, found {type(hook).__name__}")
            _hook(hook).check_row(row)
            return
        url = row.get("start_url", row.get("url"))
        if not isinstance(url, str) or not url.strip():
            raise ValueError(
                f"neither 'start_url' nor 'url' is in the row (it has: {', '.join(row) or 'nothing'})"
            )
        if row.get("instruction") is None:
            check_opening(row)
        elif not isinstance(row["instruction"], str):
            raise ValueError(f"'instruction' must be a string, found {type(row['instruction']).__name__}")
        if row.get("expect") is not None:
            expect_of(row["expect"])

    @classmethod
    def demands(cls, row: Mapping[str, Json]) -> Iterator[Demand]:
        return module_demands(str(row.get("page_reward") or ""), "page_reward")

    @classmethod
    def identity(cls, settings: Mapping[str, Json]) -> Json:
        return shaping(settings)

    @classmethod
    async def finish(cls, settings: Mapping[str, Json]) -> None:
        await close_browsers(settings)  # another run of this process may have others

    # -- the episode

    async def reset(self, task: Task) -> Observation:
        self._options = options = web_options(self.settings)
        self._task = task
        self._counts = EpisodeCounts()
        self._lock = asyncio.Lock()
        self._acts: list[Act] = []
        self._paid = Paid()
        self._shot: str | None = None  # the file of the last wall's picture
        hook = task.get("page_reward") or options.page_reward
        self._hook: PageReward | None = _hook(hook)(task, self.ctx.seed) if hook is not None else None
        self._browser = browser = await self._leased()
        instruction = None
        if self._hook is not None:
            instruction = await self._begun(self._hook)
        else:
            await begin(browser, start_of(task), options.base_url)
        page = await self._page_message(await browser.observe())
        return Observation([*self._opening(instruction), page], self._tools())

    async def _begun(self, hook: PageReward) -> str | None:
        """Begin in a page that gives a reward itself, and may have served another episode before."""
        browser = self._browser
        await browser.lease.do("page", hook.prepare)
        await begin(browser, await hook.start_url(), self._options.base_url)
        if hook.reuse is not None:
            await browser.forget()
        instruction: str | None = await browser.lease.do("page", hook.begin)
        return instruction

    async def _leased(self) -> BrowserSession:
        options, hook = self._options, self._hook
        width, height = options.viewport
        reuse = f"{hook.reuse} {width}x{height}" if hook is not None and hook.reuse is not None else None
        pool = await browsers(self.settings)
        self._open_things = AsyncExitStack()
        lease = await self._open_things.enter_async_context(
            pool.lease(
                seconds=options.lease_s,
                context={"viewport": {"width": width, "height": height}},
                reuse=reuse,
            )
        )
        browser = BrowserSession(lease, options)
        self._open_things.callback(browser.close)
        return browser

    def _opening(self, instruction: str | None) -> list[dict[str, Any]]:
        """The first messages: from the prompt template if there is one, else our instructions and the task."""
        if self.ctx.prompt is not None:
            return opening(self._task, self.ctx.prompt)
        if instruction is None:
            instruction = self._task.get("instruction")
        task = (
            [user_message(f"{TASK}{instruction}")] if instruction is not None else opening(self._task, None)
        )
        return [{"role": "system", "content": system(self._options)}, *task]

    def _tools(self) -> list[Tool]:
        if self._options.actions == "text":
            return []
        pointing = self._options.pointing
        return [
            Tool(
                name=name,
                description=kind.__doc__ or "",
                parameters=schema_of(kind, pointing),
                call=partial(self._called, name),
            )
            for name, kind in allowed(pointing).items()
        ]

    async def _called(self, name: str, /, **arguments: Json) -> str:
        """Perform an action that was called as a tool. Several calls of one reply are performed one after the other."""
        async with self._lock:
            if self._counts.answer is not None:
                raise ToolError("the answer was given, and nothing is done after it", kind="bad_action")
            try:
                action = make_action(name, arguments, self._options.pointing)
            except ToolError as problem:
                self._counts.bad(problem)
                raise
            return await self._do(action)

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        self._browser.lease.check()  # a lost browser is an error of the attempt, though a tool call has reported it to the model
        outcome = ""
        try:
            if self._options.actions == "text":
                outcome = await self._do_in_words(read_action(reply.text, self._options.pointing))
            elif not reply.tool_calls:
                raise ToolError("no tool was called")
        except ToolError as problem:
            self._counts.bad(problem)
            outcome = correction(problem, self._options)
        step = await self._after(outcome)
        self._counts.wrong = None
        return step

    async def _after(self, outcome: str) -> Step:
        """The step after a reply: the outcome and the page, unless the episode is over or nothing was done."""
        counts, options = self._counts, self._options
        rewarded = await self._rewarded() if counts.acted else {}
        seen: PageObservation | None = None
        messages = [user_message(outcome)] if outcome else []
        if counts.bad_in_a_row > options.max_bad_actions:
            counts.ended = "bad_actions"
        elif counts.answer is not None:
            counts.ended = "answer"
        elif counts.acted:
            seen = await self._browser.observe()
            messages = joined(outcome, await self._page_message(seen), apart=options.history is not None)
            counts.ended = self._ended()
        return Step(
            messages=messages,
            acts=self._taken_acts(),
            parse_error=counts.wrong,
            done=counts.ended is not None,
            stop=STOPS.get(counts.ended or ""),
            state=counts.as_record(seen),
            info={
                "waits": self._waits(),
                "observe_s": round(seen.seconds, 4) if seen else None,
            },
            **rewarded,
        )

    def _waits(self) -> list[Json]:
        waits = self._browser.waits.taken()
        self._counts.waited_s += sum(wait["seconds"] for wait in waits)
        return waits

    def _ended(self) -> str | None:
        """The reason why the episode is over after this observation, if it is."""
        counts, options = self._counts, self._options
        if self._paid.done:
            return "page_reward"
        if counts.walls_in_a_row >= options.max_blocked:
            return "blocked"
        return "homepage_loop" if counts.homepage_backs >= options.max_homepage_backs else None

    async def _do_in_words(self, action: Action) -> str:
        """Perform an action of a text reply, and record it."""
        started_at, started = time.time(), time.monotonic()
        error: str | None = None
        try:
            outcome = await self._do(action)
        except ToolError as problem:
            error = str(problem)
            outcome = f"That did not work: {error}."
        self._acts.append(
            Act(
                name=name_of(action),
                arguments=arguments_of(action),
                started_at=started_at,
                seconds=time.monotonic() - started,
                error=error,
            )
        )
        return outcome

    async def _do(self, action: Action) -> str:
        """Perform the action; returns its outcome, in a sentence."""
        counts = self._counts
        counts.begin(action)
        if isinstance(action, Answer):
            counts.answer = action.text
            return "The answer was taken."
        if isinstance(action, Back):
            counts.back(at_home=self._browser.lease.page.url == self._browser.start_url)
        try:
            return await self._browser.do(action)
        except ToolError:
            counts.failed += 1
            raise

    async def _rewarded(self) -> dict[str, Any]:
        """The reward that the page itself gives, if any."""
        if self._hook is None or self._paid.done or self._browser.loading:
            return {}
        try:
            self._paid = paid = await self._browser.lease.do("page", self._hook.after)
        except PageError:
            return {}  # a page that does not answer gives no reward yet
        return {"reward": paid.reward} if paid.reward is not None else {}

    def _taken_acts(self) -> list[Act]:
        acts, self._acts = self._acts, []
        return acts

    async def _page_message(self, seen: PageObservation) -> dict[str, Any]:
        wall_seen = wall(seen.snapshot) if seen.snapshot is not None else None
        content: str | list[dict[str, Json]] = seen.text
        blob: str | None = None
        if seen.picture is not None:
            shot = seen.picture
            part = await self.ctx.blobs.image(shot.data, shot.media_type, shot.width, shot.height)
            blob = part["blob"]
            content = [{"type": "text", "text": seen.text}, part]
        self._counts.saw(seen, self._options.observe, wall_seen, blob)
        if wall_seen is not None:
            await self._list(wall_seen, blob)
        return {"role": "user", "content": content}

    async def _list(self, wall_seen: Wall, blob: str | None) -> None:
        """Write a wall to the block list, once per episode and site."""
        self._shot = self.ctx.blobs.path(blob) if blob is not None else None
        await self._list_site(wall_seen.url)

    async def _list_site(self, url: str) -> None:
        domain = blocklist.domain_of(url)
        if self._options.blocklist is None or domain in self._counts.listed:
            return
        self._counts.listed.add(domain)
        path = Path(self._options.blocklist)
        await asyncio.to_thread(blocklist.append, path, url, task=self._task, screenshot=self._shot)

    def _site(self) -> str:
        """The address that the task begins at: it is the tasks of that site which are shut out."""
        url = str(self._task.get("start_url") or self._task.get("url") or "")
        return url if "//" in url else self._browser.start_url

    def window(self, messages: Sequence[Message]) -> list[tuple[int, int]]:
        """Everything but the pages before the last `history`."""
        return in_view(messages, self._options.history)

    async def score(self, episode: Episode) -> Score | None:
        """The score by the page or by the row's `expect`, and the counts. Behind a wall there is no reward, whoever
        scores; after a network failure there is no score."""
        metrics = {**self._counts.metrics(), "browser_queued_s": self._browser.lease.queued_s}
        if self._counts.wall is not None:
            await self._list_site(self._site())
            wall_record = self._counts.wall.as_record()
            return Score({"blocked": (1.0, 0.0)}, wall_record, metrics, withholds=True)
        if self._browser.cut_off:
            return Score({}, metrics=metrics)
        expect = self._task.get("expect")
        if self._hook is not None and not self._paid.done:
            left: float | None = await self._browser.lease.do("page", self._hook.unfinished)
            return Score({} if left is None else {"page": (left, 1.0)}, metrics=metrics)
        if expect is None:
            return Score({}, metrics=metrics)
        wanted, answer = expect_of(expect), self._counts.answer
        score: Score = await self._browser.lease.do("page", lambda page: checked(wanted, page, answer))
        return Score(score.value, score.evidence, metrics)

    async def close(self) -> None:
        stack: AsyncExitStack | None = getattr(self, "_open_things", None)
        if stack is not None:
            await stack.aclose()


def _hook(name: str) -> type[PageReward]:
    try:
        return find_hook(name)
    except UsageError as problem:
        raise ValueError(str(problem)) from None
