"""`windrow rescore`: judge what a run has recorded again, with other scorers or with the same ones. No policy is asked.

New scorers make a new generation: its verdicts stand beside those of the others, and it becomes the active one when it
is whole. With `where` or `failed_only` the run's own scorers judge those rollouts again, and their latest verdicts count.
Killed at any moment, the same call judges what is missing.

`rescore` is the way through: `opening` (with `scorers` and `resume`), `selection`, `running`, `finishing`. `generations` lists
the gradings of a run, and chooses one of them. Judging itself is not here: `grading_pass` does it, for `collect` too.
"""

from __future__ import annotations

from windrow.grading.rescoring.finishing import Rescored
from windrow.grading.rescoring.generations import Generation, generations, use_generation
from windrow.grading.rescoring.progress import RescoreProgress
from windrow.grading.rescoring.rescore import rescore

__all__ = ["Generation", "RescoreProgress", "Rescored", "generations", "rescore", "use_generation"]
