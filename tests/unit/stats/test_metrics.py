"""metrics.json: closed forms on runs made by hand, what a failure does to a mean (nothing), and the env's own hook."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.support.collect_helpers import answering, collected
from tests.support.run_builders import FAILED, GRADING, make_grading, make_rollout, write_lines, write_run
from windrow import Rollout
from windrow.cli.main import main
from windrow.cli.stats import text
from windrow.envs.problem import Problem
from windrow.records import RecordedScore, Timing, Usage
from windrow.stats.metrics import AgentEntry, Metrics, measure, measure_run, write_metrics
from windrow.stats.spread import EXACT_VALUES, Values
from windrow.stats.summary import summarise
from windrow.store.manifest import MANIFEST
from windrow.util.disk import process_name


def graded(name: str, reward: float, **changes: Any) -> Rollout:
    score = RecordedScore(value=reward, weight=1.0, scorer="judge")
    return make_rollout(name, grade="graded", reward=reward, scores={"judge": score}, **changes)


def failed(name: str, **changes: Any) -> Rollout:
    return make_rollout(name, status="failed", stop="error", error=FAILED, **changes)


def only(metrics: Metrics) -> AgentEntry:
    [entry] = metrics.agents
    return entry


# -- what a run says


def test_a_run_of_known_rewards_has_the_numbers_of_the_textbook(tmp_path: Path) -> None:
    """Two tasks of four samples: 1 1 0 0 and 1 0 0 0."""
    rewards = {"a": (1, 1, 0, 0), "b": (1, 0, 0, 0)}
    run = write_run(
        tmp_path / "run",
        [
            graded(name, float(reward), sample=sample, index=index)
            for index, (name, values) in enumerate(rewards.items())
            for sample, reward in enumerate(values)
        ],
    )
    entry = only(measure(run))
    metrics = entry.agent_metrics
    spread = metrics.spread["reward"]
    assert (spread.n, spread.mean, spread.min, spread.median, spread.max) == (8, 0.375, 0.0, 0.0, 1.0)
    assert spread.std == pytest.approx(statistics.stdev([1, 1, 0, 0, 1, 0, 0, 0]))
    assert metrics.spread["score/judge"] == spread
    # pass@k = 1 − C(wrong, k) / C(4, k), averaged over the tasks
    assert metrics.pass_at == pytest.approx({"1": 3 / 8, "2": (5 / 6 + 1 / 2) / 2, "4": 1.0})
    assert metrics.pass_tasks == 2
    # two clusters with means 1/2 and 1/4: standard error 1/8, and t(0.975, 1 degree)
    reach = math.tan(math.pi * 0.475) / 8
    assert metrics.reward is not None
    assert (metrics.reward.low, metrics.reward.high) == pytest.approx((0.375 - reach, 0.375 + reach))
    assert entry.key_metrics == pytest.approx(
        {
            "rollouts": 8,
            "coverage": 1.0,
            "mean/reward": 0.375,
            "low/reward": 0.375 - reach,
            "high/reward": 0.375 + reach,
            "n/reward": 8,
            "zero_variance_groups": 0.0,
            "pass@1": 3 / 8,
            "pass@2": 2 / 3,
            "pass@4": 1.0,
        }
    )
    one, two = entry.group_level_metrics
    assert (one.key, one.index, one.n, one.mean, one.pass_rate) == ("a", 0, 4, 0.5, 0.5)
    assert (two.key, two.index, two.n, two.mean, two.pass_rate) == ("b", 1, 4, 0.25, 0.25)
    assert (one.std, one.min, one.max) == (pytest.approx(statistics.stdev([1, 1, 0, 0])), 0.0, 1.0)


def test_groups_whose_rewards_are_all_the_same_are_marked_and_counted(tmp_path: Path) -> None:
    rewards = {"mixed": (1, 0, 1), "right": (1, 1, 1), "wrong": (0, 0), "alone": (1,), "late": (0, 0, 1)}
    run = write_run(
        tmp_path / "run",
        [
            graded(name, float(reward), sample=sample, index=index)
            for index, (name, values) in enumerate(rewards.items())
            for sample, reward in enumerate(values)
        ]
        + [failed("wrong", sample=2, index=2)],
    )
    entry = only(measure(run))
    marked = {group.key for group in entry.group_level_metrics if group.zero_variance}
    assert marked == {"right", "wrong"}
    assert (entry.agent_metrics.groups.n, entry.agent_metrics.groups.zero_variance) == (4, 2)
    assert entry.key_metrics["zero_variance_groups"] == 0.5
    assert summarise(run).groups == entry.agent_metrics.groups
    assert "2 of 4 with rewards that are all the same" in text(summarise(run))


def test_a_task_of_which_nothing_was_graded_is_listed_and_counts_nowhere(tmp_path: Path) -> None:
    rollouts = [graded("good", 1.0), graded("good", 1.0, sample=1)]
    rollouts += [failed("lost", index=1), failed("lost", index=1, sample=1)]
    metrics = measure(write_run(tmp_path / "run", rollouts))
    entry = only(metrics)
    assert entry.agent_metrics.spread["reward"].mean == 1.0
    assert entry.agent_metrics.pass_at == {"1": 1.0, "2": 1.0}
    assert entry.agent_metrics.pass_tasks == 1
    assert entry.key_metrics["coverage"] == 0.5
    lost = entry.group_level_metrics[1]
    assert (lost.key, lost.rollouts, lost.n) == ("lost", 2, 0)
    assert (lost.mean, lost.std, lost.min, lost.max, lost.pass_rate) == (None,) * 5
    assert (metrics.coverage.rollouts, metrics.coverage.done, metrics.coverage.graded) == (4, 2, 2)
    assert metrics.coverage.tasks == 2


def test_rates_state_their_denominator_and_name_what_never_happened(tmp_path: Path) -> None:
    rollouts = [graded(f"t{n}", 1.0, index=n) for n in range(3)] + [failed("t3", index=3)]
    metrics = only(measure(write_run(tmp_path / "run", rollouts))).agent_metrics
    assert metrics.status.n == 4
    assert metrics.status.count == {"completed": 3, "truncated": 0, "failed": 1, "cancelled": 0}
    assert metrics.status.rate == {"completed": 0.75, "truncated": 0.0, "failed": 0.25, "cancelled": 0.0}
    assert metrics.stop.count["answered"] == 3
    assert metrics.stop.count["max_turns"] == 0
    assert metrics.errors.count == {"policy": 0, "env": 0, "tool": 0, "scorer": 0, "infra": 1}
    assert metrics.errors.rate["infra"] == 0.25
    assert metrics.error_kinds == {"infra/http_503": 1}
    assert metrics.grade.count == {"none": 1, "pending": 0, "graded": 3, "failed": 0}


def test_metrics_usage_and_seconds_are_averaged_over_those_that_have_them(tmp_path: Path) -> None:
    def spent(tokens: int) -> dict[str, Any]:
        usage = Usage(prompt_tokens=10, completion_tokens=tokens)
        return {"usage": usage, "timing": Timing(started_at=0.0, total=float(tokens))}

    rollouts = [
        graded("a", 1.0, metrics={"steps": 3.0}, **spent(1)),
        graded("a", 0.0, sample=1, metrics={"steps": 5.0}, **spent(2)),
        graded("b", 1.0, index=1, **spent(6)),
    ]
    entry = only(measure(write_run(tmp_path / "run", rollouts)))
    spread = entry.agent_metrics.spread
    assert (spread["metric/steps"].n, spread["metric/steps"].mean) == (2, 4.0)
    tokens = spread["usage/completion_tokens"]
    assert (tokens.n, tokens.mean, tokens.median, tokens.max) == (3, 3.0, 2.0, 6.0)
    assert spread["seconds"].mean == 3.0
    assert "usage/cost" not in spread  # nobody knows the price
    assert [group.mean_completion_tokens for group in entry.group_level_metrics] == [1.5, 6.0]
    assert [group.mean_prompt_tokens for group in entry.group_level_metrics] == [10.0, 10.0]


def test_only_final_attempts_count_and_gradings_made_later_are_folded_in(tmp_path: Path) -> None:
    retried = make_rollout("a", attempt=2, grade="pending")
    run = write_run(tmp_path / "run", [failed("a"), retried], [make_grading(retried, 0.5)])
    metrics = measure(run)
    assert (metrics.coverage.attempts, metrics.coverage.rollouts, metrics.coverage.graded) == (2, 1, 1)
    assert only(metrics).agent_metrics.spread["reward"].mean == 0.5
    assert only(metrics).agent_metrics.status.count["failed"] == 0


def test_each_agent_has_its_own_entry(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        [graded("a", 1.0, agent="chat"), graded("b", 0.0, index=1, agent="pkg:Other")],
    )
    manifest = json.loads((run / MANIFEST).read_text())
    (run / MANIFEST).write_text(json.dumps({**manifest, "agents": {"chat": 4, "pkg:Other": 1}}))
    entries = {entry.agent: entry for entry in measure(run).agents}
    assert entries["chat"].key_metrics["mean/reward"] == 1.0
    assert entries["chat"].key_metrics["coverage"] == 0.25  # of four that were planned
    assert entries["pkg:Other"].key_metrics["mean/reward"] == 0.0
    assert [group.key for group in entries["pkg:Other"].group_level_metrics] == ["b"]


def test_the_file_is_what_the_metrics_are_however_it_is_written(tmp_path: Path) -> None:
    """Tasks are written one at a time: several agents, tasks that share an index, no task at all."""
    rollouts = [
        graded(name, 0.1 * sample, index=index, sample=sample, agent=agent)
        for name, index, agent in (
            ("b", 3, "chat"),
            ("a", 0, "chat"),
            ("c", 3, "pkg:Other"),
            ("d", 3, "chat"),
        )
        for sample in range(3)
    ]
    for name, lines in (("none", []), ("one", rollouts[:1]), ("many", rollouts)):
        run = write_run(tmp_path / name, lines)
        written = write_metrics(run, measure_run(run)).read_bytes()
        assert written == msgspec.json.format(msgspec.json.encode(measure(run)), indent=2) + b"\n"
    groups = [entry.group_level_metrics for entry in measure(tmp_path / "many").agents]
    assert [[group.index for group in of] for of in groups] == [[0, 3, 3], [3]]
    assert groups[0] == sorted(groups[0], key=lambda group: (group.index, group.group))


def test_a_run_without_a_rollout_and_one_with_a_bad_line_have_metrics(tmp_path: Path) -> None:
    empty = measure(write_run(tmp_path / "empty"))
    assert (empty.agents, empty.coverage.rollouts) == ([], 0)
    run = write_run(tmp_path / "run", [graded("a", 1.0)])
    with (run / "rollouts.jsonl").open("ab") as log:
        log.write(b"{broken\n")
    write_lines(run / "rollouts.jsonl", [graded("b", 0.0, index=1)])
    metrics = measure(run)
    assert (metrics.coverage.bad_lines, metrics.coverage.graded) == (1, 2)


def test_no_number_that_json_lacks_is_written(tmp_path: Path) -> None:
    """Rewards so large that their sums overflow."""
    rollouts = [graded(f"t{n}", value, index=n) for n, value in enumerate((1.7e308, 1.7e308, -1.7e308))]
    run = write_run(tmp_path / "run", rollouts)
    path = write_metrics(run, measure_run(run))

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in {path.name}")

    found = json.loads(path.read_text(), parse_constant=refuse)
    assert found["schema"] == 1
    assert [entry["agent"] for entry in found["agents"]] == ["chat"]
    assert found["agents"][0]["agent_metrics"]["spread"]["reward"]["max"] == 1.7e308


# -- the spread of many values


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_a_spread_is_that_of_the_statistics_module(numbers: list[float]) -> None:
    values = Values()
    values.add(numbers)
    spread = values.spread()
    assert (spread.n, spread.min, spread.max) == (len(numbers), min(numbers), max(numbers))
    assert spread.mean == pytest.approx(statistics.fmean(numbers), rel=1e-9, abs=1e-6)
    assert spread.median == pytest.approx(statistics.median(numbers), rel=1e-12, abs=1e-300)
    assert spread.median_error == 0.0
    if len(numbers) == 1:
        assert spread.std is None
    else:
        assert spread.std == pytest.approx(statistics.stdev(numbers), rel=1e-6, abs=1e-6)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40), st.integers(1, 7))
def test_a_spread_does_not_depend_on_how_many_values_are_taken_in_together(
    numbers: list[float], together: int
) -> None:
    whole, parts = Values(), Values()
    for position, number in enumerate(numbers):
        whole.add([number])
        parts.add([number])
        if position % together == 0:
            parts.spread()
    one, other = whole.spread(), parts.spread()
    assert (one.n, one.min, one.median, one.max) == (other.n, other.min, other.median, other.max)
    assert one.mean == pytest.approx(other.mean, rel=1e-9, abs=1e-9)
    assert one.std == (other.std and pytest.approx(other.std, rel=1e-6, abs=1e-6))


def test_very_many_values_are_held_in_bounded_memory_and_the_median_says_how_good_it_is() -> None:
    values = Values()
    numbers = [((n * 7919) % 100_003) / 1000 for n in range(100_003)]
    values.add(numbers)
    spread = values.spread()
    assert len(values._counts) <= EXACT_VALUES
    assert 0 < spread.median_error < 0.01
    exact = statistics.median(numbers)
    assert abs(spread.median - exact) <= spread.median_error * exact
    assert spread.mean == pytest.approx(statistics.fmean(numbers))


# -- the environment's own hook


class Counting(Problem):
    version = 1
    seen: list[Rollout]

    @classmethod
    def aggregate(cls, rollouts: Any) -> dict[str, float]:
        cls.seen = list(rollouts)
        return {"share_right": sum(r.reward or 0.0 for r in rollouts) / len(rollouts), "many": len(rollouts)}


class Broken(Problem):
    version = 1

    @classmethod
    def aggregate(cls, rollouts: Any) -> dict[str, float]:
        raise ZeroDivisionError("no rollouts of that kind")


class Odd(Problem):
    version = 1

    @classmethod
    def aggregate(cls, rollouts: Any) -> dict[str, float]:
        return {"fine": 1.5, "nan": math.nan, "text": "half"}  # type: ignore[dict-item]


ROWS = [{"prompt": "one", "answer": "1"}, {"prompt": "two", "answer": "2"}]


async def test_a_hook_gets_light_rollouts_and_its_numbers_are_in_the_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await collected(ROWS, env=Counting, policy=answering("1"), samples=2, scorers=["number"], out=str(run))
    found = json.loads((run / "metrics.json").read_text())
    name = f"{__name__}:Counting"
    assert found["agents"][0]["agent_metrics"]["aggregate"] == {name: {"share_right": 0.5, "many": 4.0}}
    assert len(Counting.seen) == 4
    assert {(r.messages, r.turns) for r in Counting.seen} == {((), ())}
    assert {r.task["answer"] for r in Counting.seen} == {"1", "2"}
    full = {r.id: r.usage for r in windrow.load(run)}
    assert {r.id: r.usage for r in Counting.seen} == full


@pytest.mark.parametrize(
    ("env", "said", "kept"),
    [
        (Broken, "aggregate() of env {name} raised ZeroDivisionError: no rollouts of that kind", {}),
        (Odd, "aggregate() of env {name}: 'nan' is nan, no finite number, and is left out", {"fine": 1.5}),
    ],
    ids=["raises", "no numbers"],
)
async def test_a_hook_that_goes_wrong_is_a_warning(
    tmp_path: Path, env: type[Problem], said: str, kept: dict[str, float]
) -> None:
    run = tmp_path / "run"
    warnings: list[str] = []
    options = {"env": env, "policy": answering("1"), "scorers": ["number"], "on_warning": warnings.append}
    assert len(await collected(ROWS, out=str(run), **options)) == 2
    name = f"{__name__}:{env.__name__}"
    assert said.format(name=name) in warnings
    entry = json.loads((run / "metrics.json").read_text())["agents"][0]
    assert entry["agent_metrics"]["aggregate"].get(name, {}) == kept
    assert entry["key_metrics"]["mean/reward"] == 0.5


# -- when it is written


async def test_a_collection_writes_metrics_unless_told_not_to(tmp_path: Path) -> None:
    options: dict[str, Any] = {"policy": answering("1"), "out": str(tmp_path / "run")}
    await collected(ROWS, aggregate=False, **options)
    assert not (tmp_path / "run" / "metrics.json").exists()
    await collected(ROWS, **options)  # nothing to run, yet the metrics are to be there
    written = (tmp_path / "run" / "metrics.json").read_bytes()
    expected = msgspec.to_builtins(measure(tmp_path / "run"))
    assert json.loads(written) == json.loads(json.dumps(expected))
    assert expected["coverage"]["planned"] == 2


def test_metrics_are_made_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", [graded("a", 0.5), graded("b", 1.0, index=1)])
    assert main(["stats", str(run)]) == 0
    assert not (run / "metrics.json").exists()
    plain = capsys.readouterr().out
    assert main(["stats", str(run), "--write", "--pass-reward", "0.5"]) == 0
    said = capsys.readouterr()
    assert str(run / "metrics.json") in said.err
    found = json.loads((run / "metrics.json").read_text())
    assert found["agents"][0]["agent_metrics"]["pass_at"] == {"1": 1.0}
    assert found["run"] == {
        "name": "run",
        "source": "rows",
        "split": None,
        "behaviour": "behaviour",
        "grading": GRADING.hash,
    }
    assert plain.splitlines()[0] == said.out.splitlines()[0]  # the text is printed all the same


async def test_metrics_that_cannot_be_written_are_a_warning_and_the_old_ones_stay(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options: dict[str, Any] = {"policy": answering("1"), "out": str(run)}
    await collected(ROWS[:1], **options)
    before = (run / "metrics.json").read_bytes()
    warnings: list[str] = []
    (run / f".metrics.json.{process_name()}").mkdir()  # where the draft would be written
    rollouts = await collected(ROWS, on_warning=warnings.append, **options)
    assert len(rollouts) == 1
    assert [text for text in warnings if "no metrics.json" in text]
    assert (run / "metrics.json").read_bytes() == before
