"""What a person sees: the real command on a real pseudo-terminal, at several widths, and off a terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.command_process import PATIENCE_S, Outcome, Project, prompt_of
from tests.support.pseudo_terminal import Terminal
from windrow.cli.progress import MILESTONES

pytestmark = pytest.mark.slow

TASKS, SAMPLES, HELD_FROM = 20, 2, 12
ROWS = [{"id": f"q{n}", "prompt": f"number {n}", "answer": "42"} for n in range(TASKS)]
NOISY = """
import logging, os, sys, warnings
from windrow.envs.problem import Problem

logging.basicConfig(level="INFO")  # a handler that holds on to standard error as it is now

class Noisy(Problem):
    version = 1

    async def reset(self, task):
        name = task.key
        logging.info("log of %s, and some words to make it long enough to wrap", name)
        warnings.warn(f"warning of {name}")
        print(f"printed by {name}")
        print(f"bar of {name}: 10%\\rbar of {name}: 99%", file=sys.stderr)
        os.system(f"echo child of {name} >&2")
        return await super().reset(task)
"""
USUAL = ("-k", str(SAMPLES), "--concurrency", "4", "--call-retries", "0", "--retries", "1")
ESCAPE = re.compile(rb"\x1b")
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-9]|4[0-9]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Open: every request is answered. Tasks from HELD_FROM on wait for it."""
    opened = threading.Event()
    yield opened
    opened.set()


@pytest.fixture
def home(project: Callable[..., Project], gate: threading.Event) -> Project:
    """Even tasks are answered right, odd ones wrong, and those that end in 7 never."""

    def reply(body: dict[str, Any], n: int) -> Any:
        number = int(prompt_of(body).split()[-1])
        if number >= HELD_FROM:
            gate.wait(PATIENCE_S)
        if number % 10 == 7:
            return 503, {}, {"error": {"message": "busy"}}
        return "42" if number % 2 == 0 else "41"

    made = project(reply)
    made.tasks(ROWS)
    made.module("noisy", NOISY)
    return made


@pytest.fixture
def on_terminal(home: Project) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(*flags: str, tasks: str = "tasks.jsonl", **options: Any) -> Terminal:
        endpoint = ["--model", "stub", "--base-url", home.server.url, "--out", "run"]
        arguments = ["collect", tasks, *endpoint, "--set", "policy.backoff_s=0", *USUAL, *flags]
        started.append(Terminal(*arguments, cwd=home.path, **options))
        return started[-1]

    yield start
    for terminal in started:
        terminal.close()


def holding(lines: list[str], text: str) -> list[str]:
    return [line for line in lines if text in line]


# -- the live region


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_region_fits_the_terminal_and_ends_with_the_right_numbers(
    columns: int, on_terminal: Callable[..., Terminal], gate: threading.Event
) -> None:
    terminal = on_terminal(columns=columns, stdin=subprocess.DEVNULL)
    # tasks 0 to 11 are settled, one of them as failed twice, and what is next is held back
    terminal.until(lambda: holding(terminal.shown, "24/40"), "the first tasks were done")
    for text in ("4 running", "4 failed:", "chat 16"):  # a frame is written row by row
        terminal.until_shown(text)
    for text in (" 60%  24/40", "tok/s", "reward 0.545 (n 22)", "to go", "4 failed:", "infra/http_503 4"):
        assert holding(terminal.written, text), f"no {text!r} in {terminal.written}"
    assert holding(terminal.written, "left:  chat 16")
    region = [line for line in terminal.written if re.search(r"━|/s|running|failed:|left:", line)]
    assert region
    assert max(map(len, region)) <= columns - 2
    gate.set()
    assert terminal.wait() == 1
    for lines in (terminal.shown, terminal.written):
        assert len(holding(lines, "━")) == len(holding(lines, "tok/s")) == 1, "a region was left behind"
        assert holding(lines, "100%  40/40")
        assert holding(lines, "reward 0.556 (n 36)")
        assert holding(lines, "8 failed:  infra/http_503 8")
        assert not holding(lines, "left:")
    assert terminal.raw.rindex(b"\x1b[?25h") > terminal.raw.rindex(b"\x1b[?25l"), "the cursor stayed hidden"


def test_the_region_counts_what_workers_do(
    on_terminal: Callable[..., Terminal], gate: threading.Event
) -> None:
    terminal = on_terminal("--workers", "2")
    terminal.until(lambda: holding(terminal.shown, "24/40"), "the first tasks were done")
    for text in ("4 running", "4 failed:", "chat 16"):
        terminal.until_shown(text)
    gate.set()
    assert terminal.wait() == 1
    for text in ("100%  40/40", "reward 0.556 (n 36)", "8 failed:  infra/http_503 8"):
        assert holding(terminal.shown, text), f"no {text!r} in {terminal.shown}"


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_whatever_else_is_written_stands_above_the_region_whole(
    columns: int, on_terminal: Callable[..., Terminal], gate: threading.Event
) -> None:
    gate.set()
    terminal = on_terminal("--env", "noisy:Noisy", "--scorer", "number", columns=columns)
    assert terminal.wait() == 1
    written = terminal.written
    keys = [row["id"] for row in ROWS]
    attempts = {key: SAMPLES * (2 if key.endswith("7") else 1) for key in keys}
    for key in keys:
        log = f"INFO:root:log of {key}, and some words to make it long enough to wrap"
        assert written.count(log) == attempts[key]
        assert written.count(f"printed by {key}") == attempts[key]
        assert written.count(f"bar of {key}: 99%") == attempts[key]
        assert written.count(f"child of {key}") == attempts[key]
        warned = [line for line in written if line.endswith(f"UserWarning: warning of {key}")]
        assert len(warned) == 1  # Python shows each once
    assert len(holding(written, "tok/s")) == 1
    last = max(n for n, line in enumerate(written) if line.startswith(("INFO:", "printed", "child")))
    assert "━" in written[last + 1]


def test_no_colour_where_none_is_wanted(on_terminal: Callable[..., Terminal], gate: threading.Event) -> None:
    gate.set()
    plain = on_terminal("--out", "plain", NO_COLOR="1")
    assert plain.wait() == 1
    assert COLOUR.findall(plain.raw.decode()) == []
    assert holding(plain.shown, "100%  40/40")
    coloured = on_terminal("--out", "coloured")
    assert coloured.wait() == 1
    assert COLOUR.findall(coloured.raw.decode()) != []


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(
    on_terminal: Callable[..., Terminal], gate: threading.Event
) -> None:
    gate.set()
    terminal = on_terminal(TERM="dumb")
    assert terminal.wait() == 1
    assert not ESCAPE.search(terminal.raw)
    assert holding(terminal.written, "100%  40/40")


def test_ctrl_c_is_answered_above_the_region(
    on_terminal: Callable[..., Terminal], gate: threading.Event
) -> None:
    terminal = on_terminal()
    terminal.until(lambda: holding(terminal.shown, "24/40"), "the first tasks were done")
    terminal.until_shown("4 running")
    terminal.type(b"\x03")
    said = "stopping: 4 running rollouts are finished first (Ctrl-C again cancels them)"
    terminal.until_shown(said)
    gate.set()
    assert terminal.wait() == 130
    assert terminal.written.count(said) == 1
    assert len(holding(terminal.shown, "tok/s")) == 1
    assert holding(terminal.shown, " 70%  28/40")
    assert not holding(terminal.shown, "^C")
    assert holding(terminal.shown, "14 not done (stopped): the same command continues")
    assert not holding(terminal.shown, "metrics.json")  # not written: it would describe half a call


def test_an_error_at_the_start_is_all_that_is_shown(
    home: Project, on_terminal: Callable[..., Terminal]
) -> None:
    home.tasks(["not a row"])
    terminal = on_terminal()
    assert terminal.wait() == 2
    assert terminal.written[0].startswith("windrow: 1 invalid row")
    assert not holding(terminal.written, "reading")


def test_quiet_shows_nothing_but_what_goes_wrong(
    home: Project, on_terminal: Callable[..., Terminal], gate: threading.Event
) -> None:
    gate.set()
    home.tasks(ROWS[:4])
    terminal = on_terminal("--quiet")
    assert terminal.wait() == 0
    assert terminal.raw == b""
    home.server.stop()
    refused = on_terminal("--quiet", "--out", "other")
    assert refused.wait() == 1
    assert refused.written[0].startswith("windrow: ")


def test_json_goes_to_standard_output_and_the_region_to_the_terminal(
    home: Project, on_terminal: Callable[..., Terminal], gate: threading.Event
) -> None:
    gate.set()
    with (home.path / "out").open("wb") as out:
        terminal = on_terminal("--json", "--env", "noisy:Noisy", "--scorer", "number", stdout=out)
        assert terminal.wait() == 1
    lines = (home.path / "out").read_bytes().splitlines()
    sent = {(line["id"], line["attempt"]) for line in map(json.loads, lines)}
    assert len(lines) == len(sent) == 44
    assert sent == {(line["id"], line["attempt"]) for line in home.lines()}
    assert terminal.written.count("printed by q0") == SAMPLES  # what is printed is kept out of the stream
    assert holding(terminal.shown, "100%  40/40")


# -- before anything can be counted


def test_reading_the_tasks_is_shown(on_terminal: Callable[..., Terminal], gate: threading.Event) -> None:
    gate.set()
    reading, writing = os.pipe()
    terminal = on_terminal(tasks="-", stdin=reading)
    os.close(reading)
    terminal.until_shown("reading the tasks")
    os.write(writing, json.dumps(ROWS[0]).encode() + b"\n")
    os.close(writing)
    assert terminal.wait() == 0
    assert not holding(terminal.shown, "reading")


def test_off_a_terminal_reading_is_named_when_it_takes_long(home: Project, gate: threading.Event) -> None:
    gate.set()
    reading, writing = os.pipe()
    running = home.start_collect(tasks="-", stdin=reading)
    os.close(reading)
    running.until_said("reading the tasks …")
    os.write(writing, json.dumps(ROWS[0]).encode() + b"\n")
    os.close(writing)
    assert running.wait().code == 0


def test_grading_what_earlier_calls_left_is_shown(
    home: Project, on_terminal: Callable[..., Terminal], gate: threading.Event
) -> None:
    gate.set()
    home.tasks(ROWS[:4])
    home.module(
        "judges",
        "import pathlib, time\n"
        "def slow(task, reply):\n"
        "    while not pathlib.Path('go').exists(): time.sleep(0.01)\n"
        "    return 1.0\n",
    )
    assert on_terminal().wait() == 0
    terminal = on_terminal("--scorer", "judges:slow", "--regrade")
    terminal.until_shown("grading 0 of 8 from earlier calls")
    (home.path / "go").touch()
    assert terminal.wait() == 0
    assert "run: 8 planned, 8 done, 0 to retry, 8 to grade, nothing to run" in terminal.written
    assert holding(terminal.shown, "chat: reward 1.000 [")


# -- the beginning and the end


def test_the_end_names_the_files_and_the_key_metrics(
    home: Project, on_terminal: Callable[..., Terminal], gate: threading.Event
) -> None:
    gate.set()
    terminal = on_terminal(columns=120)
    assert terminal.wait() == 1
    metrics = json.loads((home.run / "metrics.json").read_text())["agents"][0]["key_metrics"]
    assert metrics["n/reward"] == 36
    assert holding(terminal.shown, "run: 40 planned, 0 done, 0 to retry, 40 left to run")
    assert holding(terminal.shown, "chat: reward 0.556 [")
    assert holding(terminal.shown, "  pass@1 0.556  pass@2 0.556  coverage 90.0%")
    ending = terminal.shown[-4:]
    assert [line.split()[-1] for line in ending] == ["run", "run/rollouts.jsonl", "run/metrics.json", "run"]
    assert ending[-1] == "windrow stats run"

    again = on_terminal("--no-aggregate", columns=120)
    assert again.wait() == 1
    assert holding(again.shown, "run: 40 planned, 36 done, 4 to retry, 4 left to run")
    assert not holding(again.shown, "metrics.json")


def test_where_nothing_is_to_be_run_no_bar_is_drawn(
    home: Project, on_terminal: Callable[..., Terminal], gate: threading.Event
) -> None:
    gate.set()
    home.tasks(ROWS[:4])
    assert on_terminal().wait() == 0
    terminal = on_terminal()
    assert terminal.wait() == 0
    assert "run: 8 planned, 8 done, 0 to retry, nothing to run" in terminal.written
    assert not holding(terminal.written, "━")
    assert holding(terminal.written, "chat: reward 0.500 [")


# -- off a terminal


def milestones(ended: Outcome) -> list[tuple[int, int, str]]:
    """(percent, settled, the line) of every progress line."""
    found = [re.match(r"(\d+)%  (\d+)/\d+  .*", line) for line in ended.err.splitlines()]
    return [(int(match[1]), int(match[2]), match[0]) for match in found if match]


def test_off_a_terminal_there_is_a_line_at_each_milestone(home: Project, gate: threading.Event) -> None:
    gate.set()
    home.tasks({"prompt": f"number {n}", "answer": "42"} for n in range(0, 200, 2))
    ended = home.collect("--concurrency", "1")
    assert ended.code == 0
    assert "\x1b" not in ended.err
    assert [(share, settled) for share, settled, _ in milestones(ended)] == [(n, n) for n in MILESTONES]
    first, *_, last = [line for _, _, line in milestones(ended)]
    assert re.search(r"20/100  [\d.,]+/s  [\d,]+ tok/s  reward 1.000 \(n 20\)  \d running  ", first)
    assert first.endswith("left: chat 80")
    assert "left" not in last


def test_each_line_names_the_five_agents_with_most_left(home: Project, gate: threading.Event) -> None:
    gate.set()
    home.module(
        "crew",
        "from windrow.agents.chat import ChatAgent as Chat\n"
        + "".join(f"class A{n}(Chat):\n    version = 1\n" for n in range(7)),
    )
    crew = [agent for agent in range(7) for _ in range(10 + agent)]
    home.tasks(
        {"id": f"t{n}", "prompt": "number 2", "answer": "42", "agent": f"crew:A{a}"}
        for n, a in enumerate(crew)
    )
    ended = home.collect("--concurrency", "1", "--set", "trust.modules=[crew]")
    assert ended.code == 0
    assert len(crew) == 91
    _, settled, line = milestones(ended)[0]
    assert settled == 19  # the ten of A0, and nine of A1's eleven
    assert line.endswith("left: crew:A6 16, crew:A5 15, crew:A4 14, crew:A3 13, crew:A2 12, + 1 agents")


def test_milestones_are_of_what_this_call_has_to_do(home: Project, gate: threading.Event) -> None:
    gate.set()
    home.tasks(ROWS[:5])
    assert home.collect("--concurrency", "1").code == 0
    ended = home.collect("-k", "3", "--concurrency", "1")
    assert ended.code == 0
    assert [(share, settled) for share, settled, _ in milestones(ended)] == [
        (20, 2), (40, 4), (60, 6), (80, 8), (90, 9), (100, 10)
    ]  # fmt: skip
