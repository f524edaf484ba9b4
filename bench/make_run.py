"""Write a run directory of many rollouts in seconds, as `windrow collect` would have left it.

One task is collected for real with the scripted policy; its line is then written for every slot of the plan, with the
ids, seed and task that are the slot's own. The same command finds the run complete.

    python bench/make_run.py DIRECTORY --rollouts 1000000
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

import msgspec

import windrow
from windrow.collecting.collection import Collection
from windrow.collecting.opening import open_collection
from windrow.collecting.resolve import resolve
from windrow.config import load_config
from windrow.records import Rollout, encode
from windrow.tasks.plan import Slot

SAMPLES = 8
WRITE_BYTES = 1 << 22
SCRIPT = {"replies": [{"match": r"what is (\d+)", "reply": "The answer is {1}."}]}


def options(folder: Path) -> dict[str, object]:
    """The flags of the command whose run this is, by their names in a configuration."""
    return {
        "tasks": str(folder / "tasks.jsonl"),
        "model": f"scripted:{folder / 'script.json'}",
        "samples": SAMPLES,
        "out": str(folder / "run"),
        "scorers": ["number"],
    }


def command(folder: Path) -> list[str]:
    """The arguments of `windrow` that find this run complete."""
    given = options(folder)
    return [
        *("collect", str(given["tasks"]), "--model", str(given["model"]), "-k", str(SAMPLES)),
        *("--out", str(given["out"]), "--scorer", "number"),
    ]


def make_run(folder: Path, rollouts: int) -> Path:
    """Write the tasks, the script and the run below `folder`; the run directory."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script.json").write_text(json.dumps(SCRIPT))
    with (folder / "tasks.jsonl").open("w") as file:
        for number in range(-(-rollouts // SAMPLES)):
            row = {"id": f"task-{number}", "prompt": f"what is {number} and nothing else?", "answer": number}
            file.write(json.dumps(row) + "\n")
    template = asyncio.run(_one(folder))
    collection = open_collection(resolve(load_config((), options(folder))))
    try:
        _write(collection, template)
    finally:
        collection.close()
    return folder / "run"


async def _one(folder: Path) -> Rollout:
    """A rollout of the first task, collected for real."""
    found = [rollout async for rollout in windrow.collect(**options(folder), limit=1, aggregate=False)]
    return found[0]


def _write(collection: Collection, template: Rollout) -> None:
    assert collection.directory is not None
    log = collection.directory.open_rollouts()
    lines = bytearray()
    for slot in collection.plan.pending(collection.ledger):
        lines += encode(_filled(template, slot)) + b"\n"
        if len(lines) > WRITE_BYTES:
            log.append_now(bytes(lines))
            lines.clear()
    log.append_now(bytes(lines))


def _filled(template: Rollout, slot: Slot) -> Rollout:
    """The template as if this slot had been run; every other one is wrong, so that rewards differ."""
    reward = float(slot.number % 2)
    score = msgspec.structs.replace(template.scores["number"], value=reward)
    first = msgspec.structs.replace(template.messages[0], content=slot.task["prompt"])
    timing = msgspec.structs.replace(template.timing, total=0.5 + (slot.number * 7919 % 100_003) / 1e5)
    return msgspec.structs.replace(
        template,
        id=slot.id,
        attempt=slot.attempt,
        group=slot.group,
        sample=slot.sample,
        seed=slot.seed,
        task=slot.recorded_task,
        messages=(first, *template.messages[1:]),
        scores={**template.scores, "number": score},
        reward=reward,
        timing=timing,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rollouts", type=int, default=100_000)
    given = parser.parse_args()
    run = make_run(given.directory, given.rollouts)
    size = (run / "rollouts.jsonl").stat().st_size
    print(f"{run}: {given.rollouts:,} rollouts, {size / given.rollouts:.0f} bytes each")
    print("windrow " + " ".join(command(given.directory)))


if __name__ == "__main__":
    main()
