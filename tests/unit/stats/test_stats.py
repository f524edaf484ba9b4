"""Statistics: estimates against known values, and every number of a run over the rollouts it claims to be over."""

from __future__ import annotations

import itertools
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.run_builders import make_rollout, write_run
from windrow import Completion, Request, Task
from windrow.errors import InfraError, StoreError
from windrow.records import Usage
from windrow.stats.estimate import Cluster, clustered_mean, pass_at_k, pass_table, t_quantile
from windrow.stats.summary import Stats, summarise

# -- estimates


def cluster(*values: float) -> Cluster:
    made = Cluster()
    for value in values:
        made.add(value, passed=value >= 1.0)
    return made


@pytest.mark.parametrize(
    ("p", "degrees", "t"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 3, 3.1824),
        (0.975, 4, 2.7764),
        (0.975, 5, 2.5706),
        (0.975, 10, 2.2281),
        (0.975, 29, 2.0452),
        (0.975, 120, 1.9799),
        (0.975, 9_999, 1.9602),
        (0.975, 1_000_000, 1.9600),
        (0.95, 1, 6.3138),
        (0.95, 2, 2.9200),
        (0.95, 7, 1.8946),
        (0.995, 10, 3.1693),
        (0.9995, 3, 12.9240),
        (0.9, 20, 1.3253),
        (0.5, 8, 0.0),
    ],
)
def test_t_quantiles_are_those_of_the_tables(p: float, degrees: int, t: float) -> None:
    assert t_quantile(p, degrees) == pytest.approx(t, abs=6e-5)


def test_a_clustered_mean_is_what_it_is_by_hand() -> None:
    mean = clustered_mean([cluster(1, 1, 0), cluster(0, 0), cluster(1)])
    # n = 6, mean 1/2; residual sums 1/2, -1, 1/2; variance 3/2 · (1/4 + 1 + 1/4) / 36 = 1/16; t(2) = 4.3027
    assert mean is not None
    assert (mean.value, mean.n, mean.clusters) == (0.5, 6, 3)
    assert mean.low == pytest.approx(0.5 - 4.302653 / 4, abs=1e-6)
    assert mean.high == pytest.approx(0.5 + 4.302653 / 4, abs=1e-6)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=30))
def test_with_one_value_a_task_the_interval_is_the_usual_one(values: list[float]) -> None:
    mean = clustered_mean([cluster(value) for value in values])
    assert mean is not None
    assert mean.low is not None
    usual = t_quantile(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    assert mean.value - mean.low == pytest.approx(usual, abs=1e-6)


def test_samples_that_agree_within_a_task_do_not_narrow_the_interval() -> None:
    once = clustered_mean([cluster(0), cluster(1), cluster(1)])
    often = clustered_mean([cluster(*[0] * 8), cluster(*[1] * 8), cluster(*[1] * 8)])
    assert once is not None
    assert often is not None
    assert (often.value, often.low, often.high) == pytest.approx((once.value, once.low, once.high))
    assert (once.n, often.n) == (3, 24)


def test_no_interval_is_made_up_where_none_can_be_estimated() -> None:
    assert clustered_mean([]) is None
    assert clustered_mean([Cluster()]) is None
    alone = clustered_mean([cluster(1, 0), Cluster()])
    assert alone is not None
    assert (alone.value, alone.low, alone.high, alone.n, alone.clusters) == (0.5, None, None, 2, 1)


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_what_counting_all_draws_gives(n: int) -> None:
    for passed, k in itertools.product(range(n + 1), range(1, n + 1)):
        samples = [True] * passed + [False] * (n - passed)
        draws = list(itertools.combinations(samples, k))
        assert pass_at_k(n, passed, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))


@pytest.mark.parametrize(("n", "k"), [(4, 5), (4, 0), (0, 1)])
def test_pass_at_k_beyond_the_samples_is_refused(n: int, k: int) -> None:
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k(n, 0, k)


def test_mean_pass_at_k_weighs_every_task_the_same() -> None:
    table, tasks = pass_table([cluster(1, 0, 0, 0), cluster(1, 1, 1, 1)])
    assert (table["1"], tasks) == (pytest.approx((0.25 + 1) / 2), 2)
    table, tasks = pass_table([cluster(1, 0, 0, 0), cluster(0, 0, 0, 0)])
    assert (table["2"], tasks) == (pytest.approx(0.25), 2)


# -- of a run


class Exam:
    """Answers by a table of {prompt: replies by sample}; a reply None is an endpoint that is down."""

    def __init__(self, tmp_path: Path, replies: dict[str, list[str | None]]) -> None:
        self.run = tmp_path / "run"
        self.rows = [{"prompt": prompt, "answer": "yes"} for prompt in replies]
        self.down = True

        def answer(request: Request) -> Completion:
            reply = replies[request.messages[0].text][request.sampling["seed"]]
            if reply is None and self.down:
                raise InfraError("down", kind="http_503")
            usage = Usage(prompt_tokens=10, completion_tokens=2, cached_tokens=4)
            return Completion(content=reply or "yes", usage=usage)

        self.options: dict[str, Any] = {
            "policy": answering(answer),
            "samples": max(len(of) for of in replies.values()),
            "seeds": "sample",
            "call_retries": 0,
            "retries": 0,
            "out": str(self.run),
        }

    async def take(self, **options: Any) -> Stats:
        await collected(self.rows, **{**self.options, **options})
        return summarise(self.run)


async def test_every_mean_states_its_denominator_and_a_failure_is_not_a_zero(tmp_path) -> None:
    exam = Exam(tmp_path, {"a": ["yes", "yes"], "b": ["yes", None], "c": ["no", "no"], "d": [None, None]})
    stats = await exam.take()
    assert (stats.planned, stats.rollouts, stats.attempts, stats.tasks) == (8, 8, 8, 4)
    assert stats.status == {"completed": 5, "failed": 3}
    assert stats.stop == {"answered": 5, "error": 3}
    assert stats.errors == {"infra/http_503": 3}
    assert stats.grade == {"graded": 5, "none": 3}
    assert stats.reward is not None
    assert (stats.reward.value, stats.reward.n, stats.reward.clusters) == (pytest.approx(3 / 5), 5, 3)
    assert stats.scores["exact"].n == 5
    assert (stats.usage.prompt_tokens, stats.usage.completion_tokens, stats.usage.cached_tokens) == (
        50,
        10,
        20,
    )


async def test_pass_at_k_is_over_the_same_tasks_for_every_k(tmp_path) -> None:
    exam = Exam(
        tmp_path,
        {
            "a": ["yes", "no", "no", "no"],
            "b": ["no", "no", "no", "no"],
            "c": ["yes", "yes", "yes", None],  # one sample short: in none of them
        },
    )
    stats = await exam.take()
    assert stats.pass_tasks == 2
    assert stats.pass_at == pytest.approx({"1": 1 / 8, "2": 1 / 4, "4": 1 / 2})


async def test_only_the_final_attempt_of_a_slot_counts(tmp_path) -> None:
    exam = Exam(tmp_path, {"a": ["yes", None], "b": ["no", None]})
    before = await exam.take()
    assert (before.rollouts, before.attempts, before.status) == (4, 4, {"completed": 2, "failed": 2})
    exam.down = False
    after = await exam.take()
    assert (after.rollouts, after.attempts, after.status) == (4, 6, {"completed": 4})
    assert after.reward is not None
    assert (after.reward.value, after.reward.n, after.errors) == (0.75, 4, {})


async def test_after_a_regrade_the_new_scores_count_and_the_old_do_not(tmp_path) -> None:
    exam = Exam(tmp_path, {"a": ["yes", "yes!"], "b": ["oh yes", "no"]})
    before = await exam.take(scorers=["exact"])
    after = await exam.take(scorers=["contains=2"], regrade=True)
    assert before.reward is not None
    assert after.reward is not None
    assert (before.reward.value, after.reward.value) == (0.25, 1.5)
    assert set(before.scores) == {"exact", "exact.format"}
    assert set(after.scores) == {"contains", "contains.format"}
    assert (after.attempts, after.grade) == (4, {"graded": 4})
    back = await exam.take(scorers=["exact"], regrade=True)
    assert back.reward is not None
    assert back.reward.value == 0.25


async def test_what_is_not_graded_is_in_no_mean(tmp_path) -> None:
    def judge(task: Task, reply: str) -> float:
        if reply == "no":
            raise LookupError("no rubric")
        return 0.5

    judge.after_commit = True  # type: ignore[attr-defined]
    exam = Exam(tmp_path, {"a": ["yes", "no"], "b": ["yes", "yes"]})
    stats = await exam.take(scorers=[judge])
    assert stats.grade == {"graded": 3, "failed": 1}
    assert stats.errors == {"scorer/LookupError": 1}
    assert stats.reward is not None
    assert (stats.reward.value, stats.reward.n) == (0.5, 3)


async def test_without_grades_there_is_no_mean_and_no_pass_rate(tmp_path) -> None:
    run = tmp_path / "run"
    await collected([{"prompt": "a"}, {"prompt": "b"}], policy=answering("x"), out=str(run))
    stats = summarise(run)
    assert (stats.reward, stats.scores, stats.pass_at, stats.pass_tasks) == (None, {}, {}, 0)
    assert (stats.rollouts, stats.grade) == (2, {"none": 2})


async def test_what_counts_as_a_pass_can_be_said(tmp_path) -> None:
    def half(task: Task, reply: str) -> float:
        return 0.5

    exam = Exam(tmp_path, {"a": ["yes", "yes"]})
    assert (await exam.take(scorers=[half])).pass_at == {"1": 0.0, "2": 0.0}
    assert summarise(exam.run, pass_reward=0.5).pass_at == {"1": 1.0, "2": 1.0}


async def test_bad_lines_are_counted_and_the_rest_still_is(tmp_path) -> None:
    exam = Exam(tmp_path, {"a": ["yes", "no"], "b": ["yes", "yes"]})
    before = await exam.take()
    log = exam.run / "rollouts.jsonl"
    first, *rest = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([first, b"{broken\n", b'{"v": 1}\n', b"\xff\xfe\n", *rest, b'{"torn": ']))
    after = summarise(exam.run)
    assert after.bad_lines == 3
    assert (after.reward, after.rollouts, after.pass_at) == (before.reward, before.rollouts, before.pass_at)
    with pytest.warns(UserWarning, match="is left out"):
        assert len(list(windrow.load(exam.run))) == 4


def test_a_line_whose_verdicts_cannot_be_read_is_named(tmp_path: Path) -> None:
    """One that was graded otherwise is read further than its numbers alone."""
    run = write_run(tmp_path / "run", [make_rollout("a"), make_rollout("b", index=1, grading="another")])
    lines = (run / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"turns":[]', b'"turns":[5]')
    (run / "rollouts.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(StoreError, match=rf"the line at byte {len(lines[0])} is not a rollout"):
        summarise(run)
