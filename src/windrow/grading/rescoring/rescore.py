"""`windrow.rescore`: one rescore of a run, from its lock to its metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from windrow.engine.control import Control
from windrow.grading.rescoring.finishing import Rescored, Warn, finish
from windrow.grading.rescoring.opening import OpenRescore
from windrow.grading.rescoring.running import OnProgress, judge_selection


async def rescore(
    run: str | Path,
    *,
    scorers: Sequence[str | Callable[..., Any]] | None = None,
    where: str | None = None,
    failed_only: bool = False,
    config: str | Path | Sequence[str | Path] = (),
    sets: Sequence[str] = (),
    activate: bool = True,
    trust_run: bool = False,
    control: Control | None = None,
    on_progress: OnProgress | None = None,
    on_warning: Warn | None = None,
    **options: Any,
) -> Rescored:
    """Judge the rollouts of a run again; `options` are the command's flags with underscores (`judge`, `budget_tokens`, …).

    Scorers and judges that run.json names are used only if the run is this user's own, or with `trust_run`.
    """
    control, warn = control or Control(), on_warning or _ignore
    if scorers is not None:
        options["scorers"] = [scorer for scorer in scorers if isinstance(scorer, str)]
    with OpenRescore(
        Path(run),
        where=where,
        failed_only=failed_only,
        functions=[scorer for scorer in scorers or () if not isinstance(scorer, str)],
        files=[config] if isinstance(config, str | Path) else list(config),
        options=options,
        sets=sets,
        trust_run=trust_run,
    ) as opened:
        progress = await judge_selection(opened, control, on_progress=on_progress, warn=warn)
        return await finish(opened, control, progress, activate=activate, warn=warn)


def _ignore(message: str) -> None:
    pass
