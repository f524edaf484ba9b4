"""Rewards that pages give themselves.

The row's or the environment's `page_reward` names a hook: an integration's name, `module:Class`, or an entry point of
`windrow.page_rewards`. Each episode has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from windrow.records import Json, Task
from windrow.registry import resolve

if TYPE_CHECKING:
    from playwright.async_api import Page


class Paid(msgspec.Struct, frozen=True, kw_only=True):
    """The page's own result after an action. `reward` is added to the rollout's reward; `done` ends the episode."""

    reward: float | None = None
    done: bool = False
    info: Json = None


class PageReward:
    """Derive from this. Called in this order: `prepare`; `start_url`; `begin` once the page is there; `after` every action that
    was done; `unfinished` where the episode ended and the page had not ended it."""

    reuse: ClassVar[str | None] = None  # episodes with the same word may follow each other in one page

    def __init__(self, task: Task, seed: int) -> None:
        self.task = task
        self.seed = seed

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        """Raise ValueError with what is wrong with a row."""

    async def start_url(self) -> str:
        """Where the episode begins; by default the row says so."""
        return str(self.task.get("start_url") or self.task["url"])

    async def prepare(self, page: Page) -> None:
        """Make ready the browser's context, before the first page is opened in it."""

    async def begin(self, page: Page) -> str | None:
        """Begin an episode in the page, which is loaded; returns the instruction, None where the row has it."""
        return None

    async def after(self, page: Page) -> Paid:
        """The page's result so far."""
        return Paid()

    async def unfinished(self, page: Page) -> float | None:
        """The reward of an episode that something else ended; None: it has none, and is not graded by the page."""
        return None


def find_hook(name: str) -> type[PageReward]:
    """The hook called `name`; ValueError says that there is none."""
    hook = resolve("page_reward", name, {})
    if not (isinstance(hook, type) and issubclass(hook, PageReward)):
        raise ValueError(
            f"page_reward {name!r} is not a class derived from windrow.envs.web.page_rewards.PageReward"
        )
    return hook
