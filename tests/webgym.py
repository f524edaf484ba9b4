"""WebGym in tests: task rows and trajectories as its documentation has them, made up here."""

from __future__ import annotations

from typing import Any

from windrow.bridges.webgym.metrics import Step, Trajectory

Row = dict[str, Any]


def row(number: int = 1, **changes: Any) -> Row:
    """A row, without what is changed to None."""
    plain: Row = {
        "benchmark_name": "made-up",
        "task_name": f"Find the price of item {number}.",
        "domain": "Lifestyle & Leisure",
        "subdomain": "Shopping",
        "website": f"https://shop{number}.example",
        "definite_answer": f"{number} EUR",
        "task_id": number,
        "difficulty": 2,
        "evaluator_reference": [f"The price is {number} EUR.", "It is in stock."],
    }
    return {key: value for key, value in {**plain, **changes}.items() if value is not None}


def steps(*keys: str, chars: int = 10, reward: float | None = 0.0, blocked: bool = False) -> Trajectory:
    """A trajectory of these actions; `reward` and `blocked` are the last step's."""
    before = [Step(key, chars, 0.0) for key in keys[:-1]]
    last = [Step(key, chars, reward, blocked) for key in keys[-1:]]
    return Trajectory((*before, *last), outcome="answered" if keys[-1:] == ("answer",) else "other")
