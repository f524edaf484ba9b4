"""Identity is content: what a rollout's id depends on, what it does not, and the recipe itself, pinned."""

from __future__ import annotations

import hashlib
import importlib
import json
import linecache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.support.model_server import write_jsonl
from tests.support.named_parts import Loud
from windrow.collecting.opening import open_collection
from windrow.collecting.resolve import resolve
from windrow.config import load_config
from windrow.identity import canonical, digest, episode_id, fingerprint, group_id, rollout_id, seed_of

ROWS = [{"prompt": f"question {n}", "answer": str(n)} for n in range(4)]
BASE = {"model": "m", "base_url": "http://127.0.0.1:1/v1"}


@pytest.fixture
def ids(tmp_path: Path):
    """The rollout ids of a run, by the prompt that they are for; nothing is written or sent."""

    def of(
        rows: Any = ROWS, path: str = "tasks.jsonl", sets: Any = (), **options: Any
    ) -> dict[str, list[str]]:
        file = write_jsonl(tmp_path / path, rows)
        loaded = load_config((), {**BASE, "tasks": str(file), **options}, sets)
        plan = open_collection(resolve(loaded), stored=False).plan
        found: dict[str, list[str]] = {}
        for number in range(len(plan)):
            slot = plan.slot(number)
            found.setdefault(slot.task["prompt"], []).append(slot.id)
        return found

    return of


def test_no_id_depends_on_path_or_position(ids) -> None:
    usual = ids()
    assert ids(path="elsewhere/tasks.jsonl") == usual
    assert ids(path="elsewhere/other.jsonl", source="tasks") == usual
    assert ids(rows=list(reversed(ROWS))) == usual
    assert ids(shuffle=3) == usual
    assert ids(limit=2).items() <= usual.items()
    assert usual.items() <= ids(rows=[{"prompt": "new", "answer": "0"}, *ROWS]).items()


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 3},
        {"base_url": "https://example.test/other/v1"},
        {"api_key_env": "MY_API_KEY"},
        {"call_timeout": 1.0},
        {"tool_timeout": 1.0},
        {"score_timeout": 1.0},
        {"episode_timeout": 1.0},
        {"retries": 5},
        {"call_retries": 0},
        {"out": "elsewhere"},
        {"lock": False},
        {"scorers": ["contains=2"]},
        {"sets": ["policy.backoff_s=9", "policy.probe=false", "limits.close_timeout_s=1"]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_no_id_depends_on_what_is_volatile(ids, monkeypatch, options: dict[str, Any]) -> None:
    usual = ids()
    monkeypatch.setenv("MY_API_KEY", "sk-another-key")
    assert ids(**options) == usual


@pytest.mark.parametrize(
    "options",
    [
        {"source": "other"},
        {"path": "other.jsonl"},
        {"split": "train"},
        {"split": "test"},
        {"pass_": 1},
        {"model": "m2"},
        {"temperature": 0.0},
        {"top_p": 0.5},
        {"max_tokens": 5},
        {"sets": ["policy.sampling.extra={a: 1}"]},
        {"seeds": "id"},
        {"seeds": "sample"},
        {"max_turns": 3},
        {"max_episode_tokens": 100},
        {"max_tool_calls": 0},
        {"env": "tests.support.named_parts:Loud"},
        {"env": "tests.support.named_parts:Loud", "sets": ["env.settings.suffix=x"]},
        {"agent": "tests.support.named_parts:Twice"},
    ],
    ids=str,
)
def test_every_id_depends_on_what_shapes_the_rollout(ids, options: dict[str, Any]) -> None:
    usual, changed = ids(), ids(**options)
    assert usual.keys() == changed.keys()
    assert not {id for found in usual.values() for id in found} & {id for f in changed.values() for id in f}


def test_an_id_depends_on_the_version_of_the_env_and_on_its_settings(ids, monkeypatch) -> None:
    loud = {"env": "tests.support.named_parts:Loud"}
    found = [
        ids(**loud),
        ids(sets=["env.settings.suffix=x"], **loud),
        ids(sets=["env.settings.suffix=y"], **loud),
    ]
    monkeypatch.setattr(Loud, "version", 2)
    found.append(ids(**loud))
    assert len({kinds["question 0"][0] for kinds in found}) == 4


def test_a_script_is_known_by_what_it_says_not_by_where_it_is(ids, tmp_path: Path) -> None:
    def scripted(folder: str, reply: str) -> dict[str, list[str]]:
        script = tmp_path / folder / "script.yaml"
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"replies: [{{reply: {reply}}}]")
        found: dict[str, list[str]] = ids(model=f"scripted:{script}", base_url=None)
        return found

    assert scripted("a", "one") == scripted("b", "one") != scripted("a", "two")


def test_an_id_depends_on_every_field_of_the_row(ids) -> None:
    usual = ids()
    for field, value in [
        ("answer", "9"),
        ("id", "a"),
        ("tags", ["x"]),
        ("sampling", {"top_k": 1}),
        ("note", 1),
    ]:
        assert ids(rows=[{**ROWS[0], field: value}])["question 0"] != usual["question 0"]
    turned = dict(reversed(ROWS[0].items()))
    assert ids(rows=[turned])["question 0"] == usual["question 0"]


def test_samples_extend_and_two_rows_alike_have_two_ids(ids) -> None:
    few, many = ids(samples=2), ids(samples=5)
    assert all(many[prompt][:2] == found for prompt, found in few.items())
    twice = ids(rows=[ROWS[0], *ROWS])["question 0"]
    assert len(set(twice)) == 2
    assert twice[0] == ids()["question 0"][0]


def test_a_flag_that_overrules_the_rows_own_sampling_changes_their_ids(ids, tmp_path: Path) -> None:
    rows = [{"prompt": "a", "sampling": {"temperature": 0.5}}]
    config = tmp_path / "run.yaml"
    config.write_text("policy: {sampling: {temperature: 0.1}}")
    file = write_jsonl(tmp_path / "tasks.jsonl", rows)
    by_file = resolve(load_config([config], {**BASE, "tasks": str(file)})).behaviour.hash
    by_flag = resolve(load_config((), {**BASE, "tasks": str(file), "temperature": 0.1})).behaviour.hash
    assert by_file != by_flag  # 0.5 is sent by the one, 0.1 by the other


async def test_changed_code_without_a_version_is_warned_of_and_keeps_its_ids(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "env_without_version.py"
    source = (
        Path(importlib.import_module("tests.support.named_parts").__file__ or "")
        .read_text()
        .replace("int | None = 1", "int | None = None")
    )
    script = tmp_path / "script.yaml"
    script.write_text("replies: [{reply: hello}]")
    warnings: list[str] = []
    for text in (source, source.replace("in capitals", "in CAPITALS")):
        module.write_text(text)
        linecache.checkcache()
        importlib.reload(importlib.import_module("env_without_version"))
        options = {"model": f"scripted:{script}", "out": str(tmp_path / "run"), "on_warning": warnings.append}
        async for _ in windrow.collect(ROWS, env="env_without_version:Loud", **options):
            assert warnings == []
    assert len(list(windrow.load(tmp_path / "run", attempts="all"))) == len(ROWS)  # the second call ran none
    (warning,) = warnings
    assert "the source of env env_without_version:Loud has changed" in warning


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=10,
)


@given(JSON)
def test_canonical_json_is_sorted_compact_and_reads_back(value: Any) -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(item) for key, item in reversed(value.items())}
        return [turned(item) for item in value] if isinstance(value, list) else value

    assert canonical(turned(value)) == canonical(value)
    assert json.loads(canonical(value)) == value
    assert digest(value) == hashlib.sha256(canonical(value)).hexdigest()[:32]


def test_canonical_json_is_this_form() -> None:
    value = {
        "b": [1, 1.0, True, None, "é😀\n\x7f/"],
        "a": {"z": 0.1, "y": 10**20},
        "": 1e-7,
        "é": {},
        "Z": -0.0,
    }
    assert canonical(value).decode() == (
        '{"":1e-7,"Z":-0.0,"a":{"y":100000000000000000000,"z":0.1},"b":[1,1.0,true,null,"é😀\\n\x7f/"],"é":{}}'
    )


@given(st.text("0123456789abcdef", min_size=24, max_size=24), st.integers(1, 10**6))
def test_a_seed_has_31_bits_and_belongs_to_one_attempt(id: str, attempt: int) -> None:
    assert 0 <= seed_of(id, attempt) < 2**31
    assert seed_of(id, attempt) == int(hashlib.sha256(f"{id}:{attempt}".encode()).hexdigest()[:8], 16) % 2**31
    assert seed_of(id, attempt) != seed_of(id, attempt + 1)


def test_the_recipe_of_ids_is_the_documented_one() -> None:
    def hashed(*parts: Any) -> str:
        text = json.dumps(parts, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    group = group_id(source="quiz", split=None, digest="d", occurrence=2, pass_=3, behaviour="b")
    assert group == hashed("group", "quiz", None, "d", 2, 3, "b")
    assert rollout_id(group, 4) == hashed("rollout", group, 4, None)
    assert rollout_id(group, 4, seat=1) == hashed("rollout", group, 4, 1)
    assert episode_id(group, 4) == hashed("episode", group, 4)


def test_golden_identities(ids) -> None:
    """Runs on disk have these names. A change of any value orphans every run there is: it needs a new schema."""
    row = {"prompt": "What is 2 + 2?", "answer": "4"}
    group = group_id(
        source="quiz", split="test", digest=digest(row), occurrence=0, pass_=0, behaviour="0123456789abcdef"
    )
    found = {
        "digest": digest(row),
        "fingerprint": fingerprint({"model": "m"}),
        "group": group,
        "rollout": rollout_id(group, 0),
        "episode": episode_id(group, 0),
        "seed": seed_of(rollout_id(group, 0), 1),
        "collected": ids(rows=[row], samples=2)["What is 2 + 2?"],
    }
    assert found == {
        "digest": "ade05e3150dbfcd20d40e2220fbf2589",
        "fingerprint": "548f58d1c36c715b",
        "group": "b0d4a2e843945f8fb4030a08",
        "rollout": "55a8f6106d4119677afc6f7e",
        "episode": "2cbcf3593cd5e408903a8be6",
        "seed": 1828171136,
        "collected": ["af290c7d3b58e180fe77aa26", "d2abc13a1d087e58f94a6b76"],
    }
