"""Patterns of the configuration: matched as `re` matches them, in processes that can be ended; the loop never waits for one."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import answering, collected
from windrow.grading import pattern_processes
from windrow.grading.answers import regex
from windrow.grading.judge_replies import Mark, configured_pattern, read_mark
from windrow.grading.pattern_processes import matched, regex_judge
from windrow.grading.preference import Preference, read_preference

ENDLESS, TEXT = "(a+)+$", "a" * 40 + "b"


async def test_an_endless_pattern_fails_its_verdict_alone_and_the_loop_goes_on(tmp_path: Path) -> None:
    rows = [{"prompt": reply, "answer": "aa"} for reply in (TEXT, "aa", "ab")]
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    scorers = json.dumps([{"name": "regex", "settings": {"pattern": ENDLESS}}])
    rollouts = await collected(
        rows,
        policy=answering(lambda request: request.messages[0].text),
        out=str(tmp_path / "run"),
        sets=[f"scorers={scorers}"],
        retries=0,
    )
    ticking.cancel()
    found = {rollout.task["prompt"]: rollout for rollout in rollouts}
    assert (found["aa"].reward, found["ab"].reward, found[TEXT].reward) == (1.0, 0.0, None)
    error = found[TEXT].error
    assert error is not None
    assert "the pattern '(a+)+$' was not matched within" in error.message
    assert ticks > 5


@pytest.mark.parametrize("reply", ["", "x=1 x=2", "x=", "é=3 x=é", "x=\ud800"])
@pytest.mark.parametrize("pattern", [r"x=(\w+)", r"\w", r"(?<=x)=", r"(x)?=(\d)"])
async def test_a_verdict_is_what_re_gives_in_this_process(reply: str, pattern: str) -> None:
    reply = reply.encode(errors="replace").decode()
    settings = {"pattern": pattern}
    assert await regex_judge(reply, ["2", "é"], settings) == regex(reply, ["2", "é"], settings)


def _preference_here(reply: str, pattern: str, verdict: str) -> Preference:
    return read_preference(reply, configured_pattern(pattern), verdict)


@pytest.mark.parametrize(
    ("job", "kind", "here", "arguments"),
    [
        ("mark", Mark, partial(read_mark, configured=True), {"scale": "yes/no"}),
        ("mark", Mark, partial(read_mark, configured=True), {"scale": (0.0, 10.0)}),
        ("mark", Mark, partial(read_mark, configured=True), {"scale": None}),
        ("preference", Preference, _preference_here, {"verdict": "letter"}),
        ("preference", Preference, _preference_here, {"verdict": "number"}),
    ],
)
@pytest.mark.parametrize("reply", ["v: yes", "v: 4", "v: 0.5", "v: A", "v: 1 v: 2", "nothing", "v: 99"])
async def test_a_judges_reply_is_read_as_in_this_process(
    reply: str, job: str, kind: Any, here: Any, arguments: dict[str, Any]
) -> None:
    pattern = r"v: (?=\S)(\S+)"  # looks ahead, which only `re` can
    try:
        wanted = here(reply, pattern, **arguments)
    except ValueError as problem:
        with pytest.raises(ValueError, match=f"^{re.escape(str(problem))}$"):
            await matched(job, kind, reply=reply, pattern=pattern, **arguments)
        return
    assert await matched(job, kind, reply=reply, pattern=pattern, **arguments) == wanted


async def test_a_process_serves_many_replies_and_one_that_has_ended_is_replaced() -> None:
    async def served() -> int:
        assert (await regex_judge("1", "1", {"pattern": r"\d"})).correct
        return pattern_processes._idle[-1].served

    first = await served()
    assert await served() == first + 1
    for worker in pattern_processes._idle:
        worker.child._socket.shutdown(socket.SHUT_WR)  # its questions are over: it ends
        while await asyncio.get_running_loop().sock_recv(worker.child._socket, 1):
            pass
    assert await served() == 1
