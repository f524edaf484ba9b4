"""Time `inspect_ai` on single-turn rollouts against an OpenAI-compatible server.

    python run_inspect.py --tasks 50 --repeats 4 --concurrency 64 \
        --base-url http://127.0.0.1:18200/v1 --out results/inspect

Repeats are epochs; concurrency sets both samples and model connections. The sample log is
written in the default `.eval` format. Prints one JSON line; logs stay under `--out`.

`--lean` turns off the live event buffer and per-event logging of API calls, the settings
meant for high throughput.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from importlib.metadata import version
from pathlib import Path

from _measure import measured, tree_bytes, write_tasks

MODEL = "stub"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--base-url", default="http://127.0.0.1:18200/v1")
    parser.add_argument("--out", type=Path, default=Path("results/inspect"))
    parser.add_argument("--lean", action="store_true")
    parser.add_argument("--token-data", action="store_true", help="ask for and log logprobs")
    parser.add_argument("--display", default="none")
    parser.add_argument("--log-format", choices=("eval", "json"), default="eval")
    options = parser.parse_args()

    out = options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    tasks_file = out / "tasks.jsonl"
    write_tasks(tasks_file, options.tasks)
    # Keep the library's own state (buffers, caches, traces) next to the results.
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        os.environ[name] = str(out / "state")

    started = time.perf_counter()
    from inspect_ai import Epochs, Task, eval, task
    from inspect_ai.dataset import FieldSpec, json_dataset
    from inspect_ai.model import get_model
    from inspect_ai.scorer import match
    from inspect_ai.solver import generate

    @task
    def arithmetic() -> Task:
        fields = FieldSpec(input="prompt", target="answer", id="id")
        return Task(
            dataset=json_dataset(str(tasks_file), fields),
            solver=generate(),
            scorer=match(location="end"),
        )

    model = get_model(
        f"openai-api/stub/{MODEL}",
        base_url=options.base_url,
        api_key="none",
        memoize=False,
    )
    lean = {"log_realtime": False, "log_model_api": False, "score_display": False}
    startup = time.perf_counter() - started
    with measured() as measure:
        logs = eval(
            arithmetic(),
            model=model,
            epochs=Epochs(options.repeats, ["mean", f"pass_at_{options.repeats}"]),
            max_samples=options.concurrency,
            max_connections=options.concurrency,
            log_dir=str(out / "logs"),
            log_format=options.log_format,
            logprobs=True if options.token_data else None,
            display=options.display,
            **(lean if options.lean else {}),
        )

    log = logs[0]
    completed = log.results.completed_samples if log.results else 0
    metrics = {
        f"{score.name}/{score.reducer or 'none'}": round(next(iter(score.metrics.values())).value, 4)
        for score in (log.results.scores if log.results else [])
    }
    print(
        measure.line(
            rollouts=completed,
            system="inspect_ai",
            version=version("inspect_ai"),
            engine="lean" if options.lean else "default",
            tasks=options.tasks,
            repeats=options.repeats,
            concurrency=options.concurrency,
            token_data=options.token_data,
            startup_s=round(startup, 3),
            status=log.status,
            metrics=metrics,
            size_bytes=tree_bytes(out / "logs"),
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
