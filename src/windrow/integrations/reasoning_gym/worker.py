"""The part of reasoning-gym's integration that runs the package: it makes tasks, as a program, and judges answers, in processes
of a fork server (`util/fork_server.py`).

It stands alone: only the standard library and reasoning-gym, which the other processes never load. Some of its
generators depend on the hash seed or on the shared random state, so both are fixed here. Some of its verifiers evaluate
the answer as Python. So each answer has a process of its own, which can do nothing but compute. What an answer does there
to the verifier reaches no verdict but its own.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import random
from collections.abc import Iterator
from typing import Any

SAID_CHARS = 2000  # of the extracted answer, for the record

# -- an entry as JSON, and back: verifiers tell a tuple from a list, and 1 from "1"


def plain(value: Any, types: dict[str, str], path: str = "") -> Any:
    """Return `value` as JSON; `types` records values that have another type in JSON."""
    if isinstance(value, dict):
        if value and all(type(key) is int for key in value):
            types[path] = "int keys"
        return {str(key): plain(item, types, f"{path}/{key}") for key, item in value.items()}
    if isinstance(value, tuple | list):
        if isinstance(value, tuple):
            types[path] = "tuple"
        return [plain(item, types, f"{path}/*") for item in value]
    if isinstance(value, str):
        return str(value)
    return value.item() if hasattr(value, "item") else value


def restored(value: Any, types: dict[str, str], path: str = "") -> Any:
    if isinstance(value, dict):
        items = {key: restored(item, types, f"{path}/{key}") for key, item in value.items()}
        return {int(key): item for key, item in items.items()} if types.get(path) == "int keys" else items
    if isinstance(value, list):
        items_ = [restored(item, types, f"{path}/*") for item in value]
        return tuple(items_) if types.get(path) == "tuple" else items_
    return value


# -- tasks


def parameters(factory: Any, name: str) -> list[str]:
    """Return the parameters of a data set, without its size and seed."""
    fields = [field.name for field in dataclasses.fields(factory.DATASETS[name][1]) if field.init]
    return [field for field in fields if field not in ("seed", "size")]


def rows(order: dict[str, Any], gym: Any) -> Iterator[dict[str, Any]]:
    """`{names, size, seed, system, common, own: {name: …}}` → a line for each task, or one that says why not."""
    names = sorted(set(gym.factory.DATASETS) - {"composite"})
    wanted = names if order["names"] == ["all"] else order["names"]
    for name in wanted:
        if name not in names:
            yield {"unknown": name, "known": names, "what": "data set"}
            return
    system = order["system"]
    if system not in (None, *gym.utils.SYSTEM_PROMPTS):
        yield {"unknown": system, "known": ["none", *gym.utils.SYSTEM_PROMPTS], "what": "system prompt"}
        return
    for name in wanted:
        known_parameters = parameters(gym.factory, name)
        config = {**order["common"], **order["own"].get(name, {})}
        for key in config:
            if key not in known_parameters:
                yield {
                    "unknown": key,
                    "known": ["size", "seed", "system", *known_parameters],
                    "of": name,
                    "what": "parameter",
                }
                return
    for name in wanted:
        config = {**order["common"], **order["own"].get(name, {})}
        try:
            dataset = gym.create_dataset(name, size=order["size"], seed=order["seed"], **config)
        except Exception as problem:
            yield {"refused": name, "why": _line(problem)}
            return
        for index in range(order["size"]):
            text = None if system is None else gym.utils.SYSTEM_PROMPTS[system]
            yield _row(dataset, name, config, order["seed"], index, text)


def _row(
    dataset: Any, name: str, config: dict[str, Any], seed: int, index: int, system: str | None
) -> dict[str, Any]:
    _seed(seed + index)
    try:
        entry = dataset[index]
        types: dict[str, str] = {}
        metadata = plain(entry["metadata"], types)
        if restored(json.loads(json.dumps(metadata, allow_nan=False)), types) != entry["metadata"]:
            raise ValueError("its metadata cannot be written down and read back as it is")
    except Exception as problem:
        return {"bad": f"{name}[{index}]: {_line(problem)}"}
    row = {
        "id": f"{name}:{seed}:{index}",
        "env": "reasoning-gym",
        "prompt": entry["question"],
        "answer": plain(entry["answer"], {}),
        "dataset": name,
        "metadata": metadata,
        "tags": [name],
    }
    given = {"system": system, "config": config or None, "types": types or None}
    return {"row": {**row, **{key: value for key, value in given.items() if value is not None}}}


def _seed(seed: int) -> None:
    """Seed the state that some generators share."""
    import numpy

    random.seed(seed)
    numpy.random.seed(seed % 2**32)


# -- verdicts


def said(reply: str, gym: Any) -> tuple[str | None, bool]:
    """The answer of a reply, and whether it was marked as such.

    The last <answer>…</answer>, by its own reading; else what follows an <answer> that is not closed; else the
    whole reply, without what was thought before it.
    """
    marked = gym.utils.extract_answer(reply)
    if marked is not None:
        return marked, True
    _, opened, rest = reply.rpartition("<answer>")
    text = (rest if opened else reply.rpartition("</think>")[2]).strip()
    return text or None, False


def verdict(question: dict[str, Any], gym: Any, defaults: dict[str, Any]) -> dict[str, Any]:
    name, config = question["dataset"], question["config"]
    if name not in gym.factory.DATASETS:
        return {
            "error": f"reasoning-gym has no data set {name!r} here; the row was made with another version"
        }
    made = None if config else defaults.get(name)
    dataset = gym.create_dataset(name, **config) if made is None else made
    answer, formed = said(question["reply"], gym)
    entry = {
        "question": question["question"],
        "answer": question["answer"],
        "metadata": restored(question["metadata"], question["types"]),
    }
    shown = {"formed": formed, "said": answer and answer[:SAID_CHARS]}
    try:
        return {"value": _scored(dataset, answer, entry), **shown}
    except Exception as problem:
        # Some raise on what they cannot read. Where they can judge the right answer, this one is at fault: it is wrong.
        _scored(dataset, entry["answer"], entry)
        return {"value": 0.0, **shown, "raised": _line(problem)}


def _scored(dataset: Any, answer: str | None, entry: dict[str, Any]) -> float:
    _seed(0)
    return float(dataset.score_answer(answer, entry))


# -- the process of a verdict

_defaults: dict[str, Any] = {}  # data sets without parameters, as the server has made them


def prepare(argument: str) -> None:
    """Import the package, in the server."""
    import numpy  # noqa: F401 (the verdicts seed it)

    _gym()


def warm(name: str) -> None:
    """Make a data set with its own defaults, in the server: some read large files. `name` is a row's, and only looked up."""
    if name not in _defaults and name in _gym().factory.DATASETS:
        _defaults[name] = _gym().create_dataset(name)


def answer(question: bytes) -> bytes:
    """Judge one answer, in a process of its own."""
    try:
        reply = verdict(json.loads(question), _gym(), _defaults)
    except BaseException as problem:  # also an `exit()` in an answer
        reply = {"error": _line(problem)}
    return json.dumps(reply).encode()


def _gym() -> Any:
    logging.disable(logging.CRITICAL)
    import reasoning_gym  # type: ignore[import-untyped]
    import reasoning_gym.utils  # type: ignore[import-untyped]

    return reasoning_gym


def _line(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    return text if isinstance(problem, AssertionError) and text else f"{type(problem).__name__}: {text}"


# -- the process that makes tasks


def main() -> None:
    # Under other names than those that a generator prints dots to.
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    order = json.loads(questions.readline())
    for row in rows(order, _gym()):
        answers.write(json.dumps(row) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
