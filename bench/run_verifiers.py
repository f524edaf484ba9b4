"""Time `verifiers` on single-turn rollouts against an OpenAI-compatible server.

Three engines, because the project changed shape:

* `inprocess` (0.4+): the documented harness contract with the chat loop in this process.
* `null` (0.4+): the built-in tool-less harness, which starts one Python program a rollout
  (needs `uv` on PATH).
* `legacy` (before 0.4): `SingleTurnEnv.evaluate`, the API most published environments use.

    python run_verifiers.py --tasks 50 --repeats 4 --concurrency 64 \
        --base-url http://127.0.0.1:18200/v1 --out results/verifiers

Prints one JSON line; results stay under `--out`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import logging
import os
import shutil
import sys
import time
import types
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from _measure import measured, tree_bytes, write_tasks

KEY_VARIABLE = "PEER_BENCH_API_KEY"
MODEL = "stub"
Run = Callable[[], tuple[int, float]]


def has_legacy() -> bool:
    return importlib.util.find_spec("verifiers.legacy") is not None


def register_plugins() -> None:
    """Make this script's taskset and harness importable under their plugin ids."""
    import verifiers.v1 as vf
    from openai import AsyncOpenAI

    class PeerData(vf.TaskData):
        answer: str

    class PeerTask(vf.Task[PeerData]):
        @vf.reward
        async def correct(self, trace: vf.Trace) -> float:
            words = trace.last_reply.split()
            return float(bool(words) and words[-1] == self.data.answer)

    class PeerTasksetConfig(vf.TasksetConfig):
        path: Path = Path("tasks.jsonl")

    class PeerTaskset(vf.Taskset[PeerTask, PeerTasksetConfig]):
        def load(self):
            with self.config.path.open(encoding="utf-8") as file:
                for row in map(json.loads, file):
                    data = PeerData(id=row["id"], prompt=row["prompt"], answer=row["answer"])
                    yield PeerTask(data, self.config.task)

    class InProcessHarness(vf.Harness[vf.HarnessConfig]):
        APPENDS_SYSTEM_PROMPT = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False
        clients: ClassVar[dict[str, AsyncOpenAI]] = {}

        async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
            client = self.clients.get(endpoint)
            if client is None:
                client = self.clients[endpoint] = AsyncOpenAI(base_url=endpoint, api_key="-")
            _, prompt = self.resolve_prompt(data)
            await client.with_options(api_key=secret).chat.completions.create(
                model=ctx.model, messages=[{"role": "user", "content": prompt}]
            )
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    for name, exported in (
        ("peer_taskset", PeerTaskset),
        ("peer_inprocess", InProcessHarness),
    ):
        module = types.ModuleType(name)
        module.__spec__ = importlib.util.spec_from_loader(name, loader=None)
        setattr(module, exported.__name__, exported)
        module.__all__ = [exported.__name__]
        sys.modules[name] = module


def prepare_v1(options: argparse.Namespace, tasks: Path) -> Run:
    register_plugins()
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    harness = "peer-inprocess" if options.engine == "inprocess" else "null"
    config = EvalConfig.model_validate(
        {
            "env": {
                "taskset": {"id": "peer-taskset", "path": str(tasks)},
                "agent": {"harness": {"id": harness}, "runtime": {"type": "subprocess"}},
            },
            "model": MODEL,
            "client": {"type": "eval", "base_url": options.base_url, "api_key_var": KEY_VARIABLE},
            "sampling": {"logprobs": True, "return_token_ids": True} if options.token_data else {},
            "num_rollouts": options.repeats,
            "max_concurrent": options.concurrency,
            "rich": None,
            "push": False,
            "output_dir": str(options.out),
            "run": {"name": "run"},
        }
    )

    def run() -> tuple[int, float]:
        episodes = asyncio.run(run_eval(config))
        good = [episode for episode in episodes if episode.ok]
        reward = sum(trace.reward for episode in good for trace in episode.traces)
        return len(good), reward / max(1, len(good))

    return run


def prepare_legacy(options: argparse.Namespace, tasks: Path) -> Run:
    import verifiers as vf
    from datasets import Dataset
    from verifiers.types import ClientConfig

    rows = [json.loads(line) for line in tasks.read_text(encoding="utf-8").splitlines()]
    dataset = Dataset.from_list([{"question": r["prompt"], "answer": r["answer"]} for r in rows])

    async def correct(completion, answer) -> float:
        last = completion[-1]
        text = last["content"] if isinstance(last, dict) else last.content
        words = (text or "").split()
        return float(bool(words) and words[-1] == answer)

    env = vf.SingleTurnEnv(dataset=dataset, rubric=vf.Rubric(funcs=[correct]))

    def run() -> tuple[int, float]:
        results = asyncio.run(
            env.evaluate(
                client=ClientConfig(
                    client_type="openai_chat_completions" + ("_token" if options.token_data else ""),
                    api_base_url=options.base_url,
                    api_key_var=KEY_VARIABLE,
                ),
                model=MODEL,
                num_examples=options.tasks,
                rollouts_per_example=options.repeats,
                max_concurrent=options.concurrency,
                results_path=options.out / "run",
                save_results=True,
                state_columns=["trajectory"] if options.token_data else None,
                independent_scoring=True,
                on_progress=lambda *_: None,
            )
        )
        good = [output for output in results["outputs"] if output.get("error") is None]
        return len(good), sum(output["reward"] for output in good) / max(1, len(good))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--base-url", default="http://127.0.0.1:18200/v1")
    parser.add_argument("--out", type=Path, default=Path("results/verifiers"))
    parser.add_argument("--engine", choices=("auto", "inprocess", "null", "legacy"), default="auto")
    parser.add_argument("--token-data", action="store_true", help="ask for token ids and logprobs")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if options.engine == "auto":
        options.engine = "legacy" if has_legacy() else "inprocess"
    logging.basicConfig(level=logging.INFO if options.verbose else logging.ERROR)
    os.environ.setdefault(KEY_VARIABLE, "none")
    os.environ.setdefault("PRIME_RUNS_MODE", "disabled")

    options.out = options.out.resolve()
    shutil.rmtree(options.out, ignore_errors=True)
    tasks = options.out / "tasks.jsonl"
    write_tasks(tasks, options.tasks)
    started = time.perf_counter()
    run = (prepare_legacy if options.engine == "legacy" else prepare_v1)(options, tasks)
    startup = time.perf_counter() - started
    with measured() as measure:
        rollouts, reward = run()

    print(
        measure.line(
            rollouts=rollouts,
            system="verifiers",
            version=version("verifiers"),
            engine=options.engine,
            tasks=options.tasks,
            repeats=options.repeats,
            concurrency=options.concurrency,
            token_data=options.token_data,
            startup_s=round(startup, 3),
            mean_reward=round(reward, 4),
            size_bytes=tree_bytes(options.out / "run"),
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
