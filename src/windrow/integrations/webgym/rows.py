"""A task row of WebGym: what is asked on which website, how hard it is, and what a right answer rests on.

    {"task_name": …, "website": …, "difficulty": 3, "evaluator_reference": …, "definite_answer"?: …, "task_id"?: …,
     "benchmark_name"?: …, "domain"?: …, "subdomain"?: …}

The row stays as it is. Beside it stand what the environment `web` reads: `instruction`, `start_url` (the website as an address), and
`facts`, whatever shape the reference has: a text, a list of texts, a list of {description}, or groups of facts, of which each counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from windrow.identity import digest
from windrow.records import Json, Rollout
from windrow.tasks.row_formats import WEB, Marks, RowFormat, Traits, host_of

NAME, WEBSITE, DIFFICULTY, REFERENCE = "task_name", "website", "difficulty", "evaluator_reference"
INSTRUCTION, START_URL, FACTS = "instruction", "start_url", "facts"  # what is put beside the row
TRAIN = "train"
EASY, MEDIUM = 3, 6  # the highest difficulty of each; what is above is hard
MOST_DIFFICULT = 2**53
_SPACE = re.compile(r"\s")
TRAIN_STEPS, TEST_STEPS = (10, 20, 30), (30, 50, 70)  # easy, medium, hard


def is_row(row: Mapping[str, Json]) -> bool:
    """Whether a row is one of WebGym's."""
    return NAME in row and WEBSITE in row and (REFERENCE in row or DIFFICULTY in row)


def split_row(row: Mapping[str, Json]) -> tuple[dict[str, Json], Marks]:
    """The task in a row. ValueError says what is wrong with it."""
    if not isinstance(row[NAME], str) or not row[NAME].strip():
        raise ValueError(f"{NAME!r} must be the instruction, found {row[NAME]!r:.80}")
    difficulty_of(row)
    added: dict[str, Json] = {
        INSTRUCTION: row[NAME],
        START_URL: start_url(row[WEBSITE]),
        FACTS: list(facts_of(row)),
    }
    for (key, value), origin in zip(added.items(), (NAME, WEBSITE, REFERENCE), strict=True):
        if row.get(key, value) != value:
            raise ValueError(f"{key!r} is in the row and says something else than {origin!r}")
    return {**row, **added}, Marks()


def start_url(website: Json) -> str:
    """The website as an address: https, unless it says otherwise."""
    if not isinstance(website, str) or not website.strip():
        raise ValueError(f"{WEBSITE!r} must be an address, found {website!r:.80}")
    text = website.strip()
    url = text if "://" in text else f"https://{text}"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as problem:
        raise ValueError(f"{WEBSITE!r} is no address: {text!r:.80} ({problem})") from None
    if parts.scheme not in ("http", "https") or not host or _SPACE.search(url):
        raise ValueError(f"{WEBSITE!r} must be an address such as https://example.com, found {text!r:.80}")
    return url


def facts_of(row: Mapping[str, Json]) -> tuple[str, ...]:
    """What a right answer rests on, a text each. ValueError names the part of the reference that is none."""
    reference = row.get(REFERENCE)
    if reference is None:
        return ()
    written = [reference] if isinstance(reference, str) else reference
    if not isinstance(written, list):
        raise ValueError(
            f"{REFERENCE!r} must be a text, a list of texts or of {{description}}, or groups of facts, "
            f"found {type(reference).__name__}"
        )
    return tuple(
        fact for number, item in enumerate(written) for fact in _facts(item, f"{REFERENCE}[{number}]")
    )


def _facts(item: Json, where: str) -> Iterator[str]:
    if isinstance(item, str):
        yield _text(item, where)
    elif not isinstance(item, dict):
        raise ValueError(f"{where} must be a text or an object with 'description', found {item!r:.80}")
    elif "facts" not in item:
        yield _text(item.get("description"), f"{where}.description")
    elif not isinstance(item["facts"], list) or not item["facts"]:
        raise ValueError(f"{where}.facts must be a list of at least one fact")
    else:
        for number, fact in enumerate(item["facts"]):
            inside = f"{where}.facts[{number}]"
            if isinstance(fact, dict):
                fact, inside = fact.get("description"), f"{inside}.description"
            yield _text(fact, inside)


def _text(value: Json, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where} must be a text, found {value!r:.80}")
    return value


def difficulty_of(row: Mapping[str, Json]) -> int | None:
    """A row's difficulty; where it gives none, the number of its facts, which is what theirs is. None: nobody knows."""
    value = row.get(DIFFICULTY)
    if value is None:
        return len(facts_of(row)) or None
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_whole(value):
        raise ValueError(f"{DIFFICULTY!r} must be a whole number, found {value!r:.80}")
    return int(value)


def _is_whole(value: float) -> bool:
    return abs(value) < MOST_DIFFICULT and value == int(value)


def limits_of(row: Mapping[str, Json], split: str | None) -> dict[str, int]:
    """How many turns an episode may have: fewer in training than in a test, more the harder the task is."""
    difficulty = difficulty_of(row)
    if difficulty is None:
        return {}
    steps = TRAIN_STEPS if split in (None, TRAIN) else TEST_STEPS
    return {"max_turns": steps[0 if difficulty <= EASY else 1 if difficulty <= MEDIUM else 2]}


def traits_of(row: Mapping[str, Json]) -> Traits | None:
    """Rows of one website that ask the same, at the same difficulty, are one task to WebGym."""
    difficulty = difficulty_of(row)
    unique = digest([row.get("subdomain"), row[WEBSITE], difficulty, row[NAME]])
    return Traits(unique, difficulty, host_of(row[WEBSITE]))


def opening_of(row: Mapping[str, Json]) -> list[dict[str, Any]]:
    """What a row opens with where there is no browser: the instruction."""
    return [{"role": "user", "content": row[NAME]}]


def _measured(rollouts: Iterable[Rollout]) -> dict[str, float]:
    """WebGym's metrics of these rollouts."""
    from windrow.integrations.webgym.metrics import measure  # both read rows, so it is imported here
    from windrow.integrations.webgym.steps import trajectory_of

    found: dict[str, float] = msgspec.to_builtins(measure(map(trajectory_of, rollouts)).webgym)
    return found


ROW_FORMAT = RowFormat(
    is_row=is_row,
    opening_of=opening_of,
    split_row=split_row,
    env_of=lambda row: WEB,
    limits_of=limits_of,
    traits_of=traits_of,
    measures={"webgym": _measured},
)
