"""`gymnasium`: its worlds with a few numbered actions (FrozenLake, CliffWalking, Taxi, Blackjack) as conversations.

A row names the `game`, its `kwargs` and its `seed`; `gymnasium:FrozenLake-v1?n=20&is_slippery=false` is a source of
such rows. The policy is told the rules and what is to be seen, and answers with an action; the world's rewards are the
turns' rewards. How an action is read: the last `[action]` in brackets, else the last action that is named, else the
last number that is one. A reply without any is a parse error: the policy is told, and after `max_parse_errors` of them
in a row the next one ends the episode.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from windrow.config import nearest
from windrow.envs.base import Env, Episode, Observation, Step
from windrow.errors import UsageError
from windrow.integrations.addresses import Address, parse_address
from windrow.integrations.gymnasium.descriptions import Toy, toy_of
from windrow.records import Json, Message, Score, Task
from windrow.registry import import_extra, make_here_importable
from windrow.tasks.spool import SpooledRows
from windrow.tasks.trust import Demand, module_demands, option_demands
from windrow.tools import ToolResult

ROWS, SEED = 100, 0
_OWN = ("n", "seed")
_LAKE_MAP = ("map_size", "map_p")  # of a lake that is made from the row's seed
_TIME_LIMIT = "max_episode_steps"
_NUMBER = re.compile(r"(?<![\w.])-?[0-9]++(?![\w.]*[0-9])")  # ++: a long row of digits is read once
MAX_READ_CHARS = 20_000  # from the end, where a reply settles on its action


class _Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_parse_errors: int = 2  # in a row, each told to the model; the next one ends the episode
    parse_error_reward: float = 0.0


class Gymnasium(Env):
    name = "gymnasium"
    version = 1

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        _settings(settings)

    @classmethod
    def demands(cls, row: Mapping[str, Json]) -> Iterator[Demand]:
        """The module that registers the world (`my_module:MyWorld-v0`), and what its options name."""
        yield from module_demands(str(row.get("game")), "game")
        yield from option_demands(row.get("kwargs"), "kwargs")

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        game, kwargs, seed = row.get("game"), row.get("kwargs"), row.get("seed")
        if not isinstance(game, str):
            raise ValueError("'game' must be the id of a Gymnasium world, such as 'FrozenLake-v1'")
        if kwargs is not None and not isinstance(kwargs, dict):
            raise ValueError("'kwargs' must be an object of the world's options")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
            raise ValueError(f"'seed' must be a whole number from 0 on, found {seed!r}")
        if not isinstance(row.get("rules") or "", str):
            raise ValueError("'rules' must be a text, said in place of the world's own")
        _check_world(game, msgspec.json.encode(kwargs or {}, order="sorted"))

    async def reset(self, task: Task) -> Observation:
        self._world: Any = None
        self._world = _made(task["game"], task.get("kwargs") or {})
        self._bare = self._world.unwrapped
        self._toy = toy_of(self._bare)
        self._unreadable = 0
        seed = task.get("seed")
        seen, _ = self._world.reset(seed=self.ctx.seed if seed is None else seed)
        rules = task.get("rules") or self._toy.rules(self._bare)
        return Observation([_said(f"{rules}\n\n{self._scene(seen)}")])

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        number = read_action(reply.text, self._toy)
        if number is None:
            return self._not_read()
        self._unreadable = 0
        seen, reward, terminated, truncated, _ = self._world.step(self._toy.start + number)
        reward = float(reward)
        action = self._toy.names[number]
        state = {"observation": _plain(seen), "action": action}
        if terminated:
            end = self._toy.ending(self._bare, seen, reward)
            last = f"{self._toy.scene(self._bare, seen)}\n{end}".strip()
            return Step(messages=[_said(last)], reward=reward, state=state, done=True)
        if truncated:  # the world's own limit on steps, not the rules
            last = f"{self._toy.scene(self._bare, seen)}\nNo more steps are allowed."
            return Step(messages=[_said(last)], reward=reward, state=state, done=True, stop="max_turns")
        return Step(messages=[_said(self._scene(seen))], reward=reward, state=state)

    async def score(self, episode: Episode) -> Score | None:
        """Where a limit came before the first step, nothing was gained; else the steps' rewards say it."""
        return None if any(turn.reward is not None for turn in episode.turns) else Score(0.0)

    async def close(self) -> None:
        if getattr(self, "_world", None) is not None:
            self._world.close()

    def _not_read(self) -> Step:
        settings = _settings(self.settings)
        self._unreadable += 1
        why = f"no action in the reply; the actions are {self._listed()}"
        given_up = self._unreadable > settings.max_parse_errors
        return Step(
            messages=[] if given_up else [_said(f"I could not read an action. {self._ask()}")],
            reward=settings.parse_error_reward,
            parse_error=why,
            done=given_up,
            stop="parse_error" if given_up else None,
        )

    def _scene(self, seen: Any) -> str:
        return f"{self._toy.scene(self._bare, seen)}\n{self._ask()}"

    def _ask(self) -> str:
        return f"Answer with one action in brackets: {self._listed()}."

    def _listed(self) -> str:
        names = self._toy.names
        shown = names if len(names) <= 12 else [*names[:3], "…", names[-1]]
        return " ".join(name if name == "…" else f"[{name}]" for name in shown)


def read_action(text: str, toy: Toy) -> int | None:
    """Return the index of the action that the text settles on: in brackets, by name, or by number."""
    text = text[-MAX_READ_CHARS:]
    indices = {name: index for index, names in enumerate(toy.actions) for name in names}
    indices |= {str(toy.start + index): index for index in range(len(toy.actions))}
    for inside in reversed(re.findall(r"\[([^\[\]]*)\]", text)):
        if (index := indices.get(" ".join(inside.lower().split()))) is not None:
            return index
    names = sorted((name for names in toy.actions for name in names), key=len, reverse=True)
    words = [name for name in names if not name.lstrip("-").isdigit()]
    if words:
        words_named = re.findall(rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})(?!\w)", text.lower())
        if words_named:
            return indices[words_named[-1]]
    for number in reversed(_NUMBER.findall(text)):
        if number in indices:
            return indices[number]
    return None


# -- the source of rows


def open_tasks(path: str) -> tuple[SpooledRows, str]:
    """Return the rows of `gymnasium:ID?n=…&seed=…&OPTION=…`, and the name of the data set."""
    address = parse_address(path)
    known_options = [*_OWN, *_options(address.name)]
    address.refuse_unknown(known_options)
    count, first = address.whole("n", ROWS, least=1), address.whole("seed", SEED, least=0)
    rows = SpooledRows(enumerate(_rows(address, count, first)), path, label="index")
    return rows, address.source(without=_OWN)


def _rows(address: Address, count: int, first: int) -> Iterator[dict[str, Json]]:
    kwargs = {
        key: value for key, value in address.parameters.items() if key not in _OWN and key not in _LAKE_MAP
    }
    for seed in range(first, first + count):
        yield {
            "id": f"{address.name}:{seed}",
            "env": Gymnasium.name,
            "game": address.name,
            "kwargs": {**kwargs, **_lake(address, seed)},
            "seed": seed,
        }


def _lake(address: Address, seed: int) -> dict[str, Json]:
    """The map of a lake of this size, made from the seed."""
    if not any(key in address.parameters for key in _LAKE_MAP):
        return {}
    size, p = address.whole("map_size", 4, least=2), address.parameters.get("map_p", 0.8)
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0.2 <= p <= 1:
        raise UsageError(f"{address}: map_p, the share of frozen ground, is from 0.2 to 1, found {p!r}")
    lakes = import_extra("gymnasium.envs.toy_text.frozen_lake", extra="gymnasium", what="env 'gymnasium'")
    return {"desc": [str(line) for line in lakes.generate_random_map(size=size, p=p, seed=seed)]}


# -- the worlds


def _gymnasium() -> Any:
    return import_extra("gymnasium", extra="gymnasium", what="env 'gymnasium'")


def _made(game: str, kwargs: Mapping[str, Json]) -> Any:
    gymnasium = _gymnasium()
    modes = getattr(_creator(game), "metadata", {}).get("render_modes", ())
    mode = "ansi" if "ansi" in modes else None
    return gymnasium.make(game, render_mode=mode, disable_env_checker=True, **kwargs)


def _creator(game: str) -> Any:
    """The class (or function) that makes this world."""
    gymnasium = _gymnasium()
    module, _, name = game.rpartition(":")
    try:
        if module:  # `my_module:MyWorld-v0`: it registers its worlds when it is imported
            make_here_importable()
            importlib.import_module(module)
        entry = gymnasium.spec(name).entry_point
        return gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    except (gymnasium.error.Error, ImportError, AttributeError) as problem:
        hint = "" if module else nearest(game, sorted(gymnasium.registry))
        raise UsageError(f"there is no Gymnasium world {game!r}{hint} ({_line(problem)})") from problem


def _options(game: str) -> list[str]:
    """Return the options of this world."""
    creator = _creator(game)
    parameters = inspect.signature(creator).parameters.values()
    named = [
        p.name
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "render_mode"
    ]
    lake = _LAKE_MAP if getattr(creator, "__name__", "") == "FrozenLakeEnv" else ()
    return [*named, _TIME_LIMIT, *lake]


@lru_cache(maxsize=4096)
def _check_world(game: str, kwargs: bytes) -> None:
    """Raise ValueError where this world cannot be made, or cannot be played by naming an action."""
    options: dict[str, Json] = msgspec.json.decode(kwargs)
    try:
        known_options = [name for name in _options(game) if name not in _LAKE_MAP]
    except UsageError as problem:
        raise ValueError(str(problem)) from None
    for key in options:
        if key not in known_options:
            raise ValueError(
                f"{game} has no option {key!r}{nearest(key, known_options)} (known: {', '.join(known_options)})"
            )
    if "map_name" in options and options["map_name"] is None and options.get("desc") is None:
        raise ValueError(f"{game} without a map makes one that no seed can repeat; give map_size instead")
    try:
        world = _made(game, options)
    except Exception as problem:  # whatever a world says to wrong options or to a missing package
        raise ValueError(f"{game} cannot be made: {_line(problem)}") from problem
    try:
        if not isinstance(world.action_space, _gymnasium().spaces.Discrete):
            raise ValueError(f"{game} has the actions {world.action_space}; only numbered ones can be named")
    finally:
        world.close()


def _settings(settings: Mapping[str, Json]) -> _Settings:
    try:
        return msgspec.convert(dict(settings), _Settings)
    except msgspec.ValidationError as problem:
        raise ValueError(str(problem)) from None


def _said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _plain(seen: Any) -> Json:
    """An observation as JSON: numbers and arrays as numbers and lists."""
    if isinstance(seen, Mapping):
        return {str(key): _plain(value) for key, value in seen.items()}
    if isinstance(seen, tuple | list):
        return [_plain(value) for value in seen]
    return seen.tolist() if hasattr(seen, "tolist") else seen


def _line(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())}"
