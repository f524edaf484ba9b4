"""`preference`: a `problem` whose replies a judge compares, two by two, within the group.

The settings are those of the scorer `preference`, which it brings.
"""

from __future__ import annotations

from windrow.envs.judged import Judged


class Preference(Judged):
    name = "preference"
    version = 1
