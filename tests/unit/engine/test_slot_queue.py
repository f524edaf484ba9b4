"""Which slots may start: limits of an environment or an agent hold back their own, and nobody else's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from windrow.engine.slot_queue import MOST_ASIDE, Name, SlotQueue
from windrow.records import Task
from windrow.tasks.plan import Slot


def slot(number: int, env: str) -> Slot:
    task = Task(key=env, digest="d", source="s", split=None, index=number, tags=(), data={"env": env})
    return Slot(
        number=number,
        id=str(number),
        attempt=1,
        group="g",
        sample=0,
        seed=number,
        task=task,
        recorded_task=task,
    )


def names(slot: Slot) -> tuple[Name, ...]:
    return ("env", slot.task["env"]), ("agent", "chat")


def waiting(envs: Sequence[str], **limits: int) -> SlotQueue:
    following = partial(next, iter([slot(n, env) for n, env in enumerate(envs)]), None)
    return SlotQueue(following, limits={("env", env): most for env, most in limits.items()}, names=names)


def test_a_full_environment_is_overtaken_and_comes_first_when_it_has_room() -> None:
    queue = waiting(["web", "web", "text", "web", "text"], web=1)
    taken = [queue.take() for _ in range(4)]
    assert [slot and slot.number for slot in taken] == [0, 2, 4, None]
    assert not queue.exhausted
    assert taken[0] is not None
    queue.release(taken[0])
    following = queue.take()
    assert following is not None
    assert following.number == 1


def test_only_so_many_wait_aside() -> None:
    queue = waiting(["web"] * (MOST_ASIDE + 50) + ["text"], web=1)
    assert queue.take() is not None
    assert queue.take() is None  # the last one is out of sight


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=60), st.data())
def test_every_slot_is_given_out_once_and_no_limit_is_exceeded(envs: list[str], data: st.DataObject) -> None:
    limits = {"a": 1, "b": 2}
    queue = waiting(envs, **limits)
    running: list[Slot] = []
    given_out: list[int] = []
    while running or not queue.exhausted:
        following = queue.take() if len(running) < 5 else None
        if following is not None:
            given_out.append(following.number)
            running.append(following)
        elif running:
            queue.release(running.pop(data.draw(st.integers(0, len(running) - 1))))
        now = Counter(slot.task["env"] for slot in running)
        assert all(now[env] <= most for env, most in limits.items())
    assert sorted(given_out) == list(range(len(envs)))
