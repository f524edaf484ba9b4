"""Run directories of others, changed in every way: no command imports, starts, sends or reads what they name, writes outside
of its own place, hangs, or stumbles.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutations import VALUES, fuzz
from tests.golden import looking
from tests.golden.looking import KIND_OF
from tests.support.canary import MODULE, SCORE, SECRET, USER, VARIABLE, WORLD, Canary, canary

NAMES = (
    "plain",
    "chat",
    "tools",
    "match",
    "judged",
    "rescored",
    "webgym",
    "nemo-gym",
    "passes",
    "ranks",
    "hud",
    "tokens",
)
FILES = (
    "run.json",
    "run.json",
    "run.json",
    "rollouts",
    "rollouts",
    "tasks",
    "scores",
    "judgements",
    "metrics.json",
)
READING = (
    "ls runs",
    "show {run}",
    "show {run} {id} --judgements",
    "show {run} --attempts all --json",
    "stats {run}",
    "stats {run} --json",
    "stats {run} --as webgym",
    "profile {run}",
    "verify {run}",
    "tokens {run}",
    "rescore {run} --list",
    "merge {run} -o out/merged",
    *(f"export {{run}} {flags.replace('-o ', '-o out/')}" for flags in looking.EXPORTS.values()),
    "export {run} --to webgym --form jsonl -o out",
)
ACTING = (
    "stats {run} --write",
    "replay {run} {id}",
    "replay {run} {id}",
    "rescore {run} --quiet",
    "rescore {run} --quiet --failed-only",
    "rescore {run} --quiet --scorer exact",
    "rescore {run} --use 1",
)
SERVED = ("hud", "tokens")  # worlds that need a server
HUGE = (10**9, 2**62, 10**18, -1, "../../x", "../x", "/tmp/x", "a/b", "..", "\x1b[2J", {"x": 10**9})
KEYS = ("env", "agent", "tools", "services", "judge", "scorers", "prompt", "user", "mcp_config", "split", "seats", "head")  # fmt: skip


@pytest.fixture(scope="module")
def bird(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canary]:
    with canary(tmp_path_factory.mktemp("canary")) as found:
        yield found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands are typed: a folder in a folder that nobody writes to."""
    monkeypatch.syspath_prepend(str(looking.HERE / "parts"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("GOLDEN_URL", "http://127.0.0.1:9")
    folder = tmp_path / "outside" / "here"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield (*path, key)
        yield from places(below, (*path, key))


def changed(document: Any, where: int, what: int, values: Sequence[Any]) -> Any:
    """The document with one value taken out, replaced, or put in under a key that means something."""
    document = copy.deepcopy(document)
    found = list(places(document))
    if not found:
        return copy.deepcopy(values[what % len(values)])
    *parents, last = found[where % len(found)]
    holder = document
    for key in parents:
        holder = holder[key]
    value = copy.deepcopy(values[what % len(values)])
    if what % 11 == 0:
        del holder[last]
    elif what % 3 == 0 and isinstance(holder, dict):
        holder[KEYS[where % len(KEYS)]] = value
    else:
        holder[last] = value
    return document


def tamper(run: Path, file: str, line: int, where: int, what: int, values: Sequence[Any]) -> None:
    """Change one JSON value of a file, or of a line of a log."""
    if file.endswith(".json"):
        path = run / file
        path.write_bytes(_text(changed(json.loads(path.read_bytes()), where, what, values)))
        return
    logs = sorted(path for path in run.glob(f"{file}*.jsonl") if path.stat().st_size)
    if logs:
        path = logs[line % len(logs)]
        lines = path.read_bytes().splitlines()
        number = line // len(logs) % len(lines)
        lines[number] = _text(changed(json.loads(lines[number]), where, what, values))
        path.write_bytes(b"\n".join(lines) + b"\n")


def _text(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode("utf-8", "surrogatepass")


def furnish(here: Path, name: str) -> Path:
    for path in here.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    looking.furnish(here, name)
    (here / "out").mkdir()
    return Path("runs", name)


def some_id(run: Path, number: int) -> str:
    lines = [line for path in sorted(run.glob("rollouts*.jsonl")) for line in path.open("rb")]
    return str(json.loads(lines[number % len(lines)])["id"])


def everything(folder: Path, *, but: Path) -> list[Path]:
    """All files in a folder that are not in another one."""
    return sorted(path for path in folder.rglob("*") if not path.is_relative_to(but))


def typed(commands: Sequence[str], run: Path, id: str) -> str:
    """What the commands say. None may end in an internal error."""
    said = []
    for command in commands:
        outcome = looking.typed(command.format(run=run, id=id))
        assert "internal error" not in outcome.err, (command, outcome.err)
        assert outcome.code in (0, 1, 2, 3), (command, outcome)
        said += [outcome.out, outcome.err]
    return "".join(said)


def aimed(bird: Canary) -> list[tuple[str, tuple[str, ...], Any]]:
    """Values that an enemy puts where something would come of them: the file, the place in it, and the value."""
    scorer = {"weight": 1.0, "settings": {}, "version": None}
    in_run = {
        ("config", "env", "name"): [WORLD, "web", "hud"],
        ("config", "env"): [{"name": "chat", "settings": {"user": {"function": USER}}}],
        ("config", "agent", "name"): [USER, "nemo-gym"],
        ("config", "scorers"): [[{"name": SCORE}], [{"name": "rubric", "settings": {"criteria": ["kind"]}}]],
        ("config", "judge"): [bird.model, {"model": f"scripted:{MODULE}:policy"}],
        ("config", "policy"): [bird.model],
        ("config", "tools"): [bird.tools, [{"function": SCORE}]],
        ("config", "services"): [{"s": {"command": bird.command}}],
        ("config", "prompt"): [f"${{{VARIABLE}}}", "../secret"],
        ("config", "track"): [[f"tensorboard:{VARIABLE}"]],
        ("config", "out"): ["../x"],
        ("config", "samples"): [10**9],
        ("config", "pass"): [10**9],
        ("split",): ["../x"],
        ("behaviour", "of", "env", "name"): [WORLD],
        ("grading", "of"): [
            {"env": None, "scorers": [{"name": SCORE, **scorer}]},
            {"env": WORLD, "scorers": [{"name": "env", "unit": "group", **scorer}]},
            {"env": None, "scorers": [{"name": "rubric", **scorer}]},
        ],
    }
    in_lines = {
        ("env",): [WORLD, "hud"],
        ("agent",): [USER],
        ("task", "data", "env"): [WORLD, "hud"],
        ("task", "data", "agent"): [USER],
        ("task", "data", "mcp_config"): [bird.servers],
        ("task", "split"): ["../x"],
        ("seats",): [10**9],
        ("episode",): ["e"],
        ("attempt",): [2],
        ("status",): ["failed"],
    }
    in_tasks = {("data", "env"): [WORLD], ("data", "agent"): [USER], ("data", "mcp_config"): [bird.servers]}
    files = {"run.json": in_run, "rollouts": in_lines, "tasks": in_tasks, "scores": {("scorer",): [SCORE]}}
    return [(file, *each) for file, found in files.items() for each in _each(found)]


def _each(found: dict[tuple[str, ...], list[Any]]) -> Iterator[tuple[tuple[str, ...], Any]]:
    return ((place, value) for place, values in found.items() for value in values)


def put(run: Path, file: str, place: Sequence[str], value: Any) -> None:
    """Put a value into a JSON file, or into every line of a log."""
    logs = [run / file] if file.endswith(".json") else run.glob(f"{file}*.jsonl")
    for path in logs:
        texts = [path.read_bytes()] if file.endswith(".json") else path.read_bytes().splitlines()
        documents = [json.loads(text) for text in texts]
        for document in documents:
            holder = document
            for key in place[:-1]:
                if not isinstance(holder.get(key), dict):
                    holder[key] = {}
                holder = holder[key]
            holder[place[-1]] = value
        path.write_bytes(b"".join(_text(document) + b"\n" for document in documents))


RANDOM = st.tuples(
    st.sampled_from(FILES), st.integers(0, 2**12), st.integers(0, 2**16), st.integers(0, 2**16)
)


@fuzz(80)
@given(
    name=st.sampled_from(NAMES),
    shots=st.lists(st.integers(0, 2**10), max_size=3),
    edits=st.lists(RANDOM, max_size=2),
    reading=st.lists(st.sampled_from(READING), max_size=3),
    acting=st.lists(st.sampled_from(ACTING), max_size=2),
    resume=st.booleans(),
    rollout=st.integers(0, 20),
)
def test_no_command_acts_on_what_a_foreign_run_names(
    name: str,
    shots: list[int],
    edits: Any,
    reading: list[str],
    acting: list[str],
    resume: bool,
    rollout: int,
    here: Path,
    bird: Canary,
) -> None:
    run = furnish(here, name)
    id = some_id(run, rollout)
    targets = aimed(bird)
    for shot in shots:
        put(run, *targets[shot % len(targets)])
    for edit in edits:
        tamper(run, *edit, [*bird.values() * 3, *HUGE, *VALUES])
    outside = everything(here.parent, but=here)
    resuming = KIND_OF[name].resume[:1] if resume and name not in SERVED else []
    said = typed([*reading, *acting, *resuming], run, id)
    assert bird.sung() == []
    assert SECRET not in said
    assert not any(SECRET.encode() in path.read_bytes() for path in here.rglob("*") if path.is_file())
    assert everything(here.parent, but=here) == outside


TRUSTED = {
    "code of an environment": ("plain", ("env",), "replay {run} {id}", ["imported"]),
    "code of a line": ("plain", ("env",), "stats {run} --write", ["imported"]),
    "code of a scorer": ("plain", ("grading", "of"), "rescore {run} --quiet", ["imported"]),
    "a command": ("tools", ("config", "tools"), "replay {run} {id}", ["ran"]),
    "a variable, sent to an address": ("judged", ("config", "judge"), "rescore {run} --quiet", [SECRET]),
}


@pytest.mark.parametrize("what", TRUSTED)
def test_with_trust_run_the_same_commands_do_act(what: str, here: Path, bird: Canary) -> None:
    name, place, command, touched = TRUSTED[what]
    run = furnish(here, name)
    id = some_id(run, 0)
    put(run, *next(target for target in aimed(bird) if target[1] == place))
    said = typed([command], run, id)
    assert bird.sung() == []
    assert "--trust-run" in said
    typed([f"{command} --trust-run"], run, id)
    sung = bird.sung()
    assert sung
    assert all(any(word in song for song in sung) for word in touched)
