"""`datasets:`: a split's files as one list of tasks, each with the name of its own; and what was loaded, taken again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import answering, collected
from tests.support.model_server import write_jsonl
from windrow import Rollout
from windrow.errors import UsageError

pytestmark = pytest.mark.slow

SUMS = [{"id": 1, "prompt": "1 + 1"}, {"id": 2, "prompt": "1 + 2"}]
WORDS = [{"id": 1, "prompt": "cat"}, {"id": 2, "prompt": "1 + 2"}]


@pytest.fixture
def gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Collect the tasks of a configuration with these data sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDROW_CACHE", str(tmp_path / "cache"))
    write_jsonl(tmp_path / "sums.jsonl", SUMS)
    write_jsonl(tmp_path / "words.jsonl", WORDS)

    async def collect(*datasets: dict[str, Any], out: str = "run", **options: Any) -> list[Rollout]:
        options = {"env": "prompt", "policy": answering("yes"), "out": out, **options}
        listed = ", ".join(
            f"{{{', '.join(f'{key}: {value}' for key, value in one.items())}}}" for one in datasets
        )
        if datasets:
            options["sets"] = [f"datasets=[{listed}]", *options.get("sets", ())]
        return sorted(await collected(None, **options), key=lambda rollout: rollout.task.index)

    return collect


TRAIN = {"path": "sums.jsonl", "split": "train"}
MORE = {"path": "words.jsonl", "split": "train"}
BENCHMARK = {"path": "words.jsonl", "split": "benchmark", "num_repeats": 3}


def names(rollouts: list[Rollout]) -> list[tuple[str, str | None, str]]:
    return [(rollout.task.source, rollout.task.split, str(rollout.task.key)) for rollout in rollouts]


async def test_a_split_picks_its_data_sets_and_each_row_keeps_the_name_of_its_own(gathered: Any) -> None:
    found = await gathered(TRAIN, MORE, BENCHMARK, split="train")
    assert names(found) == [
        ("sums", "train", "1"),
        ("sums", "train", "2"),
        ("words", "train", "1"),
        ("words", "train", "2"),
    ]
    assert {
        rollout.task.split for rollout in await gathered(TRAIN, BENCHMARK, split="benchmark", out="b")
    } == {"benchmark"}


async def test_a_data_set_has_the_same_ids_alone_and_with_others(gathered: Any) -> None:
    both = {rollout.id for rollout in await gathered(TRAIN, MORE, out="both")}
    alone = {rollout.id for rollout in await gathered(MORE, out="alone")}
    by_path = await gathered(sets=["tasks.path=words.jsonl"], split="train", out="path")
    assert len(both) == 4
    assert alone < both
    assert {rollout.id for rollout in by_path} == alone


async def test_a_data_set_that_joins_a_split_adds_its_tasks_to_the_run(gathered: Any) -> None:
    assert len(await gathered(TRAIN)) == 2
    assert [source for source, _, _ in names(await gathered(MORE, TRAIN))] == ["words", "words"]
    assert await gathered(TRAIN, MORE) == []


async def test_a_data_set_may_say_how_often_who_plays_and_what_it_is_called(gathered: Any) -> None:
    chat = {
        "path": "sums.jsonl",
        "split": "validation",
        "agent": "chat",
        "source": "arithmetic",
        "num_repeats": 2,
    }
    found = await gathered(chat)
    assert len(found) == 4
    assert {rollout.task.source for rollout in found} == {"arithmetic"}
    assert {rollout.task["agent"] for rollout in found} == {"chat"}
    assert len(await gathered(BENCHMARK, samples=1, out="once")) == 2


async def test_rows_of_nemo_gym_are_given_their_agent_in_their_own_way(gathered: Any) -> None:
    params = {"input": "2 + 2?"}
    rows = [
        {"responses_create_params": params},
        {"responses_create_params": params, "agent_ref": {"name": "own"}},
    ]
    write_jsonl(Path("theirs.jsonl"), rows)
    found = await gathered({"path": "theirs.jsonl", "split": "train", "agent": "math"})
    assert [rollout.task["agent_ref"] for rollout in found] == [{"name": "math"}, {"name": "own"}]


@pytest.mark.parametrize(
    ("datasets", "options", "message"),
    [
        ([TRAIN, BENCHMARK], {}, "of several splits: give --split, one of train, benchmark"),
        ([TRAIN], {"split": "tran"}, r"--split tran: no data set is of it; did you mean 'train'\?"),
        (
            [TRAIN],
            {"sets": ["tasks.path=words.jsonl"]},
            "tasks.path 'words.jsonl' and `datasets` are both given",
        ),
        ([TRAIN], {"source": "mine"}, "tasks.source 'mine' and `datasets` are both given"),
        ([TRAIN, TRAIN], {}, "two data sets of split 'train' are called 'sums'"),
        ([TRAIN, {**MORE, "num_repeats": 2}], {}, r"differ in num_repeats \(none, 2\)"),
        ([{"path": "sums.jsonl"}], {}, "missing required field `split`"),
        ([{**TRAIN, "split": "trian"}], {}, "known: train, validation, benchmark"),
    ],
)
async def test_what_does_not_say_which_tasks_is_refused(
    gathered: Any, datasets: list[dict[str, Any]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        await gathered(*datasets, **options)


LOADER = """
from pathlib import Path

def load():
    with open("loaded", "a") as file:
        file.write("x")
    yield {"prompt": "hello"}
"""


async def test_what_was_loaded_is_taken_again_while_its_input_is_the_same(gathered: Any) -> None:
    Path("my_loader_once.py").write_text(LOADER)
    dataset = {"path": "my_loader_once:load", "split": "train"}
    first = await gathered(dataset, reuse_prepared=True, out="a")
    again = await gathered(dataset, reuse_prepared=True, out="b")
    assert [rollout.id for rollout in first] == [rollout.id for rollout in again]
    assert Path("loaded").read_text() == "x"
    await gathered(dataset, out="c")
    assert Path("loaded").read_text() == "xx"


async def test_an_input_that_has_changed_is_refused_until_it_is_prepared_anew(gathered: Any) -> None:
    assert len(await gathered(TRAIN, reuse_prepared=True)) == 2
    write_jsonl(Path("sums.jsonl"), [*SUMS, {"prompt": "2 + 2"}])
    with pytest.raises(
        UsageError, match=r"sums\.jsonl has changed since its tasks were prepared; leave out --reuse"
    ):
        await gathered(TRAIN, reuse_prepared=True)
    assert len(await gathered(TRAIN)) == 1
    assert await gathered(TRAIN, reuse_prepared=True) == []


@pytest.mark.parametrize("spoil", [lambda kept: kept.unlink(), lambda kept: kept.write_text("{}\n")])
async def test_what_was_kept_and_is_not_as_it_was_is_prepared_anew(
    gathered: Any, monkeypatch: pytest.MonkeyPatch, spoil: Any
) -> None:
    monkeypatch.setenv("WINDROW_CACHE", "own-cache")
    first = await gathered(TRAIN, reuse_prepared=True, out="a")
    [kept] = Path("own-cache/prepared").glob("*.jsonl")
    spoil(kept)
    again = await gathered(TRAIN, reuse_prepared=True, out="b")
    assert [rollout.id for rollout in first] == [rollout.id for rollout in again]


async def test_a_cache_that_cannot_be_written_is_said(gathered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDROW_CACHE", "sums.jsonl")
    with pytest.raises(
        UsageError, match=r"cannot keep the tasks of sums\.jsonl .* WINDROW_CACHE names another"
    ):
        await gathered(TRAIN, reuse_prepared=True)


async def test_a_pipe_is_read_each_time(gathered: Any) -> None:
    place = os.open(os.devnull, os.O_RDONLY)
    for prompt in ("1 + 1", "3 + 3"):
        reads, writes = os.pipe()
        os.write(writes, json.dumps({"prompt": prompt}).encode())
        os.dup2(reads, place)
        os.close(reads)
        os.close(writes)
        piped = {"path": f"/dev/fd/{place}", "split": "train"}
        [rollout] = await gathered(piped, reuse_prepared=True, out=prompt[0])
        assert rollout.messages[0].text == prompt
    os.close(place)


async def test_a_bad_row_is_reported_by_its_own_place_and_nothing_is_kept(gathered: Any) -> None:
    Path("sums.jsonl").write_text('{"prompt": "1 + 1"}\nnot JSON\n')
    for _ in range(2):
        with pytest.raises(UsageError, match=r"sums\.jsonl:2: not valid JSON"):
            await gathered(TRAIN, reuse_prepared=True)
