"""The plan is tasks × samples: lazy, the same each time, group by group; the ledger says what is left of it."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.model_server import write_jsonl
from tests.support.task_reading import scanned
from windrow.identity import group_id, rollout_id, seed_of
from windrow.tasks.plan import MAX_DATA_BYTES, Ledger, Plan, TaskList, retried
from windrow.tasks.scan import Source


@pytest.fixture
def source_of(tmp_path: Path):
    numbers = itertools.count()

    def source(rows: Iterable[Any]) -> Source:
        return scanned(write_jsonl(tmp_path / f"{next(numbers)}.jsonl", rows))

    return source


def prompts(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"question {number}", "answer": str(number)} for number in range(count)]


def plan_of(tasks: TaskList, samples: int = 1, pass_: int = 0, split: str | None = None) -> Plan:
    return Plan(tasks, samples=samples, pass_=pass_, behaviour="b", split=split)


def slots(plan: Plan, ledger: Ledger | None = None) -> list[Any]:
    return list(plan.pending(ledger or Ledger(len(plan))))


def order(tasks: TaskList) -> list[str]:
    return [tasks.task(position)["prompt"] for position in range(len(tasks))]


def test_ten_million_planned_slots_cost_little_memory(source_of) -> None:
    source = source_of(prompts(1000))
    tracemalloc.start()
    plan = plan_of(source.select(shuffle=1), samples=10_000)
    ledger = Ledger(len(plan))
    first = list(itertools.islice(plan.pending(ledger), 3))
    ledger.mark_done(9_999_999)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(plan) == ledger.size == 10_000_000
    assert [slot.number for slot in first] == [0, 1, 2]
    assert plan.slot(9_999_999).sample == 9_999
    assert ledger.pending_count == 9_999_999
    assert peak < 4_000_000  # a bit a slot, and the tasks


def test_slots_come_group_by_group(source_of) -> None:
    planned = slots(plan_of(source_of(prompts(3)), samples=2))
    assert [(slot.number, slot.task.index, slot.sample) for slot in planned] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
        (4, 2, 0),
        (5, 2, 1),
    ]
    assert [slot.group for slot in planned[::2]] == [slot.group for slot in planned[1::2]]
    assert len({slot.group for slot in planned}) == 3
    assert len({slot.id for slot in planned}) == 6


def test_a_plan_is_the_same_each_time(source_of) -> None:
    rows = prompts(20)
    first, again = (slots(plan_of(source_of(rows).select(shuffle=7), samples=3)) for _ in range(2))
    assert first == again


def test_ids_are_those_of_the_content(source_of) -> None:
    source = source_of([{"prompt": "a"}, {"prompt": "b"}, {"prompt": "a"}])
    plan = plan_of(source, samples=2, pass_=3, split="train")
    digest, _ = source.identity(2)
    group = group_id(source="tasks", split="train", digest=digest, occurrence=1, pass_=3, behaviour="b")
    slot = plan.slot(5)
    assert (slot.group, slot.id) == (group, rollout_id(group, 1))
    assert slot.seed == seed_of(slot.id, 1)
    assert slot == slots(plan)[5]


@pytest.mark.parametrize("split", [None, 'te"st', "é"])
def test_the_groups_of_all_tasks_are_those_of_each(source_of, split: str | None) -> None:
    plan = plan_of(source_of([*prompts(3), *prompts(2)]).select(), samples=2, pass_=3, split=split)
    assert list(plan.groups()) == [plan.group(position) for position in range(5)]


def test_each_pass_and_each_split_has_ids_of_its_own(source_of) -> None:
    source = source_of(prompts(3))
    plans = [plan_of(source, samples=2), plan_of(source, 2, pass_=1), plan_of(source, 2, split="test")]
    ids = [slot.id for plan in plans for slot in slots(plan)]
    assert len(set(ids)) == len(ids) == 18


def test_more_samples_and_more_tasks_keep_the_ids_there_were(source_of) -> None:
    few = slots(plan_of(source_of(prompts(3)), samples=2))
    many = slots(plan_of(source_of([{"prompt": "new"}, *prompts(5)]), samples=5))
    assert {slot.id for slot in few} < {slot.id for slot in many}


def test_a_limit_takes_the_first_tasks(source_of) -> None:
    source = source_of(prompts(5))
    assert order(source.select(limit=2)) == ["question 0", "question 1"]
    assert order(source.select(limit=9)) == order(source)
    shuffled = order(source.select(shuffle=3))
    assert order(source.select(limit=2, shuffle=3)) == shuffled[:2]


def test_a_shuffle_is_seeded_and_keeps_every_task(source_of) -> None:
    source = source_of(prompts(30))
    first, second = order(source.select(shuffle=1)), order(source.select(shuffle=2))
    assert sorted(first) == sorted(second) == sorted(order(source))
    assert len({tuple(first), tuple(second), tuple(order(source))}) == 3
    assert first == order(source.select(shuffle=1))


def test_rows_added_anywhere_do_not_move_the_others_in_a_shuffle(source_of) -> None:
    rows = prompts(20)
    before = order(source_of(rows).select(shuffle=5))
    added = [{"prompt": f"new {number}"} for number in range(10)]
    after = order(source_of([*added[:5], *reversed(rows), *added[5:]]).select(shuffle=5))
    assert [prompt for prompt in after if prompt.startswith("question")] == before
    places = [after.index(row["prompt"]) for row in added]
    assert max(places) - min(places) > 10  # the new ones are strewn among the old


def test_a_large_row_is_run_whole_and_recorded_by_its_digest(source_of) -> None:
    def row(size: int) -> dict[str, str]:
        return {"prompt": "a" * (size - len('{"prompt":""}'))}

    small, large = slots(plan_of(source_of([row(MAX_DATA_BYTES), row(MAX_DATA_BYTES + 1)])))
    assert small.recorded_task == small.task
    assert large.recorded_task.data is None
    assert large.recorded_task.digest == large.task.digest
    assert large.task.data == row(MAX_DATA_BYTES + 1)


def test_a_retry_is_the_same_slot_one_attempt_on_with_a_seed_of_its_own(source_of) -> None:
    plan = plan_of(source_of(prompts(1)))
    first = plan.slot(0)
    second = retried(first)
    assert (second.id, second.number, second.attempt) == (first.id, first.number, 2)
    assert second.seed == seed_of(first.id, 2) != first.seed
    assert retried(second).attempt == 3


def test_attempts_are_numbered_on_from_what_was_tried(source_of) -> None:
    plan = plan_of(source_of(prompts(2)), samples=2)
    ledger = Ledger(len(plan))
    ledger.mark_done(0)
    ledger.mark_tried(1, 1, again=True)
    ledger.mark_tried(1, 2, again=True)
    ledger.mark_tried(1, 1, again=True)  # lines of several segments may come in any order
    ledger.mark_tried(2, 1, again=False)
    assert [(slot.number, slot.attempt) for slot in slots(plan, ledger)] == [(1, 3), (3, 1)]
    assert (ledger.done_count, ledger.pending_count) == (1, 2)
    assert (ledger.retry_count, ledger.final_failure_count) == (1, 1)


def test_a_redo_reopens_what_is_settled_with_a_new_attempt_number(source_of) -> None:
    plan = plan_of(source_of(prompts(3)))
    ledger = Ledger(len(plan))
    ledger.mark_done(0)
    ledger.mark_tried(1, 4, again=False)
    ledger.mark_done(2)
    ledger.reopen(0, 1)
    ledger.reopen(1, 4)
    assert [(slot.number, slot.attempt) for slot in slots(plan, ledger)] == [(0, 2), (1, 5)]
    assert (ledger.done_count, ledger.final_failure_count) == (1, 0)


def test_a_slot_that_was_done_stays_done_whatever_was_tried_later() -> None:
    ledger = Ledger(1)
    ledger.mark_done(0)
    ledger.mark_done(0)
    ledger.mark_tried(0, 2, again=False)
    assert (ledger.done_count, ledger.pending_count, ledger.final_failure_count) == (1, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 2**64 - 1))), st.sets(st.integers(0, 154)))
def test_slots_marked_together_are_those_marked_one_by_one(
    marks: list[tuple[int, int]], failed: set[int]
) -> None:
    together, single = Ledger(155), Ledger(155)
    for ledger in (together, single):
        for number in failed:
            ledger.mark_tried(number, 1, again=False)
    for first, bits in marks:
        together.mark_all_done(first, bits)
        for number in (first + bit for bit in range(64) if bits >> bit & 1):
            single.mark_done(number)
    for ledger in (together, single):
        ledger.mark_all_done(8, 255)
    assert [*map(together.is_done, range(155))] == [*map(single.is_done, range(155))]
    assert [*map(together.is_pending, range(155))] == [*map(single.is_pending, range(155))]
    assert (together.done_count, together.pending_count) == (single.done_count, single.pending_count)


EVENTS = st.lists(
    st.tuples(st.integers(0, 19), st.sampled_from(["done", "again", "final", "reopen"]), st.integers(1, 5)),
    max_size=60,
)


@given(EVENTS)
def test_a_ledger_equals_a_plain_model_of_it(events: list[tuple[int, str, int]]) -> None:
    ledger = Ledger(20)
    done: set[int] = set()
    final: set[int] = set()
    tried: dict[int, int] = {}
    for number, event, attempt in events:
        attempt = max(attempt, tried.get(number, 0))
        if event == "done":
            ledger.mark_done(number)
            done.add(number)
            final.discard(number)
            continue
        tried[number] = attempt
        if event == "reopen":
            ledger.reopen(number, attempt)
            done.discard(number)
        else:
            ledger.mark_tried(number, attempt, again=event == "again")
        if event == "final" and number not in done:
            final.add(number)
        else:
            final.discard(number)
    assert [n for n in range(20) if ledger.is_done(n)] == sorted(done)
    assert [n for n in range(20) if ledger.is_pending(n)] == sorted(set(range(20)) - done - final)
    assert ledger.pending_count == 20 - len(done) - len(final)
    assert [ledger.next_attempt(n) for n in range(20)] == [tried.get(n, 0) + 1 for n in range(20)]
