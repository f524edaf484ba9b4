"""The process in which reasoning-gym runs: it makes tasks (`rows`) and judges answers (a question a line, a verdict a line).

It stands alone: only the standard library and reasoning-gym, which the other processes never load. Some of its
generators depend on the hash seed or on the shared random state, so both are fixed here. Some of its verifiers evaluate
the answer as Python; so the process limits its processor time and memory, is given no keys (see `reasoning_gym.py`), and
refuses to start programs, to connect and to write files. That is a fence against accidents, no sandbox.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TextIO

MEMORY_BYTES = 2 * 2**30
SAID_CHARS = 2000  # of the extracted answer, for the record
_REFUSED = (
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "subprocess.",
    "pty.",
    "socket.",
    "ctypes.",
)
_CHANGES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "shutil.",
)


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


def verdict(question: dict[str, Any], gym: Any, datasets: dict[str, Any]) -> dict[str, Any]:
    name, config = question["dataset"], question["config"]
    key = json.dumps([name, config], sort_keys=True)
    if key not in datasets:
        if name not in gym.factory.DATASETS:
            return {
                "error": f"reasoning-gym has no data set {name!r} here; the row was made with another version"
            }
        datasets[key] = gym.create_dataset(name, **config)
    answer, formed = said(question["reply"], gym)
    entry = {
        "question": question["question"],
        "answer": question["answer"],
        "metadata": restored(question["metadata"], question["types"]),
    }
    shown = {"formed": formed, "said": answer and answer[:SAID_CHARS]}
    try:
        return {"value": _scored(datasets[key], answer, entry), **shown}
    except Exception as problem:
        # Some raise on what they cannot read. Where they can judge the right answer, this one is at fault: it is wrong.
        _scored(datasets[key], entry["answer"], entry)
        return {"value": 0.0, **shown, "raised": _line(problem)}


def _scored(dataset: Any, answer: str | None, entry: dict[str, Any]) -> float:
    _seed(0)
    return float(dataset.score_answer(answer, entry))


# -- the process


def fence(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse, as an audit hook, operations that a verifier has no reason for."""
    writes = event == "open" and (
        any(letter in str(arguments[1] or "") for letter in "wax+")
        or (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    )
    if writes or event.startswith(_REFUSED) or event.startswith(_CHANGES):
        raise PermissionError(f"a verifier may not do this: {event}")


def _limit(kind: int, amount: int) -> None:
    """Lower a soft limit, as far as the system supports and permits it."""
    _, hard = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (amount if hard == resource.RLIM_INFINITY else min(amount, hard), hard))
    except (OSError, ValueError):
        return


def _line(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    return text if isinstance(problem, AssertionError) and text else f"{type(problem).__name__}: {text}"


def _judge(questions: BinaryIO, answers: TextIO, gym: Any) -> None:
    datasets: dict[str, Any] = {}
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    sys.dont_write_bytecode = True
    sys.addaudithook(fence)
    for line in questions:
        question = json.loads(line)
        _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + question["cpu_s"])
        try:
            reply = verdict(question, gym, datasets)
        except (
            BaseException
        ) as problem:  # also an `exit()` in an answer; it belongs to this question, not to the next
            reply = {"error": _line(problem)}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def _make(questions: BinaryIO, answers: TextIO, gym: Any) -> None:
    order = json.loads(questions.readline())
    for row in rows(order, gym):
        answers.write(json.dumps(row) + "\n")
    answers.flush()


def main(work: Callable[[BinaryIO, TextIO, Any], None]) -> None:
    # Under other names than those that an evaluated answer closes (`exit()`) or a generator prints dots to.
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    import reasoning_gym  # type: ignore[import-untyped]
    import reasoning_gym.utils  # type: ignore[import-untyped]

    work(questions, answers, reasoning_gym)


if __name__ == "__main__":
    main(_make if sys.argv[1:] == ["rows"] else _judge)
