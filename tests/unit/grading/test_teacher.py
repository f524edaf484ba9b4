"""`--scorer teacher`: the same ids under another model, stored beside; nothing is graded, and nothing fails in silence."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest

import windrow
from tests.support.collect_helpers import answering, collected, lines
from tests.support.exact_token_policy import ExactPolicy, Likelies, chatml, numbers
from tests.support.judged_runs import gradings
from tests.support.raw_server import WireServer, wire
from tests.support.scripted_envs import world
from tests.support.token_server import TokenServer, given_logprob
from windrow import Rollout
from windrow.collecting.replay import replay
from windrow.errors import UsageError
from windrow.grading.rescoring import rescore
from windrow.records import TeacherTokens, Tokens
from windrow.util.token_contexts import prompt_ids

pytestmark = pytest.mark.slow

ROW = {"prompt": "hi", "answer": "hm"}
STUDENT = -0.5  # the logprob of every id that the exact policy samples


def settings(server: WireServer, **changes: Any) -> dict[str, Any]:
    teacher = {"model": "stub", "base_url": server.url, "dialect": "llamacpp-completion", "call_retries": 0}
    return {"name": "teacher", "settings": {"policy": {**teacher, "backoff_s": 0, **changes}}}


async def taught(run: Path, server: WireServer, **options: Any) -> list[Rollout]:
    """The rollouts of a run whose replies a teacher scores, as they are read back."""
    scorer = options.pop("scorer", None) or settings(server)
    given = {"env": "prompt", "policy": ExactPolicy(lambda request: "hm"), "capture": "tokens", **options}
    await collected([ROW], out=str(run), config=configured(run, scorer), **given)
    return list(windrow.load(run))


def configured(run: Path, scorer: dict[str, Any]) -> Path:
    """A configuration with this scorer."""
    config = run.parent / "scorer.yaml"
    config.write_text(json.dumps({"scorers": [scorer]}))
    return config


def teacher_of(rollout: Rollout, turn: int = 0) -> TeacherTokens:
    tokens = tokens_of(rollout, turn)
    assert tokens.teacher is not None
    return tokens.teacher


def tokens_of(rollout: Rollout, turn: int = 0) -> Tokens:
    tokens = rollout.turns[turn].tokens
    assert tokens is not None
    return tokens


def floats(raw: bytes | None) -> list[float]:
    return array("f", raw or b"").tolist()


async def test_the_sampled_ids_are_scored_and_nothing_is_graded(tmp_path: Path) -> None:
    server = TokenServer([])
    async with wire(server) as listening:
        [rollout] = await taught(tmp_path / "run", listening)
    assert (rollout.stop, rollout.grade, rollout.reward, rollout.scores) == ("answered", "none", None, {})
    places = [given_logprob(len(chatml(rollout.messages[:1])) + n) for n in range(3)]
    assert (floats(teacher_of(rollout).logprobs), teacher_of(rollout).model) == (places, "stub")
    assert numbers(tokens_of(rollout).output) == [ord("h"), ord("m"), 2]
    mean = sum(places) / 3
    assert rollout.metrics == {
        "teacher_tokens": 3.0,
        "teacher_logprob": pytest.approx(mean),
        "teacher_kl": pytest.approx(STUDENT - mean),
    }
    assert server.forced[0]["prompt"] == chatml(rollout.messages[:1])


async def test_it_stands_in_the_gradings_line_and_never_in_the_rollouts(tmp_path: Path) -> None:
    async with wire(TokenServer([])) as listening:
        [rollout] = await taught(tmp_path / "run", listening)
    [line] = lines(tmp_path / "run")
    assert b"teacher" not in line
    assert json.loads(line)["grade"] == "pending"
    [grading] = gradings(tmp_path / "run")
    assert (grading.scores, grading.tokens) == (({},), ({0: teacher_of(rollout)},))
    assert grading.usage is not None
    assert grading.usage.completion_tokens == 3


async def test_every_turn_of_the_agent_is_scored_after_its_whole_prompt(tmp_path: Path) -> None:
    server = TokenServer([])
    async with wire(server) as listening:
        [rollout] = await taught(tmp_path / "run", listening, env=world([], turns=3))
    assert len(rollout.turns) == 3
    expected: list[float] = []
    for number in range(3):
        prompt = numbers(prompt_ids(rollout.turns, number))
        places = [given_logprob(len(prompt) + n) for n in range(3)]
        assert floats(teacher_of(rollout, number).logprobs) == places
        expected += places
    assert rollout.metrics["teacher_tokens"] == 9.0
    assert rollout.metrics["teacher_logprob"] == pytest.approx(sum(expected) / 9)


async def test_the_teachers_likeliest_tokens_are_kept_where_they_are_wanted(tmp_path: Path) -> None:
    async with wire(TokenServer([])) as listening:
        scorer = settings(listening)
        scorer["settings"]["top_logprobs"] = 2
        [rollout] = await taught(tmp_path / "run", listening, scorer=scorer)
    assert teacher_of(rollout).top["k"] == 2


async def test_a_teacher_that_does_not_tell_its_likeliest_tokens_fails_the_grading(tmp_path: Path) -> None:
    server = TokenServer([])
    server.untold = True
    async with wire(server) as listening:
        scorer = settings(listening)
        scorer["settings"]["top_logprobs"] = 2
        [rollout] = await taught(tmp_path / "run", listening, scorer=scorer)
    assert rollout.error is not None
    assert (rollout.grade, "did not tell its 2 likeliest tokens" in rollout.error.message) == ("failed", True)


async def test_beside_it_other_scorers_grade_as_ever(tmp_path: Path) -> None:
    async with wire(TokenServer([])) as listening:
        config = tmp_path / "both.yaml"
        config.write_text(json.dumps({"scorers": [{"name": "exact"}, settings(listening)]}))
        policy = ExactPolicy(lambda request: "hm")
        await collected([ROW], config=config, policy=policy, capture="tokens", out=str(tmp_path / "run"))
    [rollout] = windrow.load(tmp_path / "run")
    assert (rollout.env, rollout.grade, rollout.reward) == ("problem", "graded", 1.0)
    assert len(floats(teacher_of(rollout).logprobs)) == 3


async def test_the_runs_judge_is_the_teacher_where_none_is_named(tmp_path: Path) -> None:
    async with wire(TokenServer([])) as listening:
        [rollout] = await taught(
            tmp_path / "run",
            listening,
            scorers=["teacher"],
            judge="stub",
            judge_base_url=listening.url,
        )
    assert len(floats(teacher_of(rollout).logprobs)) == 3


@pytest.mark.parametrize("fault", ["down", "vocabulary"])
async def test_a_teacher_that_cannot_score_fails_the_grading_and_the_next_call_repeats_it(
    fault: str, tmp_path: Path
) -> None:
    server, policy = TokenServer([]), ExactPolicy(lambda request: "hm")
    async with wire(server) as listening:
        scorer = settings(listening, probe=False, max_outage_s=0)
        setattr(server, fault, True if fault == "down" else "xyz")
        [rollout] = await taught(tmp_path / "run", listening, scorer=scorer, policy=policy)
        assert (rollout.status, rollout.grade, rollout.reward) == ("completed", "failed", None)
        assert rollout.error is not None
        assert rollout.error.kind == ("http_503" if fault == "down" else "other_vocabulary")
        assert tokens_of(rollout).teacher is None
        setattr(server, fault, False if fault == "down" else None)
        [rollout] = await taught(tmp_path / "run", listening, scorer=scorer, policy=policy)
    assert (rollout.attempt, rollout.grade, rollout.error) == (1, "none", None)
    assert len(floats(teacher_of(rollout).logprobs)) == 3
    assert len(policy.prompts) == 1  # the rollout itself was not run again


async def test_rollouts_without_ids_fail_and_say_so_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await collected([ROW], env="prompt", policy=answering("hm"), out="run")
    server = TokenServer([])
    async with wire(server) as listening:
        for count in (1, 2):
            await rescore("run", scorers=["teacher"], judge="stub", judge_base_url=listening.url)
            found = gradings(Path("run"))
            assert [grading.error.kind for grading in found if grading.error] == ["no_tokens"] * count
    assert server.forced == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"capture": "logprobs"},
            "scorer 'teacher' needs the ids of what was sampled: give --capture tokens",
        ),
        ({"scorers": ["teacher"]}, "scorer 'teacher' asks a judge"),
        (
            {"scorers": ["teacher"], "judge": "scripted:script.yaml"},
            "scorer 'teacher': 'scripted:script.yaml' cannot be asked how likely given ids are",
        ),
        ({"dialect": "openai"}, "cannot be asked how likely given ids are"),
        ({"model": None}, "'policy' names no 'model'"),
        ({"modle": "m"}, "unknown field"),
    ],
    ids=["no ids", "no teacher", "a script", "a dialect", "no model", "a typo"],
)
async def test_what_cannot_work_is_refused_at_the_start(
    options: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.yaml").write_text("replies: [{reply: hm}]\n")
    own = {key: value for key, value in options.items() if key in ("dialect", "model", "modle")}
    rest = {key: value for key, value in options.items() if key not in own}
    server = WireServer(9)
    with pytest.raises(UsageError, match=said):
        await taught(tmp_path / "run", server, scorer=settings(server, **own), **rest)
    assert not (tmp_path / "run").exists()


async def test_where_a_teacher_is_served_is_no_part_of_the_grading(tmp_path: Path) -> None:
    for _ in range(2):
        server = TokenServer([])
        async with wire(server) as listening:
            await taught(tmp_path / "run", listening)
    assert server.forced == []  # the second call had nothing to do
    assert len(gradings(tmp_path / "run")) == 1


async def test_exports_have_the_teachers_logprobs_beside_the_students(tmp_path: Path) -> None:
    async with wire(TokenServer([])) as listening:
        [rollout] = await taught(tmp_path / "run", listening, env=world([], turns=2))
    windrow.export(tmp_path / "run", to="trl", out=tmp_path / "rows.jsonl")
    [row] = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    first, second = (floats(teacher_of(rollout, turn).logprobs) for turn in range(2))
    between = len(row["completion_ids"]) - 6
    assert row["teacher_logprobs"] == [*first, *[0.0] * between, *second]
    assert len(row["logprobs"]) == len(row["teacher_logprobs"])
    windrow.export(tmp_path / "run", to="parquet", out=tmp_path / "rows.parquet")
    [columns] = pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    start = len(columns["input_ids"][0]) - len(row["completion_ids"])
    assert columns["teacher_logprobs"] == [[0.0] * start + row["teacher_logprobs"]]


async def test_without_a_teacher_no_export_speaks_of_one(tmp_path: Path) -> None:
    policy = ExactPolicy(lambda request: "hm")
    await collected([ROW], env="prompt", policy=policy, capture="tokens", out=str(tmp_path / "run"))
    windrow.export(tmp_path / "run", to="trl", out=tmp_path / "rows.jsonl")
    assert "teacher_logprobs" not in json.loads((tmp_path / "rows.jsonl").read_text())
    windrow.export(tmp_path / "run", to="parquet", out=tmp_path / "rows.parquet")
    [columns] = pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert columns["teacher_logprobs"] is None


async def test_a_saved_run_is_scored_later_and_what_that_takes_is_counted(tmp_path: Path) -> None:
    policy = ExactPolicy(lambda request: "hm")
    await collected([ROW], env="prompt", policy=policy, capture="tokens", out=str(tmp_path / "run"))
    spent: list[int] = []
    async with wire(TokenServer([])) as listening:
        await rescore(
            tmp_path / "run",
            config=configured(tmp_path / "run", settings(listening)),
            on_progress=lambda progress: spent.append(progress.tokens),
        )
    [rollout] = windrow.load(tmp_path / "run")
    assert (rollout.grade, len(floats(teacher_of(rollout).logprobs))) == ("none", 3)
    [grading] = gradings(tmp_path / "run")
    assert grading.usage is not None
    assert spent[-1] == grading.usage.prompt_tokens + grading.usage.completion_tokens


async def test_a_run_with_a_teacher_and_likeliest_tokens_is_replayed_without_asking_anyone(
    tmp_path: Path,
) -> None:
    server = TokenServer([])
    async with wire(server) as listening:
        policy = Likelies(lambda request: "hm")
        [rollout] = await taught(tmp_path / "run", listening, policy=policy, top_logprobs=2)
        assert tokens_of(rollout).top["k"] == 2
        asked = len(server.forced)
        assert (await replay(tmp_path / "run", rollout)).differences == ()
    assert len(server.forced) == asked


async def test_a_policy_cannot_write_a_teachers_tokens_into_a_line(tmp_path: Path) -> None:
    class Boasting(ExactPolicy):
        async def complete(self, request: windrow.Request) -> windrow.Completion:
            completion = await super().complete(request)
            assert completion.tokens is not None
            teacher = TeacherTokens(logprobs=b"\0" * 12, model="itself")
            tokens = msgspec.structs.replace(completion.tokens, teacher=teacher)
            return msgspec.structs.replace(completion, tokens=tokens)

    policy = Boasting(lambda request: "hm")
    await collected([ROW], env="prompt", policy=policy, capture="tokens", out=str(tmp_path / "run"))
    [line] = lines(tmp_path / "run")
    assert b"teacher" not in line
