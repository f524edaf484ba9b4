"""`isolate: true`: a user's scorer judges in fresh, confined processes, and says there what it would say here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import isolated_functions
from tests.support.collect_helpers import answering, collected
from tests.support.task_loading import refusal, resolved
from windrow import Rollout

MODULE = "tests.support.isolated_functions"


def scorer(name: str, **fields: Any) -> str:
    return f"scorers={json.dumps([{'name': f'{MODULE}:{name}', **fields}])}"


async def judged(replies: list[str], out: Path, *sets: str, **options: Any) -> dict[str, Rollout]:
    rows = [{"prompt": reply} for reply in replies]
    options = {"retries": 0, "out": str(out), "sets": sets, **options}
    echo = answering(lambda request: request.messages[-1].text)
    return {rollout.task["prompt"]: rollout for rollout in await collected(rows, policy=echo, **options)}


@pytest.mark.parametrize("name", ["evaluates", "slowly", "together", "rewards"])
async def test_the_verdict_and_the_fingerprint_are_those_of_the_runs_own_process(
    tmp_path: Path, name: str
) -> None:
    replies = ["1", "2 + 3", "0.5"]
    here = await judged(replies, tmp_path / "here", scorer(name))
    there = await judged(replies, tmp_path / "there", scorer(name, isolate=True))
    assert [there[reply].scores for reply in replies] == [here[reply].scores for reply in replies]
    assert [there[reply].metrics.get("m") for reply in replies] == [
        here[reply].metrics.get("m") for reply in replies
    ]
    assert {rollout.grade for rollout in there.values()} == {"graded"}
    prints = [
        resolved([{"prompt": "1"}], sets=(scorer(name, isolate=isolate),)).run_scorers.fingerprint
        for isolate in (False, True)
    ]
    assert prints[0] == prints[1]


async def test_settings_reach_the_function(tmp_path: Path) -> None:
    found = await judged(["2"], tmp_path / "run", scorer("evaluates", isolate=True, settings={"times": 3.0}))
    assert found["2"].reward == 6.0


async def test_a_reply_changes_no_verdict_but_its_own_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_KEY", "tweet")
    patches = f"__import__('sys').modules[{MODULE!r}].__dict__.update(eval=lambda _: 1) or 7"
    attacks = [
        f"__import__('os').system('touch {tmp_path}/system')",
        f"open('{tmp_path}/open', 'w') and 1",
        "len(__import__('os').environ['CANARY_KEY'])",
        "__import__('os').kill(__import__('os').getppid(), 9)",
    ]
    found = await judged(
        [patches, *attacks, "0"], tmp_path / "run", scorer("evaluates", isolate=True), concurrency=1
    )
    assert (found[patches].reward, found["0"].reward) == (7.0, 0.0)
    assert [found[attack].reward for attack in attacks] == [
        32512.0,
        None,
        None,
        None,
    ]  # the shell was not found
    assert [str(found[attack].error and found[attack].error.kind) for attack in attacks[1:]] == [
        "PermissionError",
        "KeyError",
        "PermissionError",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


async def test_a_reply_that_ends_its_process_fails_its_grading_and_says_how(tmp_path: Path) -> None:
    found = await judged(
        ["__import__('os')._exit(3)", "1"], tmp_path / "run", scorer("evaluates", isolate=True)
    )
    failed = found["__import__('os')._exit(3)"]
    assert (failed.grade, failed.reward, found["1"].reward) == ("failed", None, 1.0)
    assert failed.error is not None
    assert "its process ended with 3 and gave no answer" in failed.error.message


async def test_it_may_write_in_a_directory_of_its_own(tmp_path: Path) -> None:
    code = "__import__('tempfile').TemporaryFile().write(b'abc')"
    assert (await judged([code], tmp_path / "run", scorer("evaluates", isolate=True)))[code].reward == 3.0


async def test_a_function_can_ask_for_it_by_itself(tmp_path: Path) -> None:
    found = await judged(["1"], tmp_path / "run", scorers=[isolated_functions.by_itself])
    assert found["1"].reward not in (None, float(os.getppid()), float(os.getpid()))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"name": "math", "isolate": True}, "scorer 'math': 'isolate' is for functions of your own"),
        ({"name": "rubric", "isolate": True}, "scorer 'rubric': 'isolate' is for functions of your own"),
        (
            {"name": f"{MODULE}:asks", "isolate": True},
            "asks a judge (`ctx`), which an isolated one cannot reach",
        ),
    ],
)
def test_what_cannot_be_isolated_is_refused(entry: dict[str, Any], said: str) -> None:
    assert said in refusal([{"prompt": "?", "answer": "1"}], sets=(f"scorers={json.dumps([entry])}",))


async def test_a_function_that_no_other_process_can_import_is_refused(tmp_path: Path) -> None:
    def local(task: Any, reply: str) -> float:
        return 1.0

    local.isolate = True  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="another process cannot import it: define it at the top of a module"):
        await judged(["1"], tmp_path / "run", scorers=[local])
