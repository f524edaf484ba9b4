"""Counts of an episode (actions, bad actions, steps back, walls), and the state that each turn records.

In the record, a turn without an action has `action` null, a wall is `blocked`, steps back to the first page are
`homepage_backs`; an invalid start address is the attempt's error `invalid_url`.
"""

from __future__ import annotations

from windrow.envs.web.actions import Action, name_of
from windrow.envs.web.page_observation import PageObservation
from windrow.envs.web.walls import Wall
from windrow.identity import digest
from windrow.records import Json


class EpisodeCounts:
    def __init__(self) -> None:
        self.steps = 0  # actions that were tried
        self.failed = 0  # those that were not possible
        self.bad_actions = 0  # replies without an action, and invalid actions
        self.bad_in_a_row = 0
        self.wrong: str | None = None  # what was bad in this turn's reply
        self.backs = 0
        self.homepage_backs = 0  # in a row, from the start page
        self.homepage_loops = 0  # steps back from the start page in all
        self.walls = 0
        self.walls_in_a_row = 0
        self.unanswered = 0  # observations of a page that did not answer
        self.unchanged = 0  # actions after which the page was as before
        self.waited_s = 0.0  # for pages
        self.wall: Wall | None = None  # of the page that was seen last
        self.answer: str | None = None
        self.ended: str | None = None
        self.listed: set[str] = set()  # sites that are in the block list by now
        self._action: str | None = None
        self._last: PageObservation | None = None
        self._seen: dict[str, Json] = {}
        self._view = ""
        self._changed = True

    def begin(self, action: Action) -> None:
        self.steps += 1
        self.bad_in_a_row = 0
        self._action = name_of(action)
        if self._action != "back":
            self.homepage_backs = 0

    @property
    def acted(self) -> bool:
        """Whether an action was tried in this turn."""
        return self._action is not None

    def bad(self, problem: Exception) -> None:
        self.wrong = str(problem)
        self.bad_actions += 1
        self.bad_in_a_row += 1

    def back(self, *, at_home: bool) -> None:
        self.backs += 1
        self.homepage_backs = self.homepage_backs + 1 if at_home else 0
        self.homepage_loops += at_home

    def saw(self, seen: PageObservation, how: str, wall: Wall | None, blob: str | None) -> None:
        """Count an observation that the policy gets in the form `how`."""
        view = digest([seen.url, seen.text, blob])
        self._changed = view != self._view
        self.unchanged += not self._changed
        self._view = view
        self._last = seen
        self.wall = wall
        self.walls += wall is not None
        self.walls_in_a_row = self.walls_in_a_row + 1 if wall is not None else 0
        self.unanswered += seen.snapshot is None
        self._seen = {
            "observe": how,
            "screenshot": blob,
            "chars": len(seen.text),
            **(seen.snapshot.as_record() if seen.snapshot is not None else {"unanswered": True}),
        }

    def as_record(self, seen: PageObservation | None) -> Json:
        """The state after a turn. `seen` is the turn's observation; without one, the last page stands."""
        last = self._last
        action, self._action = self._action, None
        return {
            "url": last.url if last is not None else None,
            "title": last.title if last is not None else None,
            "status": last.snapshot.status if last is not None and last.snapshot is not None else None,
            "tab": last.tab if last is not None else None,
            "tabs": last.tabs if last is not None else None,
            "action": action,
            "answer": self.answer,
            "changed": self._changed if seen is not None else False,
            "blocked": self.wall.as_record() if self.wall is not None else None,
            "ended": self.ended,
            "steps": self.steps,
            "bad_actions": self.bad_actions,
            "backs": self.backs,
            "homepage_backs": self.homepage_backs,
            "seen": self._seen,
            **({"dialogs": len(seen.dialogs)} if seen is not None and seen.dialogs else {}),
        }

    def metrics(self) -> dict[str, float]:
        return {
            "waited_s": self.waited_s,
            "steps": float(self.steps),
            "failed_actions": float(self.failed),
            "bad_actions": float(self.bad_actions),
            "backs": float(self.backs),
            "homepage_backs": float(self.homepage_loops),
            "blocked": float(self.wall is not None),
            "walls": float(self.walls),
            "unchanged_pages": float(self.unchanged),
            "unanswered_pages": float(self.unanswered),
        }
