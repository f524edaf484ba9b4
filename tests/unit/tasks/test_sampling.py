"""Draws: some of the tasks, by chance that is recorded, the same for every call; and blocked domains, out of training only."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.collect_helpers import answering, collected
from tests.support.model_server import write_jsonl
from tests.support.task_loading import refusal, resolved
from tests.support.webgym_data import row
from windrow.collecting.merge import merge
from windrow.collecting.resolve import ResolvedRun
from windrow.errors import UsageError
from windrow.tasks.sampling import draw_uniform, ranking
from windrow.tasks.sharding import shares

NOON = "2026-01-31T12:00:00+00:00"
RATIO = "draw.ratio={easy: {range: [1, 3], weight: 2}, hard: {range: [7, 9], weight: 1}}"


def mixed(count: int = 60) -> list[dict[str, Any]]:
    """Rows of difficulty 1 to 10, each on a website of its own."""
    return [row(number, difficulty=1 + number % 10) for number in range(count)]


def names(found: ResolvedRun) -> list[str]:
    return [found.tasks.task(position)["task_name"] for position in range(len(found.tasks))]


def drawn(rows: Any = None, **options: Any) -> ResolvedRun:
    rows = mixed() if rows is None else rows
    return resolved(rows, **{"env": "prompt", "draw": "uniform", "draw_n": 10, "source": "s", **options})


def blocklist(path: Path, *rows: tuple[str, str | float]) -> str:
    entries = [
        {"domain": domain, "url": f"https://{domain}/", "blocked_at": at, "task_id": "1"}
        for domain, at in rows
    ]
    return str(write_jsonl(path, entries))


def train(rows: Any, **options: Any) -> ResolvedRun:
    return resolved(rows, **{"env": "prompt", "split": "train", "blocklist_at": NOON, **options})


def test_a_draw_is_the_same_for_the_same_seed_and_another_for_another_seed_or_pass() -> None:
    first = names(drawn(draw_seed=7))
    assert len(set(first)) == 10
    assert names(drawn(draw_seed=7)) == first
    assert names(drawn(list(reversed(mixed())), draw_seed=7)) == first
    assert set(names(drawn(draw_seed=8))) != set(first)
    assert set(names(drawn(draw_seed=7, pass_=1))) != set(first)


def test_without_a_seed_one_is_made_that_every_call_makes_alike_and_recorded() -> None:
    found = drawn()
    assert found.draw is not None
    assert names(drawn()) == names(found)
    assert names(drawn(draw_seed=found.draw.seed)) == names(found)
    assert set(names(drawn(source="another"))) != set(names(found))
    assert any(f"seed {found.draw.seed}, pass 0" in note for note in found.notes)


def test_a_larger_draw_holds_the_smaller_one() -> None:
    assert names(drawn(draw_n=25))[:10] == names(drawn(draw_n=10))


def test_every_task_is_drawn_about_as_often_as_any_other() -> None:
    def identity(position: int) -> tuple[str, int]:
        return f"{position:x}", 0

    counts = Counter(
        n for seed in range(400) for n in draw_uniform(range(60), 10, ranking(identity, seed, 0))
    )
    assert len(counts) == 60
    assert all(
        25 <= count <= 110 for count in counts.values()
    )  # 67 on average: over five deviations either way


def test_rows_that_ask_the_same_are_drawn_once() -> None:
    twice = [row(1), row(1, definite_answer="another"), row(2), {**row(2), "task_id": 77}]
    assert sorted(names(drawn(twice))) == [row(1)["task_name"], row(2)["task_name"]]
    assert len(names(drawn([row(1), row(1, subdomain="Music"), row(1, difficulty=9)]))) == 3


def test_whatever_stands_in_a_row_is_drawn_or_refused() -> None:
    odd = [row(1, subdomain=["a", {"b": 1}]), row(2, subdomain=3, difficulty=0), row(3, difficulty=-(10**9))]
    assert len(drawn(odd).tasks) == 3
    for difficulty in (10**400, 1e308):
        assert "'difficulty' must be a whole number" in refusal([row(1, difficulty=difficulty)], env="prompt")
    plain = [{"prompt": f"{d}", "difficulty": d} for d in (10**18, -1.5, True, "x", None)]
    assert len(drawn(plain).tasks) == 5
    assert (
        len(drawn(plain, draw="ratio", sets=("draw.ratio={a: {range: [2, 1.0e+19], weight: 1}}",)).tasks) == 1
    )


def test_too_few_are_all_of_them_and_that_is_said() -> None:
    found = drawn(draw_n=100)
    assert len(found.tasks) == 60
    assert "100 were asked for; there are no more" in found.notes


def test_a_draw_comes_before_the_shuffle_and_the_limit() -> None:
    some = names(drawn(draw_seed=7))
    assert set(names(drawn(draw_seed=7, shuffle=3))) == set(some)
    assert names(drawn(draw_seed=7, limit=4)) == some[:4]


def test_a_draw_by_ratio_takes_of_each_range_its_part() -> None:
    found = drawn(draw="ratio", draw_n=10, sets=(RATIO,))
    difficulties = [found.tasks.task(position)["difficulty"] for position in range(len(found.tasks))]
    assert sum(1 <= difficulty <= 3 for difficulty in difficulties) == 7
    assert sum(7 <= difficulty <= 9 for difficulty in difficulties) == 3
    assert "drawn by range: easy 7 of 7, hard 3 of 3" in found.notes


def test_a_range_with_too_few_gives_what_it_has_and_that_is_said() -> None:
    found = drawn(draw="ratio", draw_n=60, sets=(RATIO,))
    assert "drawn by range: easy 18 of 40, hard 18 of 20" in found.notes
    assert len(found.tasks) == 36


def test_the_rest_goes_to_the_largest_remainders_and_among_equal_ones_to_the_first() -> None:
    assert shares(10, [2, 1]) == [7, 3]
    assert shares(5, [0.5, 0.3, 0.2]) == [3, 1, 1]
    assert shares(1, [1, 1, 1]) == [1, 0, 0]
    assert shares(3, [1, 0, 0.2]) == [3, 0, 0]


@pytest.mark.parametrize(
    ("options", "sets", "problem"),
    [
        ({"draw": "uniform"}, (), "--draw uniform: how many are to be drawn? Give --draw-n N"),
        ({"draw_n": 3}, (), "--draw-n: there is no draw without --draw uniform or --draw ratio"),
        ({"draw": "ratio", "draw_n": 3}, (), "--draw ratio needs the ranges and their weights"),
        (
            {"draw": "ratio", "draw_n": 3},
            ("draw.ratio={a: {range: [1, 4], weight: 1}, b: {range: [4, 5], weight: 1}}",),
            "draw.ratio: 'a' and 'b' overlap at 4",
        ),
        (
            {"draw": "ratio", "draw_n": 3},
            ("draw.ratio={a: {range: [4, 1], weight: 1}}",),
            "draw.ratio.a.range: [4, 1] goes from its lowest number",
        ),
        (
            {"draw": "ratio", "draw_n": 3},
            ("draw.ratio={a: {range: [1, 4], weight: 0}}",),
            "draw.ratio: at least one weight must be over 0",
        ),
        (
            {"draw": "ratio", "draw_n": 3},
            ("draw.ratio={a: {range: [90, 99], weight: 1}}",),
            "no task of rows has a difficulty in a range of `draw.ratio`",
        ),
        ({"blocklist_hours": 3.0}, (), "--blocklist-hours: there is no --blocklist FILE"),
        ({"blocklist": "b.jsonl"}, (), "--blocklist is for training: give --split train"),
        ({"blocklist": "none.jsonl", "split": "train"}, (), "cannot read the blocklist none.jsonl"),
        (
            {"blocklist": "b.jsonl", "blocklist_at": "soon"},
            (),
            "--blocklist-at: 'soon' is no time such as 2026-01-31T12:00:00",
        ),
    ],
)
def test_what_does_not_say_how_is_refused(options: Any, sets: Any, problem: str) -> None:
    assert problem in refusal(mixed(), env="prompt", sets=sets, **options)


def test_blocked_domains_are_left_out_of_training_until_their_time_is_over(tmp_path: Path) -> None:
    rows = [row(number, website=f"https://www.Shop{number}.example/a") for number in range(4)]
    file = blocklist(
        tmp_path / "blocklist.jsonl",
        ("shop0.example", 1769860740.0),  # 11:59:00 on that day
        ("shop1.example", "2026-01-31T00:00:01+00:00"),  # 11:59:59 before noon
        ("shop2.example", "2026-01-30T23:59:59+00:00"),  # 12:00:01 before
        ("hop3.example", "2026-01-31T11:59:00+00:00"),
        ("www.shop2.example", "2026-01-30T20:00:00+00:00"),  # an earlier block of the same
    )
    found = train(rows, blocklist=file)
    assert names(found) == [row(2)["task_name"], row(3)["task_name"]]
    assert "3 domains are blocked: 2 tasks are left out" in found.notes
    assert len(train(rows, blocklist=file, blocklist_hours=1.0).tasks) == 3
    assert len(train(rows, blocklist=file, blocklist_hours=100.0).tasks) == 1
    assert len(train(rows, blocklist=file, blocklist_hours=1e15).tasks) == 1


def test_a_time_without_a_zone_is_this_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "XYZ-3")  # three hours ahead
    time.tzset()
    try:
        file = blocklist(tmp_path / "b.jsonl", ("shop1.example", "2026-01-31T03:00:01"))  # 00:00:01 UTC
        assert len(train([row(1), row(2)], blocklist=file).tasks) == 1
        file = blocklist(tmp_path / "b.jsonl", ("shop1.example", "2026-01-31T02:59:59"))
        assert len(train([row(1), row(2)], blocklist=file).tasks) == 2
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_tasks_of_a_test_are_never_left_out(tmp_path: Path) -> None:
    file = blocklist(tmp_path / "b.jsonl", ("shop1.example", NOON))
    found = train([row(1), row(2)], blocklist=file, split="test")
    assert len(found.tasks) == 2
    assert "--blocklist leaves nothing out of split 'test', only of 'train'" in found.notes


@pytest.mark.parametrize(
    "line", ['{"domain": "a.example"}', '{"domain": "a", "blocked_at": "soon"}', "nonsense", "\xff"]
)
def test_a_line_that_is_no_block_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "b.jsonl"
    file.write_bytes(b'{"domain": "a.example", "blocked_at": "2026-01-31"}\n\n' + line.encode("latin-1"))
    assert f"{file}:3: not a line of a blocklist" in refusal(
        [row()], env="prompt", split="train", blocklist=str(file)
    )


def test_when_every_task_is_blocked_there_is_no_run(tmp_path: Path) -> None:
    file = blocklist(tmp_path / "b.jsonl", ("shop1.example", NOON))
    assert "every task of rows is on a domain of --blocklist" in refusal(
        [row(1)], env="prompt", split="train", blocklist=file, blocklist_at=NOON
    )


def test_rows_of_any_kind_are_drawn_by_their_difficulty_and_left_out_by_their_address(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "difficulty": n, "url": f"http://shop{n}.example:8000/x"} for n in range(1, 5)]
    file = blocklist(tmp_path / "b.jsonl", ("shop1.example", NOON))
    found = train(
        rows, blocklist=file, draw="ratio", draw_n=9, sets=("draw.ratio={a: {range: [1, 3], weight: 1}}",)
    )
    assert sorted(found.tasks.task(n)["difficulty"] for n in range(len(found.tasks))) == [2, 3]


async def test_ranks_draw_alike_and_what_they_merge_says_how(tmp_path: Path) -> None:
    file = blocklist(tmp_path / "b.jsonl", ("shop1.example", "2026-01-31T11:00:00+00:00"))
    rows = [row(number) for number in range(9)]
    options: Any = {
        "env": "prompt",
        "policy": answering("ok"),
        "split": "train",
        "blocklist": file,
        "source": "s",
    }
    options |= {"draw": "uniform", "draw_n": 5, "blocklist_at": NOON}
    parts = [
        await collected(rows, **options, out=str(tmp_path / f"{rank}"), rank=rank, world_size=2)
        for rank in range(2)
    ]
    alone = await collected(rows, **options, out=str(tmp_path / "alone"))
    assert sorted(rollout.id for part in parts for rollout in part) == sorted(rollout.id for rollout in alone)

    def draws(run: str) -> Any:
        return msgspec.json.decode((tmp_path / run / "run.json").read_bytes())["draws"]

    said: list[str] = []
    merge([tmp_path / "0", tmp_path / "1"], tmp_path / "whole", on_warning=said.append)
    assert draws("whole") == draws("0") == draws("1") == draws("alone")
    assert not said
    blocklist(tmp_path / "b.jsonl", ("shop2.example", NOON))
    await collected(rows, **options, out=str(tmp_path / "other"), rank=0, world_size=2)
    merge([tmp_path / "other", tmp_path / "1"], tmp_path / "odd", on_warning=said.append)
    assert any("the parts of pass 0 left other blocked domains out" in text for text in said)


async def test_ranks_that_share_a_directory_go_by_the_blocklist_of_the_first(tmp_path: Path) -> None:
    file = blocklist(tmp_path / "b.jsonl", ("shop1.example", "2026-01-31T11:00:00+00:00"))
    rows = [row(number) for number in range(7)]
    options: Any = {
        "env": "prompt",
        "policy": answering("ok"),
        "split": "train",
        "blocklist": file,
        "source": "s",
    }
    shared: Any = {**options, "out": str(tmp_path / "shared"), "world_size": 2}
    first = await collected(rows, **shared, rank=0, blocklist_at=NOON)
    blocklist(tmp_path / "b.jsonl", ("shop2.example", NOON))
    second = await collected(rows, **shared, rank=1, blocklist_at="2026-02-02T12:00:00+00:00")
    assert sorted(rollout.task["task_id"] for rollout in (*first, *second)) == [0, 2, 3, 4, 5, 6]


def test_what_was_blocked_after_the_time_to_go_by_is_not_seen_so_that_ranks_that_read_later_find_the_same(
    tmp_path: Path,
) -> None:
    rows = [row(number) for number in range(4)]
    early, late = "2026-01-31T11:00:00+00:00", "2026-01-31T13:00:00+00:00"
    file = blocklist(tmp_path / "b.jsonl", ("shop1.example", early))
    first = train(rows, blocklist=file)
    blocklist(
        tmp_path / "b.jsonl", ("shop1.example", early), ("shop1.example", late), ("shop2.example", late)
    )
    assert train(rows, blocklist=file).draw == first.draw
    assert names(train(rows, blocklist=file)) == names(first)


async def test_another_draw_of_the_same_pass_is_refused_and_a_larger_one_or_another_pass_is_not(
    tmp_path: Path,
) -> None:
    rows = [row(number) for number in range(9)]
    options: Any = {"env": "prompt", "policy": answering("ok"), "out": str(tmp_path / "run")}
    options |= {"draw": "uniform"}
    await collected(rows, **options, draw_n=2, draw_seed=1)
    with pytest.raises(
        UsageError, match=r"pass 0 .*drawn otherwise \(uniform, seed 1; now uniform, seed 2\)"
    ):
        await collected(rows, **options, draw_n=2, draw_seed=2)
    assert len(await collected(rows, **options, draw_n=3, draw_seed=1)) == 1
    assert len(await collected(rows, **options, draw_n=2, draw_seed=2, pass_=1)) == 2


async def test_the_record_has_the_draw_and_a_run_goes_on_with_what_it_was_begun_without(
    tmp_path: Path,
) -> None:
    file = blocklist(tmp_path / "b.jsonl", ("shop1.example", "2026-01-31T11:00:00+00:00"))
    rows, out = [row(number) for number in range(5)], tmp_path / "run"
    options: Any = {
        "env": "prompt",
        "policy": answering("ok"),
        "split": "train",
        "blocklist": file,
        "out": str(out),
    }
    options |= {"draw": "uniform", "draw_n": 4}
    first = await collected(rows, **options, blocklist_at=NOON, limit=2)
    kept = msgspec.json.decode((out / "run.json").read_bytes())["draws"]
    assert [(draw["pass"], draw["how"], draw["n"], draw["of"], draw["left_out"]) for draw in kept] == [
        (0, "uniform", 4, 4, 1)
    ]
    assert kept[0]["blocked"] == {"shop1.example": "2026-01-31T11:00:00+00:00"}

    later = "2026-02-01T12:00:00+00:00"  # its time is over, and another domain is blocked
    blocklist(tmp_path / "b.jsonl", ("shop2.example", later))
    warned: list[str] = []
    rest = await collected(rows, **options, blocklist_at=later, on_warning=warned.append)
    assert sorted(rollout.task["task_id"] for rollout in (*first, *rest)) == [0, 2, 3, 4]
    assert any("pass 0 goes on without the 1 domains that it was begun without" in text for text in warned)
    assert msgspec.json.decode((out / "run.json").read_bytes())["draws"] == kept

    fresh = await collected(rows, **options, blocklist_at=later, pass_=1)
    assert sorted(rollout.task["task_id"] for rollout in fresh) == [0, 1, 3, 4]
    assert [draw["pass"] for draw in msgspec.json.decode((out / "run.json").read_bytes())["draws"]] == [0, 1]
