"""`prompt`: one prompt, one reply, and nothing to grade: for distillation and for collecting replies.

Reads rows as `problem` does, but a row's `answer` is only data: there are no scorers unless some are named.
"""

from __future__ import annotations

from windrow.envs.problem import Problem


class Prompt(Problem):
    name = "prompt"
    version = 1
