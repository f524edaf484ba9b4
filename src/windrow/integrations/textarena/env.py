"""`textarena`: its games for two or more as matches, with their own prompts, rewards and rules for illegal moves.

A row names the `game`, its `kwargs`, the number of `players` and the `seed`; `textarena:TicTacToe-v0?n=20` is a source
of such rows. A seat is told what the game tells it and nobody else: each message once, its own moves left out, as
they stand in its conversation already. A reply goes to the game as it is, without a `<think>` block before it.

The games draw from Python's shared random state, so each plays with a state of its own (`Randomness`): games that run side
by side change nothing for each other.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import msgspec

from windrow.config import nearest
from windrow.envs.base import Observation, Step
from windrow.envs.match import Match
from windrow.errors import EnvError, UsageError
from windrow.grading.judge_view import without_thinking
from windrow.integrations.addresses import Address, parse_address
from windrow.records import Json, Message, Task
from windrow.registry import import_extra, load
from windrow.tasks.spool import SpooledRows
from windrow.tasks.trust import Demand, option_demands

ROWS, SEED, PLAYERS = 100, 0, 2
_OWN = ("n", "seed", "players")
_JURY_KEY, _JURY_HOST = "OPENROUTER_API_KEY", "openrouter.ai"
_GAME = -1  # whom the game's own messages are from


class TextArena(Match):
    name = "textarena"
    version = 1

    @classmethod
    def check_settings(cls, settings: Mapping[str, Json]) -> None:
        if settings:
            raise ValueError(
                f"{cls.name!r} has no setting {next(iter(settings))!r}; the rules are the game's own"
            )

    @classmethod
    def demands(cls, row: Mapping[str, Json]) -> Iterator[Demand]:
        """What the options name; a game with a jury asks models of OpenRouter."""
        yield from option_demands(row.get("kwargs"), "kwargs")
        if _has_jury(str(row.get("game"))):
            yield Demand("variable", _JURY_KEY, "game")
            yield Demand("host", _JURY_HOST, "game")

    @classmethod
    def check_row(cls, row: Mapping[str, Json]) -> None:
        game, kwargs, seed = row.get("game"), row.get("kwargs"), row.get("seed")
        if not isinstance(game, str):
            raise ValueError("'game' must be the id of a TextArena game, such as 'TicTacToe-v0'")
        if kwargs is not None and not isinstance(kwargs, dict):
            raise ValueError("'kwargs' must be an object of the game's options")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
            raise ValueError(f"'seed' must be a whole number from 0 on, found {seed!r}")
        _check_game(game, msgspec.json.encode(kwargs or {}, order="sorted"), _players(row))

    @classmethod
    def count_seats(cls, settings: Mapping[str, Json], row: Mapping[str, Json]) -> int:
        return _players(row)

    async def reset(self, task: Task) -> None:
        seed = task.get("seed")
        _textarena()
        self._randomness = Randomness(self.ctx.seed if seed is None else seed)
        self._over = False
        with self._randomness.own():
            self._game = _made(task["game"], task.get("kwargs") or {})
            self._game.reset(num_players=self.ctx.seats, seed=self._randomness.seed)
        self._bare = _bare(self._game)

    def to_act(self) -> Sequence[int]:
        return [] if self._over else [int(self._state.current_player_id)]

    async def observe(self, seat: int) -> Observation:
        with self._randomness.own():
            _, observations = self._bare.get_observation()
        return Observation([_said(self._shown(seat, observations) or "It is your turn again.")])

    async def act(self, replies: Mapping[int, Message]) -> Mapping[int, Step]:
        [(seat, reply)] = replies.items()
        before = getattr(self._state, "error_count", 0)
        with self._randomness.own():
            done, _ = self._game.step(action=without_thinking(reply.text))
        if done:
            return self._ended()
        state = {"turn": int(self._state.turn)}
        if getattr(self._state, "error_count", 0) > before:  # by the game's own rule it is asked again
            return {seat: Step(state=state, parse_error=self._objection(seat))}
        return {seat: Step(state=state)}

    async def forfeit(self, seat: int) -> Mapping[int, Step]:
        """Give the leaving seat -1, as for an illegal move; in a game of two, the other seat gets 1."""
        self._over = True
        other = 1.0 if self.ctx.seats == 2 else 0.0
        return {who: Step(reward=-1.0 if who == seat else other) for who in range(self.ctx.seats)}

    def _ended(self) -> Mapping[int, Step]:
        """Return the game's own rewards, and its last message to each seat."""
        self._over = True
        rewards, infos = self._game.close()
        if not isinstance(rewards, Mapping):
            raise EnvError(f"{self._game.env_id} ended without rewards", retryable=False)
        steps: dict[int, Step] = {}
        for seat in range(self.ctx.seats):
            info = dict(infos.get(seat) or {})
            last = self._shown(seat, self._state.observations.get(seat) or [])
            illegal = str(info.get("reason") or "an illegal move") if info.get("invalid_move") else None
            steps[seat] = Step(
                messages=[_said(last)] if last else [],
                reward=float(rewards.get(seat, 0.0)),
                state={"turn": int(self._state.turn)},
                info={key: str(value) for key, value in info.items()},
                parse_error=illegal,
            )
        return steps

    def _objection(self, seat: int) -> str:
        """Return the game's objection to the last move; the seat reads it with its next observation."""
        seat_observations = self._state.observations.get(seat) or []
        admin_texts = [
            text for _, text, kind in seat_observations if getattr(kind, "name", "") == "GAME_ADMIN"
        ]
        return admin_texts[-1] if admin_texts else "an illegal move"

    def _shown(self, seat: int, messages: Sequence[tuple[int, str, Any]]) -> str:
        """Return a seat's new messages, each with its sender; its own moves are left out."""
        lines = []
        for sender, text, kind in messages:
            if sender == seat and getattr(kind, "name", "") == "PLAYER_ACTION":
                continue
            who = "GAME" if sender == _GAME else self._state.role_mapping.get(sender, f"Player {sender}")
            lines.append(f"[{who}] {text}")
        return "\n".join(lines)

    @property
    def _state(self) -> Any:
        return self._bare.state


class Randomness:
    """The shared random state of Python, and of numpy where it is loaded, as one game has it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._sources = [(random.getstate, random.setstate)]
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            self._sources.append((numpy.random.get_state, numpy.random.set_state))
        self._states = self._now()
        with self.own():
            random.seed(seed)
            if numpy is not None:
                numpy.random.seed(seed % 2**32)

    @contextmanager
    def own(self) -> Iterator[None]:
        """Give the shared state to this game inside the context, and restore it afterwards."""
        outside = self._now()
        self._set(self._states)
        try:
            yield
        finally:
            self._states = self._now()
            self._set(outside)

    def _now(self) -> list[Any]:
        return [get() for get, _ in self._sources]

    def _set(self, states: Sequence[Any]) -> None:
        for (_, put), state in zip(self._sources, states, strict=True):
            put(state)


# -- the source of rows


def open_tasks(path: str) -> tuple[SpooledRows, str]:
    """Return the rows of `textarena:ID?n=…&seed=…&players=…&OPTION=…`, and the name of the data set."""
    address = parse_address(path)
    address.refuse_unknown([*_OWN, *_options(address.name)])
    count, first = address.whole("n", ROWS, least=1), address.whole("seed", SEED, least=0)
    rows = SpooledRows(enumerate(_rows(address, count, first)), path, label="index")
    return rows, address.source(without=("n", "seed"))


def _rows(address: Address, count: int, first: int) -> Iterator[dict[str, Json]]:
    players = address.whole("players", PLAYERS, least=2)
    for seed in range(first, first + count):
        yield {
            "id": f"{address.name}:{seed}",
            "env": TextArena.name,
            "game": address.name,
            "kwargs": {key: value for key, value in address.parameters.items() if key not in _OWN},
            "players": players,
            "seed": seed,
        }


# -- the games


def _textarena() -> Any:
    return import_extra("textarena", extra="textarena", what="env 'textarena'")


def _made(game: str, kwargs: Mapping[str, Json]) -> Any:
    return _textarena().make(game, **kwargs)


def _bare(game: Any) -> Any:
    """Return the game without its wrappers, which repeat the whole conversation in every observation."""
    wrapper = _textarena().Wrapper
    while isinstance(game, wrapper):
        game = game.env
    return game


@lru_cache(maxsize=256)
def _has_jury(game: str) -> bool:
    """Whether models judge the game; it is not made, since that would look for their key."""
    try:
        spec = _textarena().envs.registration.ENV_REGISTRY.get(game)
        entry = spec.entry_point if spec is not None else None
        creator = load("game", entry) if isinstance(entry, str) else entry
    except UsageError:  # it cannot be imported here, and `check_row` says why
        return False
    return creator is not None and "jury_class" in inspect.signature(creator).parameters


def _options(game: str) -> list[str]:
    """Return the options of this game."""
    registry = _textarena().envs.registration.ENV_REGISTRY
    if game not in registry:
        games = sorted(name for name in registry if not name.endswith(("-raw", "-train")))
        raise UsageError(f"there is no TextArena game {game!r}{nearest(game, games)}")
    try:
        with Randomness(0).own():
            creator = type(_bare(_made(game, {})))
    except Exception as problem:  # one that needs a word list, a key, or another Python
        raise UsageError(f"{game} cannot be made: {_line(problem)}") from problem
    parameters = list(inspect.signature(creator).parameters.values())
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


@lru_cache(maxsize=256)
def _check_game(game: str, kwargs: bytes, players: int) -> None:
    """Raise ValueError if this game cannot be set up for this number of players."""
    options: dict[str, Json] = msgspec.json.decode(kwargs)
    try:
        known_options = _options(game)
    except UsageError as problem:
        raise ValueError(str(problem)) from None
    for key in options:
        if key not in known_options:
            listed = ", ".join(known_options) or "none"
            raise ValueError(f"{game} has no option {key!r}{nearest(key, known_options)} (known: {listed})")
    randomness = Randomness(0)
    try:
        with randomness.own():
            world = _made(game, options)
            world.reset(num_players=players, seed=randomness.seed)
    except Exception as problem:  # whatever a game says to wrong options or another number of players
        raise ValueError(f"{game} cannot be set up for {players} players: {_line(problem)}") from problem


def _players(row: Mapping[str, Json]) -> int:
    players = row.get("players", PLAYERS)
    if isinstance(players, bool) or not isinstance(players, int) or players < 2:
        raise ValueError(f"'players' must be a whole number from 2 on, found {players!r}")
    return players


def _said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _line(problem: BaseException) -> str:
    """Return the start of a message in one line: the message about a missing word list fills a page."""
    return f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:300]
