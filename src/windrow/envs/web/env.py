"""`web`: a task in a real browser. The row says where to begin and what to do; the policy acts until it answers.

    {"start_url": "https://shop.example", "instruction": "Put two apples into the basket.", "expect"?: {…}, "page_reward"?: …}

An action is a line of the reply (`actions: text`) or a tool call (`actions: tools`); either way it is recorded as a tool
call with its result and its time. The state of each turn says where the browser is and what was seen of it; walls, dummy
actions and homepage loops are counted in it. A start page that cannot be had and a browser that is gone are errors, never
rewards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from windrow.envs.base import Act, Env, Episode, Observation, Step
from windrow.envs.opening import check_opening, opening
from windrow.envs.web import blocklist
from windrow.envs.web.action_parser import read_action
from windrow.envs.web.actions import Action, Answer, Back, allowed, arguments_of, made, name_of, schema_of
from windrow.envs.web.browser_session import Browsing, Seen
from windrow.envs.web.episode_counts import Tally
from windrow.envs.web.failures import PageError
from windrow.envs.web.first_page import begin, start_of
from windrow.envs.web.launch import playwright
from windrow.envs.web.page_checks import checked, expect_of
from windrow.envs.web.page_rewards import PageReward, Paid, find_hook
from windrow.envs.web.pool import browsers, close_browsers
from windrow.envs.web.prompt import TASK, correction, in_view, joined, system, told
from windrow.envs.web.settings import shaping, web_options
from windrow.envs.web.walls import Wall, wall
from windrow.errors import ToolError, UsageError
from windrow.records import Json, Message, Score, Stop, Task
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
    def identity(cls, settings: Mapping[str, Json]) -> Json:
        return shaping(settings)

    @classmethod
    async def finish(cls, settings: Mapping[str, Json]) -> None:
        await close_browsers(settings)  # another run of this process may have others

    # -- the episode

    async def reset(self, task: Task) -> Observation:
        self._options = options = web_options(self.settings)
        self._task = task
        self._tally = Tally()
        self._lock = asyncio.Lock()
        self._acts: list[Act] = []
        self._paid = Paid()
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
        """Begin in a page that gives a reward itself, which may have had another episode before."""
        browser = self._browser
        await browser.lease.do("page", hook.prepare)
        await begin(browser, await hook.start_url(), self._options.base_url)
        if hook.reuse is not None:
            await browser.forget()
        instruction: str | None = await browser.lease.do("page", hook.begin)
        return instruction

    async def _leased(self) -> Browsing:
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
        browser = Browsing(lease, options)
        self._open_things.callback(browser.close)
        return browser

    def _opening(self, instruction: str | None) -> list[dict[str, Any]]:
        """How to act, and what to do: as a prompt template says it, or as we do."""
        if self.ctx.prompt is not None:
            return opening(self._task, self.ctx.prompt)
        given = instruction if instruction is not None else self._task.get("instruction")
        task = [told(f"{TASK}{given}")] if given is not None else opening(self._task, None)
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
        """An action that is called as a tool. Several of one reply are done one after the other."""
        async with self._lock:
            if self._tally.answer is not None:
                raise ToolError("the answer was given, and nothing is done after it", kind="bad_action")
            try:
                action = made(name, arguments, self._options.pointing)
            except ToolError as problem:
                self._tally.bad(problem)
                raise
            return await self._done(action)

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        self._browser.lease.check()  # what a tool was told of a browser that is gone is not the model's to bear
        said = ""
        try:
            if self._options.actions == "text":
                said = await self._told(read_action(reply.text, self._options.pointing))
            elif not reply.tool_calls:
                raise ToolError("no tool was called")
        except ToolError as problem:
            self._tally.bad(problem)
            said = correction(problem, self._options)
        step = await self._after(said)
        self._tally.wrong = None
        return step

    async def _after(self, said: str) -> Step:
        """What there is to tell after a reply: the page, unless the episode is over or nothing was done."""
        tally, options = self._tally, self._options
        rewarded = await self._rewarded() if tally.acted else {}
        seen: Seen | None = None
        messages = [told(said)] if said else []
        if tally.bad_in_a_row > options.max_bad_actions:
            tally.ended = "bad_actions"
        elif tally.answer is not None:
            tally.ended = "answer"
        elif tally.acted:
            seen = await self._browser.observe()
            messages = joined(said, await self._page_message(seen), apart=options.history is not None)
            tally.ended = self._ended()
        return Step(
            messages=messages,
            acts=self._taken_acts(),
            parse_error=tally.wrong,
            done=tally.ended is not None,
            stop=STOPS.get(tally.ended or ""),
            state=tally.told(seen),
            info={
                "waits": self._waits(),
                "observe_s": round(seen.seconds, 4) if seen else None,
            },
            **rewarded,
        )

    def _waits(self) -> list[Json]:
        waits = self._browser.waits.taken()
        self._tally.waited_s += sum(wait["seconds"] for wait in waits)
        return waits

    def _ended(self) -> str | None:
        """Why the episode is over after what was seen, if it is."""
        tally, options = self._tally, self._options
        if self._paid.done:
            return "page_reward"
        if tally.walls_in_a_row >= options.max_blocked:
            return "blocked"
        return "homepage_loop" if tally.homepage_backs >= options.max_homepage_backs else None

    async def _told(self, action: Action) -> str:
        """Do an action that was said in words, and write down what came of it."""
        started_at, started = time.time(), time.monotonic()
        error: str | None = None
        try:
            said = await self._done(action)
        except ToolError as problem:
            error = str(problem)
            said = f"That did not work: {error}."
        self._acts.append(
            Act(
                name=name_of(action),
                arguments=arguments_of(action),
                started_at=started_at,
                seconds=time.monotonic() - started,
                error=error,
            )
        )
        return said

    async def _done(self, action: Action) -> str:
        """Do it; what came of it, in words."""
        tally = self._tally
        tally.begin(action)
        if isinstance(action, Answer):
            tally.answer = action.text
            return "The answer was taken."
        if isinstance(action, Back):
            tally.back(at_home=self._browser.lease.page.url == self._browser.start_url)
        try:
            return await self._browser.do(action)
        except ToolError:
            tally.failed += 1
            raise

    async def _rewarded(self) -> dict[str, Any]:
        """What the page itself gives, if it gives anything."""
        if self._hook is None or self._paid.done or self._browser.loading:
            return {}
        try:
            self._paid = paid = await self._browser.lease.do("page", self._hook.after)
        except PageError:
            return {}  # a page that does not answer pays nothing yet
        return {"reward": paid.reward} if paid.reward is not None else {}

    def _taken_acts(self) -> list[Act]:
        acts, self._acts = self._acts, []
        return acts

    async def _page_message(self, seen: Seen) -> dict[str, Any]:
        found = wall(seen.look) if seen.look is not None else None
        content: str | list[dict[str, Json]] = seen.text
        blob: str | None = None
        if seen.picture is not None:
            shot = seen.picture
            part = await self.ctx.blobs.image(shot.data, shot.media_type, shot.width, shot.height)
            blob = part["blob"]
            content = [{"type": "text", "text": seen.text}, part]
        self._tally.saw(seen, self._options.observe, found, blob)
        if found is not None:
            await self._list(found, blob)
        return {"role": "user", "content": content}

    async def _list(self, found: Wall, blob: str | None) -> None:
        """Write a wall into the block list, once an episode for each site."""
        domain = blocklist.domain_of(found.url)
        if self._options.blocklist is None or domain in self._tally.listed:
            return
        self._tally.listed.add(domain)
        path = Path(self._options.blocklist)
        await asyncio.to_thread(blocklist.append, path, found.url, task=self._task.key, screenshot=blob)

    def window(self, messages: Sequence[Message]) -> list[tuple[int, int]]:
        """Everything but the pages before the last `history`."""
        return in_view(messages, self._options.history)

    async def score(self, episode: Episode) -> Score | None:
        """What the page or the row's `expect` says of the end, and the counts; behind a wall, or where the network
        failed, nothing is graded."""
        metrics = {**self._tally.metrics(), "browser_queued_s": self._browser.lease.queued_s}
        if self._tally.wall is not None or self._browser.cut_off:
            return Score({}, metrics=metrics)
        expect = self._task.get("expect")
        if self._hook is not None and not self._paid.done:
            left: float | None = await self._browser.lease.do("page", self._hook.unfinished)
            return Score({} if left is None else {"page": (left, 1.0)}, metrics=metrics)
        if expect is None:
            return Score({}, metrics=metrics)
        wanted, answer = expect_of(expect), self._tally.answer
        found: Score = await self._browser.lease.do("page", lambda page: checked(wanted, page, answer))
        return Score(found.value, found.evidence, metrics)

    async def close(self) -> None:
        stack: AsyncExitStack | None = getattr(self, "_open_things", None)
        if stack is not None:
            await stack.aclose()


def _hook(name: str) -> type[PageReward]:
    try:
        return find_hook(name)
    except UsageError as problem:
        raise ValueError(str(problem)) from None
