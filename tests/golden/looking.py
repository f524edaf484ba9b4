"""What is to be seen of a golden run, through public doors alone: the command, and the names of `windrow` itself.

The generator writes down what is seen here, the tests compare it. Nothing here knows where a module of Windrow is.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import shlex
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

import windrow
from windrow.cli.main import main

HERE = Path(__file__).parent
RUNS, EXPECTED = HERE / "runs", HERE / "expected"
SMALL = 1500  # bytes of a file that is kept whole; of a larger one, its hash
LOGS = ("rollouts", "scores", "judgements", "tasks", "conflicts")
# What differs each time a run is collected or judged.
MEASURED = ("graded_at", "seconds", "started_at", "timing", "tools_seconds", "first_token_s", "created_at")
# What the store has added to lines since the golden runs were made.
ADDED = ("crc32", "lamport")
# The settings that there are since then.
ADDED_SETTINGS = ("isolate", "max_row_mb", "replies_in_flight_mb")

EXPORTS = {
    "sft": "--to sft -o sft.jsonl",
    "sft-openai": "--to sft --form openai -o sft-openai.jsonl",
    "trl": "--to trl --advantages grpo -o trl.jsonl",
    "tinker": "--to tinker -o tinker_rollout_summaries.jsonl",
    "hud": "--to hud -o hud.jsonl",
    "nemo-gym": "--to nemo-gym -o gym.jsonl",
    "webgym": "--to webgym -o webgym.jsonl",
    "parquet": "--to parquet -o table.parquet",
    "failed": "--to sft --failed --where attempt>=1 -o failed.jsonl",
}
NUMBERS = {  # commands whose JSON output is compared number by number
    "stats": "stats {run} --json",
    "profile": "profile {run} --json",
    "verify": "verify {run} --json",
    "tokens": "tokens {run} --json",
    "webgym": "stats {run} --as webgym --json",
}


class Kind(NamedTuple):
    """A golden run, or several that belong together, as kinds.yaml has it."""

    name: str
    runs: list[str]
    made: list[tuple[str, int]]
    resume: list[str]
    code: int
    rescore: list[str]
    merge: list[str]
    damage: list[str]
    anew: bool
    replay: bool
    server: str | None


def _kind(name: str, told: dict[str, Any]) -> Kind:
    lines = [line if isinstance(line, dict) else {"windrow": line} for line in told["made"]]
    made = [(line["windrow"], line.get("code", 0)) for line in lines]
    return Kind(
        name=name,
        runs=told.get("runs", [name]),
        made=made,
        resume=told.get("resume", [command for command, _ in made]),
        code=told.get("code", 0),
        rescore=told.get("rescore", []),
        merge=told.get("merge", []),
        damage=told.get("damage", []),
        anew=told.get("anew", not told.get("merge")),
        replay=told.get("replay", True),
        server=told.get("server"),
    )


KINDS = {name: _kind(name, told) for name, told in yaml.safe_load((HERE / "kinds.yaml").read_text()).items()}
KIND_OF = {run: kind for kind in KINDS.values() for run in kind.runs}


# -- a folder to work in


def furnish(folder: Path, *runs: str) -> Path:
    """A folder in which the command lines of kinds.yaml can be typed, with copies of these runs."""
    shutil.copytree(HERE / "parts", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tasks", "configs"):
        shutil.copytree(HERE / name, folder / name, dirs_exist_ok=True)
    (folder / "runs").mkdir(exist_ok=True)
    for run in runs:
        shutil.copytree(RUNS / run, folder / "runs" / run)
    return folder


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


def typed(command: str) -> Outcome:
    """What `windrow COMMAND` does here, in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = main(shlex.split(command))
    return Outcome(code, *(file.buffer.getvalue().decode() for file in (out, err)))  # type: ignore[attr-defined]


# -- what is to be seen


def read(run: str) -> dict[str, Any]:
    """The run as it is read: its rollouts, the list of them, and the numbers."""
    path = Path("runs", run)
    found = {(rollout["id"], rollout["attempt"]): rollout for rollout in loaded(path, "all")}
    shown = _lines(typed(f"show {path} --json --attempts all").out)
    (path / "metrics.json").unlink(missing_ok=True)
    written = typed(f"stats {path} --json --write --trust-run")
    return {
        "final": [[rollout["id"], rollout["attempt"]] for rollout in loaded(path, "final")],
        "rollouts": {f"{id}:{attempt}": hashed(found[id, attempt]) for id, attempt in found},
        "first": next(iter(found.values())),
        "shown": [_listed(rollout) for rollout in shown],
        "numbers": {name: _numbers(line.format(run=path)) for name, line in NUMBERS.items()},
        "metrics": [written.code, json.loads((path / "metrics.json").read_bytes())],
        "replay": [typed(f"replay {path} {id} --trust-run").code for id in _replayed(run, found)],
    }


def exported(run: str) -> dict[str, Any]:
    """By format, the exit code, and each file: as it is where it is small, else its hash."""
    found: dict[str, Any] = {}
    for name, flags in EXPORTS.items():
        folder = Path("exports", name)
        folder.mkdir(parents=True)
        flags, _, file = flags.rpartition(" ")
        code = typed(f"export runs/{run} {flags} {folder / file}").code
        found[name] = {
            "code": code,
            "files": {file.name: _content(file) for file in sorted(folder.iterdir())},
        }
    return found


def resumed(kind: Kind, run: str) -> dict[str, Any]:
    """The exit codes of its commands, the logs that are others afterwards, and what is kept of torn tails."""
    path = Path("runs", run)
    before = logs(path)
    commands = kind.resume if len(kind.runs) == 1 else [kind.resume[kind.runs.index(run)]]
    codes = [typed(command).code for command in commands]
    after = logs(path)
    changed = {
        name: hashed(after.get(name, b""))
        for name in {*before, *after}
        if after.get(name, b"") != before.get(name, b"")
    }
    torn = {file.name.partition(".jsonl")[0]: hashed(file.read_bytes()) for file in path.glob("torn/*")}
    return {"codes": codes, "changed": changed, "torn": torn, "manifest": manifest(path)}


def rescored(kind: Kind, run: str) -> dict[str, Any]:
    """The exit codes of its commands, the lines that they have added, and what then counts."""
    path = Path("runs", run)
    before = logs(path)
    codes = [typed(f"{command} --trust-run").code for command in kind.rescore]
    added = {
        name: sorted(
            (_unmeasured(json.loads(line)) for line in whole[len(before.get(name, b"")) :].splitlines()),
            key=canonical,
        )
        for name, whole in logs(path).items()
        if whole != before.get(name, b"")
    }
    verdicts = {
        f"{rollout['id']}:{rollout['attempt']}": [
            rollout["grade"],
            rollout["reward"],
            rollout["scores"],
            rollout["metrics"],
        ]
        for rollout in loaded(path, "final")
    }
    return {"codes": codes, "added": added, "verdicts": verdicts}


def collected(run: Path) -> dict[str, Any]:
    """A run without what was measured: every line of its logs, in an order of their own, and run.json."""
    lines: dict[str, list[Any]] = {}
    for name, log in logs(run).items():
        kind = name.partition(".")[0]
        lines[kind] = lines.get(kind, []) + [_unmeasured(json.loads(line)) for line in log.splitlines()]
    found: dict[str, Any] = {kind: sorted(each, key=canonical) for kind, each in lines.items()}
    return {**found, "manifest": _unmeasured(manifest(run))}


def loaded(run: Path, attempts: str) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [json.loads(msgspec.json.encode(rollout)) for rollout in windrow.load(run, attempts=attempts)]


def logs(run: Path) -> dict[str, bytes]:
    """The bytes of every log of a run, by its name."""
    found = [file for name in LOGS for file in (*run.glob(f"{name}.jsonl"), *run.glob(f"{name}.*.jsonl"))]
    return {file.name: file.read_bytes() for file in sorted(found)}


def manifest(run: Path) -> Any:
    """run.json, without which Windrow wrote it last, with what, and whose key signed it."""
    told = json.loads((run / "run.json").read_bytes())
    told["config"] = _without(ADDED_SETTINGS, told["config"])
    return {key: value for key, value in told.items() if key not in ("windrow", "versions", "signature")}


# -- comparing


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def hashed(value: Any) -> str:
    raw = value if isinstance(value, bytes) else canonical(value).encode()
    return hashlib.sha256(raw).hexdigest()


def differences(found: Any, expected: Any, where: str = "") -> Iterator[str]:
    """Where two JSON values differ; numbers may differ by what the order of a sum makes of them."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted({*found, *expected}):
            if key not in found or key not in expected:
                yield f"{where}.{key} is {'missing' if key not in found else 'new'}"
            else:
                yield from differences(found[key], expected[key], f"{where}.{key}")
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for number, pair in enumerate(zip(found, expected, strict=True)):
            yield from differences(*pair, f"{where}[{number}]")
    elif _is_number(found) and _is_number(expected):
        if not math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{where}: {found!r}, expected {expected!r}"
    elif found != expected or type(found) is not type(expected):
        yield f"{where}: {found!r:.300}, expected {expected!r:.300}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _replayed(run: str, found: Any) -> list[str]:
    """The rollouts that are played again: three of them, where their world needs no server."""
    return [id for id, attempt in found if attempt == 1][:3] if KIND_OF[run].replay else []


def _numbers(command: str) -> list[Any]:
    done = typed(command)
    return [done.code, json.loads(done.out) if done.out.strip() else None]


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def _listed(rollout: Any) -> list[Any]:
    task = rollout["task"]
    told = [
        rollout[name] for name in ("id", "attempt", "sample", "seat", "status", "stop", "grade", "reward")
    ]
    return [task["index"], task["key"], *told, hashed(rollout)]


def _unmeasured(value: Any) -> Any:
    """Without what differs each time, and what was added."""
    return _without((*MEASURED, *ADDED), value)


def _without(keys: tuple[str, ...], value: Any) -> Any:
    """Without these keys, however deep they are."""
    if isinstance(value, dict):
        return {key: _without(keys, inner) for key, inner in value.items() if key not in keys}
    return [_without(keys, inner) for inner in value] if isinstance(value, list) else value


def _content(file: Path) -> Any:
    """A file as text if it is small, else its size and hash; a table of Parquet by its schema and its rows."""
    raw = file.read_bytes()
    if file.suffix == ".parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(file)
        columns = [f"{field.name}: {field.type}" for field in table.schema]
        return {"rows": table.num_rows, "columns": columns, "sha256": hashed(table.to_pylist())}
    return raw.decode() if len(raw) <= SMALL else {"bytes": len(raw), "sha256": hashed(raw)}


# -- what the present code says


def looks(kind: Kind, run: str) -> dict[str, Callable[[], Any]]:
    """What is looked at of a run, each in a folder of its own."""
    found = {
        "read": lambda: read(run),
        "exported": lambda: exported(run),
        "resumed": lambda: resumed(kind, run),
    }
    return {**found, "rescored": lambda: rescored(kind, run)} if kind.rescore else found


def write_expected(kind: Kind, folder: Path) -> None:
    for run in kind.runs:
        for name, look in looks(kind, run).items():
            with contextlib.chdir(furnish(folder / f"{run}-{name}", run)):
                found = look()
            kept = [
                key
                for key, own in _own(run).items()
                if key in found and not any(differences(found[key], own))
            ]
            left = {key: value for key, value in found.items() if key not in kept}
            file = EXPECTED / run / f"{name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            lines = (f"{json.dumps(key)}: {canonical(value)}" for key, value in left.items())
            file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def expected(run: str, name: str) -> Any:
    told = json.loads((EXPECTED / run / f"{name}.json").read_bytes())
    keys = {"read": "metrics", "resumed": "manifest"}
    return {
        **({keys[name]: _own(run)[keys[name]]} if name in keys and keys[name] in _own(run) else {}),
        **told,
    }


def _own(run: str) -> dict[str, Any]:
    """What the run's own files say, which is not said again among what is expected."""
    metrics = RUNS / run / "metrics.json"
    found = {"metrics": [0, json.loads(metrics.read_bytes())]} if metrics.exists() else {}
    return {**found, "manifest": manifest(RUNS / run)}
