"""Why `--model local` counts idle cores: tokens per second by threads, on a quiet machine and on a busy one.

    python bench/local_threads.py

The busy half runs beside as many spinning processes as there are cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import time
from pathlib import Path

from windrow.config import LocalConfig
from windrow.policies import Request
from windrow.policies.local import LocalPolicy
from windrow.policies.models import DEFAULT_MODEL, find_model
from windrow.records import Message
from windrow.util.redaction import Redactor


def spin() -> None:
    while True:
        pass


async def measure(path: Path, threads: int, calls: int) -> float:
    policy = LocalPolicy(path, LocalConfig(threads=threads), Redactor())
    await policy.open()
    try:
        started = time.monotonic()
        replies = await asyncio.gather(*(policy.complete(question(number)) for number in range(calls)))
        tokens = sum(reply.usage.completion_tokens for reply in replies if reply.usage)
        return tokens / (time.monotonic() - started)
    finally:
        await policy.close()


def question(number: int) -> Request:
    message = Message(role="user", content=f"What is {number} + 4? Think briefly.", origin="task")
    sampling = {"max_tokens": 24, "temperature": 0.8, "seed": number}
    return Request(messages=(message,), tools=(), sampling=sampling, id=str(number), attempt=1, turn=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=16)
    parser.add_argument("--json", action="store_true", help="one JSON object a measurement")
    options = parser.parse_args()
    path = find_model(DEFAULT_MODEL).path
    if not path.exists():
        raise SystemExit("the model is not there: windrow models pull")
    cores = len(os.sched_getaffinity(0))
    for busy in (False, True):
        spinners = [multiprocessing.Process(target=spin, daemon=True) for _ in range(cores if busy else 0)]
        for spinner in spinners:
            spinner.start()
        for threads in range(1, cores + 1):
            rate = asyncio.run(measure(path, threads, options.calls))
            machine = "busy" if busy else "quiet"
            if options.json:
                said = json.dumps({"machine": machine, "threads": threads, "tokens_per_s": rate})
            else:
                said = f"{machine:5}  {threads} threads  {rate:6.1f} tokens/s"
            print(said, flush=True)
        for spinner in spinners:
            spinner.terminate()


if __name__ == "__main__":
    main()
