"""`miniwob`: the tasks of MiniWoB++ in a real browser, with the page's own reward.

`miniwob:click-test`, `miniwob:click-*` or `miniwob:*` is a source of rows, `n` of each task (`?n=10&seed=0`). A row names the
`game` and its `seed`, which decides what is asked and what is to be seen. The pages come out of the wheel `miniwob` (installed
without what it depends on) and are served inside the browser, under an address that no network has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from windrow.config import nearest
from windrow.envs.web.page_rewards import PageReward, Paid
from windrow.errors import UsageError
from windrow.integrations.addresses import parse_address
from windrow.records import Json
from windrow.tasks.spool import SpooledRows

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

NAME = "miniwob"
SITE = "http://miniwob.test"
ROWS, SEED = 10, 0
_OWN = ("n", "seed")
NOT_DONE = -1.0  # what a page gives where the time runs out before it is done
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}

# Begin an episode: the page's own clock is put off, since the turns are the limit here, and the panel that shows it is hidden.
_BEGIN = """seed => {
    Math.seedrandom(seed);
    core.EPISODE_MAX_TIME = 24 * 3600 * 1000;
    core.startEpisodeReal();
    const panel = document.getElementById("reward-display");
    if (panel) panel.style.display = "none";
}"""
_LOADED = "() => typeof core !== 'undefined' && document.readyState === 'complete'"
_READY = "() => WOB_TASK_READY !== false"
_ASKED = (
    "() => { const asked = core.getUtterance(); return typeof asked === 'string' ? asked : asked.utterance; }"
)
_PAID = "() => ({done: WOB_DONE_GLOBAL, raw: WOB_RAW_REWARD_GLOBAL, reason: WOB_REWARD_REASON})"


class MiniWoB(PageReward):
    name = NAME
    reuse = NAME  # the next episode needs no more than a new seed

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        game, seed = row.get("game"), row.get("seed")
        if not isinstance(game, str):
            raise ValueError("'game' must be the name of a MiniWoB++ task, such as 'click-test'")
        if game not in games():
            raise ValueError(f"there is no MiniWoB++ task {game!r}{nearest(game, games())}")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"'seed' must be a whole number from 0 on, found {seed!r}")

    async def start_url(self) -> str:
        return f"{SITE}/miniwob/{self.task['game']}.html"

    async def prepare(self, page: Page) -> None:
        pattern = f"{SITE}/**"
        await page.context.unroute(pattern)  # of the episode that had this context before
        await page.context.route(pattern, _served)

    async def begin(self, page: Page) -> str | None:
        await page.wait_for_function(_LOADED)
        await page.evaluate(_BEGIN, self.task["seed"])
        await page.wait_for_function(_READY)
        return str(await page.evaluate(_ASKED))

    async def after(self, page: Page) -> Paid:
        page_state = await page.evaluate(_PAID)
        if not page_state["done"]:
            return Paid()
        return Paid(reward=float(page_state["raw"]), done=True, info={"reason": page_state["reason"]})

    async def unfinished(self, page: Page) -> float | None:
        return NOT_DONE


async def _served(route: Route) -> None:
    """Return a file of the wheel, and no other."""
    folder = pages()
    path = (folder / unquote(urlsplit(route.request.url).path).lstrip("/")).resolve()
    if path.is_relative_to(folder) and path.is_file():
        await route.fulfill(path=path, content_type=TYPES.get(path.suffix))
    else:
        await route.fulfill(status=404, body="")


@lru_cache
def pages() -> Path:
    """Return the directory of the pages in the wheel; the package is not imported, since it requires Selenium and
    Gymnasium.
    """
    spec = find_spec("miniwob")
    folder = Path(spec.origin).parent / "html" if spec is not None and spec.origin else None
    if folder is None or not (folder / "miniwob").is_dir():
        raise UsageError(
            f"{NAME}: its pages are not installed; type pip install --no-deps miniwob (and pip install 'windrow-rl[web]')"
        )
    return folder.resolve()


@lru_cache
def games() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (pages() / "miniwob").glob("*.html")))


def open_tasks(path: str) -> tuple[SpooledRows, str]:
    """Return the rows of `miniwob:PATTERN?n=…&seed=…`, and the name of the data set."""
    address = parse_address(path)
    address.refuse_unknown(_OWN)
    matching = [game for game in games() if fnmatchcase(game, address.name)]
    if not matching:
        raise UsageError(f"{address}: there is no such MiniWoB++ task{nearest(address.name, games())}")
    count, first = address.whole("n", ROWS, least=1), address.whole("seed", SEED, least=0)
    rows = SpooledRows(enumerate(_rows(matching, count, first)), path, label="index")
    return rows, address.source(without=_OWN)


def _rows(games: list[str], count: int, first: int) -> Iterator[dict[str, Json]]:
    for game in games:
        for seed in range(first, first + count):
            yield {"id": f"{game}:{seed}", "env": "web", "page_reward": NAME, "game": game, "seed": seed}
