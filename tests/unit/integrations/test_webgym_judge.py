"""WebGym's judge: what is read in its verdicts, over recorded screenshots, and that nothing passes in silence."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.image_env import picture
from tests.support.judged_runs import gradings, values
from tests.support.model_server import ModelServer
from tests.support.task_loading import resolved
from tests.support.webgym_data import row
from windrow import Env, Observation, Rollout, Score, Step
from windrow.cli.main import main
from windrow.envs import Episode
from windrow.errors import ExportError
from windrow.integrations.webgym.report import report
from windrow.integrations.webgym.scorer import views_of
from windrow.records import Message, Task
from windrow.tools import ToolResult

pytestmark = pytest.mark.slow

SCREENS = 4
ROW = {
    "id": "one",
    "question": "Which town has the tallest tower, and how tall is it?",
    "facts": ["The town is Ulm.", "The tower is 161 metres tall."],
    "definite_answer": "Ulm, 161 m",
}
YES, NO = "It is so. <score>yes</score>", "It is not. <score>no</score>"


class Watched(Env):
    """Shows a screen after each reply; the last reply is the answer, unless it is "…"."""

    version = 1

    async def reset(self, task: Task) -> Observation:
        self._shown = 0
        return Observation([await self._screen()])

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        if self._shown == SCREENS:
            return Step(done=True, state={"answer": None if reply.text == "…" else reply.text})
        return Step(messages=[await self._screen()])

    async def _screen(self) -> dict[str, Any]:
        self._shown += 1
        image = await self.ctx.blobs.image(picture(self._shown), "image/png", 8, 6)
        return {"role": "user", "content": [{"type": "text", "text": f"screen {self._shown}"}, image]}


class Asked(NamedTuple):
    text: str
    images: int

    @property
    def kind(self) -> str:
        """Which of the questions it is."""
        words = {
            "robots": "wall",
            "bears on": "matters",
            "claims": "grounded",
            '"fact"': "fact",
            '"reference"': "reference",
        }
        return next(kind for word, kind in words.items() if word in self.text)


Judge = Callable[[Asked], str]


def passing(asked: Asked) -> str:
    return NO if asked.kind == "wall" else YES


def but(**answers: str) -> Judge:
    """A judge that lets everything pass but for these kinds of questions."""
    return lambda asked: answers.get(asked.kind, passing(asked))


async def judged(
    run: Path,
    judge: Judge = passing,
    reply: str = "Ulm, with 161 m.",
    row: dict[str, Any] = ROW,
    env: str = "tests.unit.integrations.test_webgym_judge:Watched",
    **settings: Any,
) -> tuple[Rollout, list[Asked]]:
    """The rollout of a run, and what its judge was asked."""
    heard: list[Asked] = []

    def answer(body: dict[str, Any], n: int) -> str:
        parts = body["messages"][0]["content"]
        text = "".join(part.get("text", "") for part in parts)
        heard.append(Asked(text, sum(part["type"] == "image_url" for part in parts)))
        return judge(heard[-1])

    with ModelServer(answer) as server:
        config = run.parent / "run.yaml"
        tree = {
            "scorers": [{"name": "webgym", "settings": settings}],
            "judge": {"model": "stub", "base_url": server.url, "backoff_s": 0, "call_retries": 0},
        }
        config.write_text(json.dumps(tree))
        await collected([row], policy=answering(reply), env=env, out=str(run), config=config)
    [rollout] = windrow.load(run)
    return rollout, heard


def left_of(rows: list[dict[str, Any]], blocklist: Path) -> list[Task]:
    """The rows that a block list leaves for training."""
    left = resolved(rows, env="prompt", split="train", blocklist=str(blocklist))
    return [left.tasks.task(n) for n in range(len(left.tasks))]


async def test_a_grounded_answer_with_all_its_facts_is_worth_one(tmp_path: Path) -> None:
    rollout, heard = await judged(tmp_path / "run")
    assert (rollout.grade, rollout.reward) == ("graded", 1.0)
    assert values(rollout) == {
        "webgym": 1.0,
        "webgym.blocked": 0.0,
        "webgym.grounded": 1.0,
        "webgym.facts": 1.0,
        "webgym.reference": 1.0,
    }
    assert sorted((asked.kind, asked.images) for asked in heard) == [
        ("fact", 4),
        ("fact", 4),
        ("grounded", 4),
        ("matters", 1),
        ("matters", 1),
        ("matters", 1),
        ("reference", 0),
        ("wall", 4),
    ]


@pytest.mark.parametrize("kind", ["grounded", "fact", "reference"])
async def test_one_criterion_that_is_not_met_is_a_zero_with_its_parts(tmp_path: Path, kind: str) -> None:
    rollout, _ = await judged(tmp_path / "run", but(**{kind: NO}))
    assert rollout.reward == 0.0
    part = {"grounded": "webgym.grounded", "fact": "webgym.facts", "reference": "webgym.reference"}[kind]
    assert [name for name, value in values(rollout).items() if not value] == [
        "webgym",
        "webgym.blocked",
        part,
    ]


async def test_each_fact_has_a_verdict_of_its_own(tmp_path: Path) -> None:
    rollout, _ = await judged(
        tmp_path / "run",
        lambda asked: NO if asked.kind == "fact" and "fact\nThe town" in asked.text else passing(asked),
    )
    assert rollout.reward == 0.0
    facts = rollout.scores["webgym.facts"]
    assert (facts.value, [fact["met"] for fact in facts.evidence]) == (0.5, [False, True])


async def test_without_an_answer_it_is_a_zero_and_the_wall_is_asked_about_all_the_same(
    tmp_path: Path,
) -> None:
    rollout, heard = await judged(tmp_path / "run", reply="…")
    assert (rollout.reward, values(rollout)) == (0.0, {"webgym": 0.0, "webgym.blocked": 0.0})
    assert [asked.kind for asked in heard] == ["wall"]


async def test_an_empty_answer_claims_nothing_and_the_facts_decide(tmp_path: Path) -> None:
    rollout, heard = await judged(tmp_path / "run", reply=" ", row={**ROW, "definite_answer": None})
    assert rollout.reward == 1.0
    assert "grounded" not in {asked.kind for asked in heard}
    rollout, heard = await judged(tmp_path / "other", reply=" ")
    assert (rollout.reward, values(rollout)["webgym.reference"]) == (0.0, 0.0)
    assert "reference" not in {asked.kind for asked in heard}


@pytest.mark.parametrize("reply", ["Ulm, with 161 m.", "…"])
async def test_an_episode_that_a_judge_calls_blocked_has_no_reward_and_is_counted_and_listed(
    tmp_path: Path, reply: str
) -> None:
    run, blocklist = tmp_path / "run", tmp_path / "blocklist.jsonl"
    started = time.time()
    rollout, heard = await judged(
        run, but(wall=YES), reply=reply, row=row(7, id="seven"), blocklist=str(blocklist)
    )
    assert (rollout.reward, rollout.grade, values(rollout)) == (None, "none", {"webgym.blocked": 1.0})
    assert {asked.kind for asked in heard} <= {"wall", "matters"}
    measured = report(run).measured
    assert (measured.webgym.blocked_rate, measured.honest.outcomes) == (1.0, {"blocked": 1})
    windrow.export(run, to="webgym", out=tmp_path / "t.jsonl")
    last = json.loads((tmp_path / "t.jsonl").read_text())[-1]["reward"]
    assert (last["reward"], last["is_blocked"]) == (None, True)
    with pytest.raises(ExportError, match="1 not graded"):
        windrow.export(run, to="sft", out=tmp_path / "sft.jsonl", min_reward=0.0)
    [line] = map(json.loads, blocklist.read_text().splitlines())
    assert (line["domain"], line["url"], line["task_id"]) == ("shop7.example", "https://shop7.example", 7)
    assert Path(line["screenshot_path"]).read_bytes() == picture(SCREENS)
    assert started - 1 <= datetime.fromisoformat(line["blocked_at"]).timestamp() <= time.time()
    assert [row["task_id"] for row in left_of([row(7), row(8)], blocklist)] == [8]


def test_a_blocked_episode_that_is_judged_again_is_listed_once_and_stays_without_a_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(judged(Path("run"), but(wall=YES), row=row(7), blocklist="blocklist.jsonl"))
    with ModelServer(lambda body, n: YES) as server:
        again = ["--scorer", "webgym", "--judge", "other", "--judge-base-url", server.url]
        Path("b.yaml").write_text("scorers: [{name: webgym, settings: {blocklist: blocklist.jsonl}}]")
        assert main(["rescore", "run", *again[2:], "--config", "b.yaml", "--quiet"]) == 0
    [rollout] = windrow.load("run")
    assert (rollout.reward, rollout.grade) == (None, "none")
    assert len(Path("blocklist.jsonl").read_text().splitlines()) == 1


class Walled(Watched):
    """Ends at a wall, as the environment says, after a step that was rewarded."""

    async def step(self, reply: Message, results: list[ToolResult]) -> Step:
        wall = {"kind": "refused", "url": "https://shop7.example", "why": "HTTP 403"}
        return Step(done=True, reward=0.5, state={"answer": reply.text, "blocked": wall})

    async def score(self, episode: Episode) -> Score:
        return Score({"blocked": (1.0, 0.0)}, withholds=True)


async def test_where_the_environment_saw_a_wall_no_judge_is_asked_and_no_scorer_gives_a_reward(
    tmp_path: Path,
) -> None:
    env = "tests.unit.integrations.test_webgym_judge:Walled"
    rollout, heard = await judged(tmp_path / "run", passing, row=row(7), env=env)
    assert (rollout.reward, rollout.grade, heard) == (None, "none", [])
    plain = {**row(7), "answer": "x"}
    await collected([plain], policy=answering("x"), env=env, out=str(tmp_path / "e"), scorers=["exact"])
    [rollout] = windrow.load(tmp_path / "e")
    assert (rollout.reward, rollout.grade, values(rollout)["exact"]) == (None, "none", 1.0)
    assert report(tmp_path / "e").measured.webgym.blocked_rate == 1.0


async def test_screens_that_do_not_matter_are_left_out_but_never_the_last(tmp_path: Path) -> None:
    rollout, heard = await judged(tmp_path / "run", but(matters=NO))
    assert rollout.scores["webgym"].evidence["screenshots"] == [4]
    assert {asked.images for asked in heard if asked.kind in ("fact", "grounded")} == {1}


async def test_the_last_screens_are_shown_where_there_are_too_many(tmp_path: Path) -> None:
    rollout, heard = await judged(tmp_path / "run", choose=False, screenshots=2, wall_screenshots=3)
    assert rollout.scores["webgym"].evidence["screenshots"] == [3, 4]
    assert {(asked.kind, asked.images) for asked in heard} >= {("wall", 3), ("grounded", 2)}
    assert "matters" not in {asked.kind for asked in heard}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        *(
            ("fact", said)
            for said in ("Not success", "<score>", "<score>maybe</score>", f"{YES} {NO}", "Verdict: success")
        ),
        *((kind, "") for kind in ("grounded", "fact", "reference", "wall", "matters")),
    ],
)
async def test_what_is_no_verdict_is_neither_a_pass_nor_a_zero(tmp_path: Path, kind: str, said: str) -> None:
    rollout, _ = await judged(tmp_path / "run", but(**{kind: said}))
    assert (rollout.grade, rollout.reward, rollout.status) == ("failed", None, "completed")
    assert gradings(tmp_path / "run")[0].error is not None


def test_a_run_is_judged_again_without_its_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rollout, _ = asyncio.run(judged(Path("run"), but(grounded="")))
    assert rollout.grade == "failed"
    with ModelServer(lambda body, n: NO if "robots" in str(body) else YES) as server:
        again = [
            "rescore",
            "run",
            "--scorer",
            "webgym",
            "--judge",
            "stub",
            "--judge-base-url",
            server.url,
            "--failed-only",
        ]
        assert main(again) == 0
        asked = server.completions
    [after] = windrow.load("run")
    assert (after.grade, after.reward) == ("graded", 1.0)
    assert after.messages == rollout.messages
    assert asked == 1, "what was answered before is not asked again"


def test_the_same_screen_twice_in_a_row_is_one_view_and_text_stands_in_for_screens() -> None:
    def seen(*blobs: str) -> list[Message]:
        return [
            Message(role="user", content=[{"blob": blob, "media_type": "image/png"}], origin="env")
            for blob in blobs
        ]

    assert [view.parts[0]["blob"] for view in views_of(seen("a", "a", "b", "a"))] == ["a", "b", "a"]
    pages = [Message(role="user", content=text, origin="env") for text in ("page 1", "page 2")]
    said = Message(role="assistant", content="click 1", origin="policy")
    assert [view.parts[0]["text"] for view in views_of([pages[0], said, pages[1]])] == ["page 1", "page 2"]


def test_what_the_agent_was_told_of_its_own_words_is_nothing_that_it_saw() -> None:
    told = (
        "Your task: find the tower.",
        "Page: Towers\nURL: http://x/\n\nUlm",
        "Nothing was done: 'It is 161 m tall.' is not an action.",
        "Typed '161 m' into [1] textbox.\n\nPage: Found\nURL: http://x/\n\nnothing",
    )
    messages = [Message(role="user", content=text, origin="env") for text in told]
    assert [view.parts[0]["text"] for view in views_of(messages)] == [
        "Page: Towers\nURL: http://x/\n\nUlm",
        "Page: Found\nURL: http://x/\n\nnothing",
    ]
