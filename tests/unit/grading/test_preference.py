"""Judging a group together: pairs, the best of n, a whole group in one call. Every verdict is the right member's."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.judged_runs import asked, by_sample, grade_group, gradings, group_of, judged, member
from tests.support.model_server import ModelServer
from windrow.config import ScorerConfig
from windrow.envs.scoring import GroupScorer
from windrow.errors import UsageError
from windrow.grading.pairings import Swiss, chunks
from windrow.grading.scorers import make_scorer
from windrow.policies.base import Request
from windrow.records import Grading, RecordedScore, Turn

WORTH = re.compile(r"worth (-?\d+)")


def strength(shown: str) -> int:
    """What the last number in a reply says that it is worth."""
    return int(WORTH.findall(shown)[-1])


def replies(request: Request) -> tuple[str, str]:
    """What stands under A and under B in a question about two."""
    shown = request.messages[0].text
    a, _, rest = shown.partition("reply A")[2].partition(": reply B")
    return a, rest


def fair(request: Request) -> str:
    a, b = map(strength, replies(request))
    return f"<verdict>{'tie' if a == b else 'A' if a > b else 'B'}</verdict>"


def group(*strengths: int, **changes: Any) -> Any:
    return group_of(*(member(n, f"A row, worth {worth}.", **changes) for n, worth in enumerate(strengths)))


async def test_each_member_has_its_wins_less_its_losses_over_its_matches() -> None:
    found = group(3, 1, 2, 2)
    grading = await grade_group(found, "preference", judge=fair)
    assert by_sample(found, grading, "preference") == {0: 1.0, 1: -1.0, 2: 0.0, 3: 0.0}
    assert len(grading.judgements) == 12  # six pairs, each in both orders
    assert grading.metrics[0] == {"preference.matches": 3.0, "preference.disagreement": 0.0}


async def test_every_matchup_is_evidence_with_who_met_whom_in_which_order() -> None:
    found = group(3, 1, 2)
    grading = await grade_group(found, "preference", judge=fair)
    abouts = {judgement.about for judgement in grading.judgements}
    pairs = ["sample 0 vs sample 1", "sample 0 vs sample 2", "sample 1 vs sample 2"]
    assert abouts == {f"{pair}, order {order}" for pair in pairs for order in ("ab", "ba")}
    assert all("verdict" in judgement.reply and judgement.usage for judgement in grading.judgements)
    [lost, won] = grading.scores[2]["preference"].evidence["matches"]
    assert lost == {
        "against": list(found.rollouts[0].key),
        "sample": 0,
        "shown_first": False,
        "margin": -1.0,
        "said": {"ab": "A", "ba": "B"},
    }
    assert (won["sample"], won["margin"], won["said"]) == (1, 1.0, {"ab": "B", "ba": "A"})


@pytest.mark.parametrize("scorer", ["preference", "relative", "best-of-n"])
async def test_rewards_land_on_the_right_rollout_in_whatever_order_they_were_finished_and_with_one_missing(
    scorer: str,
) -> None:
    turns = ["Let me think, worth 9.", "Go on.", "Nearly, worth 0.", "And?"]
    whole = [
        member(n, f"Done, worth {worth}.", *turns, scores=_score("rubric", worth))
        for n, worth in enumerate((5, 1, 4, 2))
    ]
    settings = {"by": "rubric"} if scorer == "best-of-n" else {}
    judge = {"preference": fair, "relative": scoring}.get(scorer)
    seen: set[str] = set()
    for order in itertools.permutations((0, 1, 3)):  # sample 2 is missing
        found = group_of(*(whole[n] for n in order))
        grading = await grade_group(found, scorer, settings, judge)
        assert grading.members == tuple(rollout.key for rollout in found.rollouts)
        seen.add(json.dumps(by_sample(found, grading, scorer), sort_keys=True))
    expected = {
        "preference": {0: 1.0, 1: -1.0, 3: 0.0},
        "relative": {0: 0.5, 1: 0.1, 3: 0.2},
        "best-of-n": {0: 1.0, 1: 0.0, 3: 0.0},
    }
    assert seen == {json.dumps(expected[scorer], sort_keys=True)}


async def test_verdicts_go_by_the_pair_also_when_the_judge_answers_in_any_order() -> None:
    """The calls of a group run side by side, and are answered as it comes."""
    waiting: list[asyncio.Event] = []
    rng = random.Random(7)

    async def slow(request: Request) -> str:
        mine = asyncio.Event()
        waiting.append(mine)
        if len(waiting) == 20:  # all of them are under way: five members, ten pairs, both orders
            rng.shuffle(waiting)
            for event in waiting:
                event.set()
        await mine.wait()
        return fair(request)

    found = group(5, 1, 4, 2, 3)
    grading = await asyncio.wait_for(grade_group(found, "preference", judge=slow), 60)
    assert by_sample(found, grading, "preference") == {0: 1.0, 1: -1.0, 2: 0.5, 3: -0.5, 4: 0.0}


async def test_a_judge_that_prefers_what_stands_first_prefers_nobody() -> None:
    found = group(3, 1)
    grading = await grade_group(found, "preference", judge=lambda request: "<verdict>A</verdict>")
    assert by_sample(found, grading, "preference") == {0: 0.0, 1: 0.0}
    assert [metrics["preference.disagreement"] for metrics in grading.metrics] == [1.0, 1.0]
    once = await grade_group(
        found, "preference", {"both_orders": False}, judge=lambda request: "<verdict>A</verdict>"
    )
    assert by_sample(found, once, "preference") == {0: 1.0, 1: -1.0}
    assert len(once.judgements) == 1


async def test_a_win_in_one_order_and_a_tie_in_the_other_is_a_tie() -> None:
    def timid(request: Request) -> str:
        a, b = map(strength, replies(request))
        return f"<verdict>{'A' if a > b else 'tie'}</verdict>"

    found = group(3, 1)
    grading = await grade_group(found, "preference", judge=timid)
    assert by_sample(found, grading, "preference") == {0: 0.0, 1: 0.0}


async def test_verdicts_as_numbers_say_by_how_much_the_second_is_better() -> None:
    def by_how_much(request: Request) -> str:
        a, b = map(strength, replies(request))
        return f"<verdict>{(b - a) / 10}</verdict>"

    found = group(5, 1, 3)
    grading = await grade_group(found, "preference", {"verdict": "number"}, judge=by_how_much)
    values = by_sample(found, grading, "preference")
    assert values == {0: pytest.approx(0.3), 1: pytest.approx(-0.3), 2: pytest.approx(0.0)}


@pytest.mark.parametrize("answer", ["", "A", "<verdict>C</verdict>", "<verdict>A or B</verdict>", "Not A"])
async def test_a_verdict_that_cannot_be_read_fails_the_whole_group_and_nobody_is_given_0(answer: str) -> None:
    broken = lambda request: answer if "worth 3" in replies(request)[0] else fair(request)  # noqa: E731
    grading = await grade_group(group(3, 1, 2), "preference", judge=broken)
    assert grading.error is not None
    assert grading.error.kind == "unreadable_judgement"
    assert not any(grading.scores)


@pytest.mark.parametrize("scorer", ["preference", "relative"])
async def test_a_group_of_one_has_nobody_to_be_compared_with(scorer: str) -> None:
    found = group(3)
    grading = await grade_group(found, scorer, judge=lambda request: "x")
    assert (by_sample(found, grading, scorer), grading.judgements) == ({0: None}, ())


async def test_a_member_that_failed_is_compared_with_nobody() -> None:
    found = group_of(member(0, "worth 2"), member(1, "", status="failed", stop="error"), member(2, "worth 1"))
    grading = await grade_group(found, "preference", judge=fair)
    assert by_sample(found, grading, "preference") == {0: 1.0, 1: None, 2: -1.0}


# -- who meets whom


def met(grading: Grading) -> set[tuple[int, int]]:
    found = [re.findall(r"sample (\d+)", str(judgement.about)) for judgement in grading.judgements]
    return {(int(a), int(b)) for a, b in found}


async def test_in_a_ring_each_meets_its_two_neighbours() -> None:
    grading = await grade_group(group(1, 2, 3, 4, 5), "preference", {"pairs": "ring"}, judge=fair)
    assert met(grading) == {(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)}
    two = await grade_group(group(1, 2), "preference", {"pairs": "ring"}, judge=fair)
    assert (met(two), len(two.judgements)) == ({(0, 1)}, 2)


async def test_in_chunks_only_neighbours_meet_and_nobody_is_left_alone() -> None:
    grading = await grade_group(group(*range(9)), "preference", {"chunk": 4}, judge=fair)
    first, second = range(4), range(4, 9)
    assert met(grading) == {*itertools.combinations(first, 2), *itertools.combinations(second, 2)}
    assert [len(chunk) for chunk in chunks(8, 4)] == [4, 4]


async def test_a_swiss_tournament_pairs_those_of_like_standing_and_the_same_way_each_time() -> None:
    found = group(*range(8))
    settings = {"pairs": "swiss"}
    grading = await grade_group(found, "preference", settings, judge=fair)
    values = by_sample(found, grading, "preference")
    assert len(grading.judgements) == 2 * 3 * 4  # three rounds of four matches
    assert (values[7], values[0]) == (1.0, -1.0)
    shuffled = group_of(*reversed(found.rollouts))
    again = await grade_group(shuffled, "preference", settings, judge=fair)
    assert (met(again), by_sample(shuffled, again, "preference")) == (met(grading), values)
    other = group(*range(8), name="another")
    assert met(await grade_group(other, "preference", settings, judge=fair)) != met(grading)


@pytest.mark.parametrize("count", range(2, 18))
def test_in_a_swiss_tournament_nobody_meets_the_same_twice_and_everybody_plays(count: int) -> None:
    rng = random.Random(count)
    for rounds in (None, 1, 3, 50):
        swiss = Swiss(range(count), rounds=rounds, seed=count)
        standing = [0.0] * count
        pairs: list[tuple[int, int]] = []
        while found := swiss.next_round(standing):
            assert len({member for pair in found for member in pair}) == 2 * len(found) == count - count % 2
            pairs += found
            for a, b in found:
                won = rng.choice((-1, 0, 1))
                standing[a] += won
                standing[b] -= won
        assert len(set(pairs)) == len(pairs)
        assert {member for pair in pairs for member in pair} == set(range(count))


# -- the best of n


def _score(name: str, value: float, weight: float = 1.0) -> dict[str, RecordedScore]:
    return {name: RecordedScore(value=value, weight=weight, scorer=name)}


async def test_the_best_by_a_score_has_1_and_of_equals_the_lowest_sample_which_is_said() -> None:
    found = group_of(
        *(member(n, "x", scores=_score("rubric", value)) for n, value in enumerate((0.1, 0.9, 0.9)))
    )
    grading = await grade_group(found, "best-of-n", {"by": "rubric"})
    assert by_sample(found, grading, "best-of-n") == {0: 0.0, 1: 1.0, 2: 0.0}
    assert [scores["best-of-n"].evidence for scores in grading.scores] == [
        {"by": "rubric", "value": 0.1, "best": 0.9},
        {"by": "rubric", "value": 0.9, "best": 0.9, "tie": [1, 2]},
        {"by": "rubric", "value": 0.9, "best": 0.9, "tie": [1, 2]},
    ]


async def test_without_a_name_the_reward_so_far_decides_without_its_own_earlier_verdict(
    step_turn: Turn,
) -> None:
    own = _score("best-of-n", 100.0)
    scores = [{**_score("a", 1.0, 0.5), **own}, {**_score("a", 0.2), **_score("b", 0.2)}, _score("a", 0.0)]
    found = group_of(
        *(member(n, "x", scores=given, turns=(step_turn,) * (n == 2)) for n, given in enumerate(scores))
    )
    grading = await grade_group(found, "best-of-n")
    assert by_sample(found, grading, "best-of-n") == {0: 0.0, 1: 0.0, 2: 1.0}  # 0.5, 0.4, 0.75 from its step
    assert grading.scores[2]["best-of-n"].evidence["value"] == 0.75


@pytest.fixture
def step_turn() -> Turn:
    return Turn(
        role="agent",
        reads=(),
        writes=None,
        tokens=None,
        finish=None,
        usage=None,
        versions=(),
        started_at=0.0,
        first_token_s=None,
        seconds=0.0,
        retries=0,
        tool_calls=(),
        tools_seconds=0.0,
        reward=0.75,
    )


async def test_where_a_member_lacks_the_score_nobody_is_the_best() -> None:
    found = group_of(member(0, "x", scores=_score("rubric", 1.0)), member(1, "y"))
    for settings in ({"by": "rubric"}, {}):
        grading = await grade_group(found, "best-of-n", settings)
        assert grading.error is not None
        assert "sample 1 has no score" in grading.error.message
        assert not any(grading.scores)


# -- a whole group in one call


def labelled(request: Request) -> dict[str, str]:
    shown = request.messages[0].text
    found = re.findall(r": reply (\w+)(?:, \w+)?\n(.*?)(?=\n--- )", shown, re.S)
    return dict(found)  # the last of several turns


def scoring(request: Request) -> str:
    return json.dumps({label: strength(text) for label, text in labelled(request).items()})


async def test_one_call_scores_the_whole_group_under_labels_that_say_nothing_of_the_sample() -> None:
    found = group(5, 1, 4, 2, 3)
    grading = await grade_group(found, "relative", judge=scoring)
    assert by_sample(found, grading, "relative") == {0: 0.5, 1: 0.1, 2: 0.4, 3: 0.2, 4: 0.3}
    assert len(grading.judgements) == 1
    labels = [scores["relative"].evidence["label"] for scores in grading.scores]
    assert sorted(labels) == ["A", "B", "C", "D", "E"]
    assert labels != sorted(labels)
    again = await grade_group(group_of(*reversed(found.rollouts)), "relative", judge=scoring)
    assert [scores["relative"].evidence["label"] for scores in reversed(again.scores)] == labels


def _changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Request], str]:
    return lambda request: json.dumps(change(json.loads(scoring(request))))


@pytest.mark.parametrize(
    "judge",
    [
        _changed(lambda said: {key: said[key] for key in list(said)[1:]}),
        _changed(lambda said: {**said, "Z": 1}),
        _changed(lambda said: {**said, "A": 11}),
        _changed(lambda said: {**said, "A": None}),
        _changed(lambda said: list(said.values())),
        lambda request: scoring(request)[:-1] + ', "A": 3}',
        lambda request: "They are all good.",
        lambda request: "",
    ],
    ids=["one missing", "one more", "off the scale", "null", "a list", "one twice", "words", "nothing"],
)
async def test_scores_that_are_not_each_there_exactly_once_fail_the_group(judge: Any) -> None:
    grading = await grade_group(group(5, 1, 4), "relative", judge=judge)
    assert grading.error is not None
    assert (grading.error.kind, any(grading.scores)) == ("unreadable_judgement", False)
    assert len(grading.judgements) == 3


# -- what is shown, and what is refused


async def test_of_several_turns_all_is_shown_or_the_last_reply_and_never_what_was_thought() -> None:
    members = [member(n, f"LAST worth {n}", f"FIRST{n}", f"SEEN{n}") for n in range(2)]
    prompts: dict[str, str] = {}

    def judge(request: Request) -> str:
        prompts[shows] = request.messages[0].text
        return "<verdict>tie</verdict>"

    for shows in ("transcript", "reply"):
        await grade_group(group_of(*members), "preference", {"shows": shows}, judge=judge)
    assert all(
        text in prompts["transcript"] for text in ("FIRST0", "SEEN0", "FIRST1", "SEEN1", "LAST worth 1")
    )
    assert "FIRST" not in prompts["reply"]
    assert "SEEN" not in prompts["reply"]
    assert prompts["reply"].count("What is a windrow?") == 1


async def test_a_prompt_of_your_own_has_both_replies() -> None:
    prompts: list[str] = []

    def judge(request: Request) -> str:
        prompts.append(request.messages[0].text)
        return "B"

    settings = {
        "prompt": "{{ conversation }} A: {{ a }} B: {{ b }} {{ format }}",
        "format": "A or B?",
        "extract": r"\b(A|B)\b",
    }
    found = group(1, 2)
    grading = await grade_group(found, "preference", settings, judge=judge)
    assert prompts[0] == "user: What is a windrow? A: A row, worth 1. B: A row, worth 2. A or B?"
    assert by_sample(found, grading, "preference") == {0: 0.0, 1: 0.0}  # B in both orders is no preference


@pytest.mark.parametrize(
    ("scorer", "settings", "problem"),
    [
        ("preference", {"pair": "all"}, "no setting 'pair'; did you mean 'pairs'"),
        ("preference", {"rounds": 3}, "'rounds' is for 'pairs: swiss'"),
        ("preference", {"chunk": 1}, "chunk"),
        ("preference", {"extract": "json", "format": "x"}, "a regular expression"),
        ("preference", {"extract": "(A)"}, "'extract' needs 'format'"),
        ("preference", {"judge": {"base_url": "http://127.0.0.1:9/v1"}}, "names no 'model'"),
        ("relative", {"scale": [5, 5]}, "must rise"),
        ("best-of-n", {"of": "rubric"}, "no setting 'of'"),
    ],
)
def test_settings_that_cannot_work_are_refused(scorer: str, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        make_scorer(ScorerConfig(name=scorer, settings=settings))


@pytest.mark.parametrize("scorer", ["preference", "relative", "best-of-n"])
def test_they_judge_groups(scorer: str) -> None:
    assert isinstance(make_scorer(ScorerConfig(name=scorer)), GroupScorer)


# -- whole runs


def fair_server(body: dict[str, Any], n: int) -> str:
    shown = asked(body)
    a, _, b = shown.partition("reply A")[2].partition(": reply B")
    worth = strength(a), strength(b)
    return f"<verdict>{'tie' if worth[0] == worth[1] else 'A' if worth[0] > worth[1] else 'B'}</verdict>"


def numbered() -> Callable[[Request], str]:
    """A policy whose replies are worth 1, 2, 3, … in the order in which they are asked for."""
    count = itertools.count(1)
    return lambda request: f"worth {next(count)}"


async def test_the_environment_compares_the_replies_of_each_task(tmp_path: Path) -> None:
    rows = [{"prompt": "Say one."}, {"convo": [{"role": "user", "content": "Say two."}]}]
    with ModelServer(fair_server) as server:
        rollouts = await judged(
            tmp_path / "run", rows, server, env="preference", reply=numbered(), samples=3, concurrency=1
        )
        assert server.completions == 2 * 6
    assert [(r.env, r.stop, r.grade) for r in rollouts] == [("preference", "answered", "graded")] * 6
    for task in (rollouts[:3], rollouts[3:]):
        ranked = sorted(task, key=lambda rollout: strength(rollout.reply))
        assert [rollout.reward for rollout in ranked] == [-1.0, 0.0, 1.0]


async def test_a_larger_group_is_compared_again_and_only_new_pairs_are_asked_about(tmp_path: Path) -> None:
    policy = answering(numbered())
    with ModelServer(fair_server) as server:
        options = {"env": "preference", "policy": policy, "concurrency": 1}
        await judged(tmp_path / "run", [{"prompt": "p"}], server, samples=2, **options)
        assert server.completions == 2
        rollouts = await judged(tmp_path / "run", [{"prompt": "p"}], server, samples=3, **options)
        assert server.completions == 6
    assert [rollout.reward for rollout in rollouts] == [-1.0, 0.0, 1.0]
    assert [len(grading.members) for grading in gradings(tmp_path / "run")] == [2, 3]


async def test_a_judge_that_cannot_be_understood_leaves_the_group_ungraded_until_the_next_call(
    tmp_path: Path,
) -> None:
    mute = [True]
    with ModelServer(lambda body, n: "Hm." if mute else fair_server(body, n)) as server:
        options = {"env": "preference", "policy": answering(numbered()), "samples": 2, "concurrency": 1}
        rollouts = await judged(tmp_path / "run", [{"prompt": "p"}], server, **options)
        assert [(r.status, r.grade, r.reward) for r in rollouts] == [("completed", "failed", None)] * 2
        mute.clear()
        rollouts = await judged(tmp_path / "run", [{"prompt": "p"}], server, **options)
    assert [(r.attempt, r.grade, r.reward) for r in rollouts] == [(1, "graded", -1.0), (1, "graded", 1.0)]


async def test_one_sample_alone_is_not_graded(tmp_path: Path) -> None:
    with ModelServer(fair_server) as server:
        [rollout] = await judged(
            tmp_path / "run", [{"prompt": "p"}], server, env="preference", reply="worth 1"
        )
        assert server.completions == 0
    assert (rollout.status, rollout.grade, rollout.reward) == ("completed", "none", None)


async def test_the_best_of_n_is_chosen_by_what_a_scorer_before_it_gave(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    with ModelServer(lambda body, n: f"<score>{strength(asked(body))}</score>") as server:
        criterion = {"criterion": "How much?", "points": 9}
        rubric = {"name": "rubric", "weight": 0, "settings": {"criteria": [criterion]}}
        best = {"name": "best-of-n", "settings": {"by": "rubric"}}
        judge = {"model": "stub", "base_url": server.url}
        config.write_text(json.dumps({"scorers": [rubric, best], "judge": judge}))
        await collected(
            [{"prompt": "p"}],
            config=config,
            policy=answering(numbered()),
            samples=3,
            out=str(tmp_path / "run"),
        )
    rollouts = list(windrow.load(tmp_path / "run"))
    assert {strength(rollout.reply): rollout.reward for rollout in rollouts} == {1: 0.0, 2: 0.0, 3: 1.0}
