"""`windrow export --to riddles`: one line per rollout, with the riddle, the last reply and the reward."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from windrow import Example, Exporter


class Solutions(Exporter):
    def rows(self, example: Example) -> Iterable[dict[str, Any]]:
        rollout = example.rollout
        return [{"riddle": rollout.task["riddle"], "reply": rollout.reply, "reward": rollout.reward}]
