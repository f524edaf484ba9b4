"""What a capture level costs, and that a record grows with its messages: CPU and bytes a rollout, bytes a turn.

    python bench/capture.py

Replies of 512 tokens with ids and logprobs from the stub server; then episodes of 50, 100 and 200 turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
LEVELS = ("none", "text", "logprobs", "tokens")
TASKS, SAMPLES = 100, 8


def serve(*flags: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, str(HERE / "stub_server.py"), "--port", "0", *flags]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    return server, server.stdout.readline().split()[1]


def collect(tasks: Path, out: Path, url: str, *flags: str) -> float:
    """Run the command; the CPU seconds it took."""
    before = os.times()
    command = [sys.executable, "-m", "windrow", "collect", str(tasks), "--model", "stub", "--base-url", url]
    command += ["--out", str(out), "--quiet", "--no-aggregate", *flags]
    subprocess.run(command, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def levels(folder: Path) -> None:
    tasks = folder / "tasks.jsonl"
    rows = ({"id": str(n), "prompt": f"What is {n} + 1?", "answer": "42"} for n in range(TASKS))
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    server, url = serve("--tokens", "512")
    try:
        print(
            f"{TASKS * SAMPLES} rollouts of 512 tokens\n{'capture':<10} {'CPU ms':>8} {'bytes':>8}   (a rollout)"
        )
        for level in LEVELS:
            out = folder / level
            seconds = collect(tasks, out, url, "-k", str(SAMPLES), "--capture", level)
            size = (out / "rollouts.jsonl").stat().st_size
            count = TASKS * SAMPLES
            print(f"{level:<10} {1000 * seconds / count:8.2f} {size / count:8.0f}")
    finally:
        server.terminate()


def turns(folder: Path) -> None:
    server, url = serve("--tokens", "32")
    try:
        print(f"\n{'turns':<10} {'bytes':>10} {'a turn':>8}")
        for count in (50, 100, 200):
            tasks = folder / f"turns-{count}.jsonl"
            script = [f"And then? ({n})" for n in range(count - 1)]
            tasks.write_text(json.dumps({"id": "a", "prompt": "Go on.", "script": script}) + "\n")
            out = folder / f"turns-{count}"
            collect(tasks, out, url, "--env", "chat", "--max-turns", str(count))
            size = (out / "rollouts.jsonl").stat().st_size
            print(f"{count:<10} {size:>10} {size / count:8.0f}")
    finally:
        server.terminate()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        levels(Path(folder))
        turns(Path(folder))


if __name__ == "__main__":
    main()
