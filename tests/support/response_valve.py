"""A valve before the answers of a server: from the moment that a test waits for, none is given until it has acted.

So what a test kills or stops in mid-run is still in mid-run when the signal comes, however slow the test is.

    server = ModelServer(valve.before(reply))
    with valve.shut_once(lambda: lines() >= 7):
        running.until(lambda: lines() >= 7, "seven lines")
        running.signal(signal.SIGKILL)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.model_server import Reply

LOOK_AGAIN_S = 0.002


class Valve:
    def __init__(self) -> None:
        self._moment: Callable[[], object] | None = None

    def before(self, reply: Reply) -> Reply:
        def answer(body: dict[str, Any], n: int) -> Any:
            while (moment := self._moment) is not None and moment():
                time.sleep(LOOK_AGAIN_S)
            return reply(body, n)

        return answer

    @contextmanager
    def shut_once(self, moment: Callable[[], object]) -> Iterator[None]:
        """Inside, answers wait as long as `moment` has come."""
        self._moment = moment
        try:
            yield
        finally:
            self._moment = None
