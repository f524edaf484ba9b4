"""How close windrow comes to the floor, in under a minute.

Both sides ask a stub server without latency for the same single-turn rollouts, in turns. The best of the repeats is
compared; nothing is written.

    make bench-quick
    python bench/quick.py --tasks 2000 --repeats 5
"""

from __future__ import annotations

import argparse

from harness import Load, Race, Side, floor, race, unwind_on_term, windrow


def sides(load: Load) -> dict[str, Side]:
    return {"floor": floor(load), "windrow": windrow(load, "--scorer", "number")}


def report(result: Race) -> str:
    ours, least = result.best("windrow"), result.best("floor")
    return (
        f"best of {len(result.samples['windrow'])}: windrow reaches"
        f" {ours.rollouts_per_s / least.rollouts_per_s:.2f} of the floor's rollouts/s"
        f" ({ours.rollouts_per_s:,.0f} / {least.rollouts_per_s:,.0f})"
        f" at {ours.cpu_ms_per_rollout / least.cpu_ms_per_rollout:.2f} times its CPU a rollout"
        f" ({ours.cpu_ms_per_rollout:.3f} / {least.cpu_ms_per_rollout:.3f} ms)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=8, help="rollouts a task (k)")
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=("floor", "windrow"), default=["floor", "windrow"])
    given = parser.parse_args()
    unwind_on_term()
    both = sides(Load(given.tasks, given.samples, given.concurrency))
    result = race([both[name] for name in given.sides], repeats=given.repeats)
    if result.samples.keys() == both.keys():
        print(report(result))


if __name__ == "__main__":
    main()
