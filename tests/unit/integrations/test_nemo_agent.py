"""NeMo Gym's agent servers play rows: what is sent, what is written down, and what each kind of failure comes to."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.support.collect_helpers import answering, collected, until
from tests.support.command_process import PATIENCE_S
from tests.support.fake_clock import LIMIT_S, time_passes
from tests.support.nemo_gym_servers import (
    CUT,
    DIE,
    HANG,
    SECRET,
    Gym,
    Play,
    Row,
    answer,
    call,
    message,
    prompt_of,
    result,
    row,
    sampled,
)
from windrow import Rollout
from windrow.cli.main import main
from windrow.collecting.replay import replay
from windrow.errors import EndpointError, UsageError
from windrow.exports.tokens.sequences import training_sequences
from windrow.exports.tokens.verify import problems
from windrow.records import ErrorRecord
from windrow.util.token_contexts import prompt_ids

pytestmark = pytest.mark.slow


def right(sent: Row, n: int) -> Row:
    return answer(sent, "4")


@pytest.fixture
def gym() -> Iterator[Callable[..., Gym]]:
    """A factory of NeMo Gyms; a play alone is that of the agent `math`. No body that they are sent may be refused."""
    made: list[Gym] = []

    def make(agents: Play | dict[str, Play] = right, **options: Any) -> Gym:
        made.append(Gym(agents if isinstance(agents, dict) else {"math": agents}, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


NUMBERS = count()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def played(gym: Gym, rows: list[Row], agent: str = "", **options: Any) -> list[Rollout]:
    """What comes of the rows, in a run of their own unless `out` names one."""
    options = {"out": f"run-{next(NUMBERS)}", **options}
    return await collected(rows, agent=f"nemo-gym:{gym.head}{agent}", **options)


async def played_once(gym: Gym, sent: Row | None = None, **options: Any) -> Rollout:
    [rollout] = await played(gym, [sent or row("2 + 2?")], **{"retries": 0, **options})
    return rollout


def error_of(rollout: Rollout) -> ErrorRecord:
    assert rollout.error is not None
    return rollout.error


# -- what is sent


async def test_a_row_is_sent_as_it_is_with_its_numbers_and_an_id_of_its_own(gym: Callable[..., Gym]) -> None:
    server = gym()
    rows = [row("2 + 2?", expected_answer="4"), row("3 + 3?", verifier_metadata={"level": 5})]
    await played(server, rows, samples=2)
    sent = sorted(server.rows_of("math"), key=lambda one: (one["_ng_task_index"], one["_ng_rollout_index"]))
    assert [(one["_ng_task_index"], one["_ng_rollout_index"]) for one in sent] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert len({one["_ng_rollout_id"] for one in sent}) == 4
    for one, of in zip(sent, [rows[0], rows[0], rows[1], rows[1]], strict=True):
        assert {key: value for key, value in one.items() if not key.startswith("_ng_")} == of
    assert server.refused == []


async def test_the_runs_sampling_and_seeds_are_laid_over_the_rows_parameters(gym: Callable[..., Gym]) -> None:
    server = gym()
    given = row("2 + 2?")
    given["responses_create_params"] |= {"temperature": 1.0, "metadata": {"extra_body": '{"min_p": 0.1}'}}
    given["responses_create_params"] |= {"top_p": 0.9, "reasoning": {"effort": "low"}}
    await played(
        server,
        [given],
        temperature=0.5,
        max_tokens=64,
        seeds="sample",
        samples=2,
        sets=["policy.sampling.top_k=5"],
    )
    params = [one["responses_create_params"] for one in server.rows_of("math")]
    assert {(one["temperature"], one["top_p"], one["max_output_tokens"]) for one in params} == {
        (0.5, 0.9, 64)
    }
    assert params[0]["reasoning"] == {"effort": "low"}
    bodies = sorted(
        (json.loads(one["metadata"]["extra_body"]) for one in params), key=lambda body: body["seed"]
    )
    assert bodies == [{"min_p": 0.1, "top_k": 5, "seed": seed} for seed in (0, 1)]
    assert server.refused == []


async def test_any_parameter_of_the_run_reaches_the_field_itself(
    gym: Callable[..., Gym], tmp_path: Path
) -> None:
    server = gym()
    given = row("a")
    given["responses_create_params"] |= {
        "tool_choice": "auto",
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    key = "agent.settings.responses_create_params"
    params = {"tool_choice": "required", "instructions": "Be brief.", "parallel_tool_calls": False}
    sets = [f"{key}.{name}={json.dumps(value)}" for name, value in params.items()]
    sets += [f"{key}.truncation=auto", f"{key}.reasoning.summary=detailed", f"{key}.text.verbosity=low"]
    run = str(tmp_path / "run")
    await played(server, [given], sets=sets, out=run)
    [(_, sent)] = server.rows
    expected = {
        **given["responses_create_params"],
        **params,
        "truncation": "auto",
        "reasoning": {"effort": "low", "summary": "detailed"},
        "text": {"verbosity": "low"},
    }
    assert sent["responses_create_params"] == expected
    windrow.export(run, to="nemo-gym", out=str(tmp_path / "gym.jsonl"))
    for name in ("gym.jsonl", "gym_materialized_inputs.jsonl"):
        [line] = map(json.loads, (tmp_path / name).read_text().splitlines())
        assert line["responses_create_params"] == expected


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("tool_choise=x", "has no parameter 'tool_choise'.*'tool_choice'"),
        ("temperature=1", "give --temperature"),
        ("input=x", "is the row's"),
    ],
)
async def test_a_parameter_that_is_none_is_refused_before_anything_is_sent(
    gym: Callable[..., Gym], setting: str, problem: str
) -> None:
    server = gym()
    with pytest.raises(UsageError, match=problem):
        await played(server, [row("a")], sets=[f"agent.settings.responses_create_params.{setting}"])
    assert server.rows == []


async def test_all_that_a_row_says_of_its_agent_is_sent_exported_and_aggregated(
    gym: Callable[..., Gym], tmp_path: Path
) -> None:
    server = gym()
    ref = {"type": "responses_api_agents", "name": "math"}
    run = str(tmp_path / "run")
    await played(server, [row("a", agent_ref=ref)], out=run)
    assert [sent["agent_ref"] for _, sent in server.rows] == [ref]
    windrow.export(run, to="nemo-gym", out=str(tmp_path / "gym.jsonl"))
    for name in ("gym.jsonl", "gym_materialized_inputs.jsonl"):
        [line] = map(json.loads, (tmp_path / name).read_text().splitlines())
        assert line["agent_ref"] == ref
    assert await asyncio.to_thread(main, ["stats", run, "--aggregate", f"nemo-gym:{server.head}"]) == 0
    [(_, [aggregated])] = server.aggregated
    assert aggregated["agent_ref"] == ref


async def test_of_a_result_that_is_sent_again_only_the_row_is_sent(gym: Callable[..., Gym]) -> None:
    server = gym()
    old = {
        **row("2 + 2?", topic="sums"),
        "response": {"output": []},
        "reward": 0.0,
        "error": "x",
        "_ng_task_index": 9,
    }
    old["responses_create_params"] |= {"tool_choice": None, "tools": None, "user": None}
    rollout = await played_once(server, old)
    assert rollout.reward == 1.0
    [sent] = server.rows_of("math")
    assert {key for key in sent if not key.startswith("_ng_")} == {
        "responses_create_params",
        "agent_ref",
        "topic",
    }
    assert sent["responses_create_params"] == {"input": [{"role": "user", "content": "2 + 2?"}]}
    assert sent["_ng_task_index"] == 9


async def test_a_prompt_template_makes_the_input_of_rows_that_have_none(gym: Callable[..., Gym]) -> None:
    Path("prompt.yaml").write_text("system: Be brief.\nuser: 'What is {question}?'\n")
    server = gym()
    bare = {"question": "2 + 2", "agent_ref": {"name": "math"}}
    rollout = await played_once(server, bare, prompt="prompt.yaml")
    assert [one.text for one in rollout.messages] == ["Be brief.", "What is 2 + 2?", "4"]
    [sent] = server.rows_of("math")
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}]
    assert sent["responses_create_params"] == {"input": said}


async def test_rows_without_an_agent_are_refused_together_or_played_by_the_one_in_the_address(
    gym: Callable[..., Gym], tmp_path: Path
) -> None:
    server = gym({"math": right, "code": right})
    rows = [row("a", None), row("b", "code"), row("c", None)]
    with pytest.raises(UsageError, match=r"(?s)2 invalid rows.*rows\[0\]: no agent.*rows\[2\]: no agent"):
        await played(server, rows)
    rollouts = await played(server, rows, "/math")
    assert sorted((one.messages[0].text, one.agent) for one in rollouts) == [
        ("a", "math"),
        ("b", "code"),
        ("c", "math"),
    ]
    assert server.rows_of("math")[0]["agent_ref"] == {"name": "math"}
    with pytest.raises(EndpointError, match=r"knows no agent 'mathh' \(it knows: code, math\)"):
        await played(server, rows, "/mathh")


async def test_what_a_run_would_ignore_where_the_server_plays_is_refused(gym: Callable[..., Gym]) -> None:
    head = gym().head
    for option, place in ({"model": "m"}, "policy.model"), ({"max_turns": 3}, "limits.max_turns"):
        with pytest.raises(
            UsageError, match=f"plays by itself, with a model of its own, and would ignore {place}"
        ):
            await collected([row("x")], agent=f"nemo-gym:{head}", **option)
    with pytest.raises(UsageError, match="plays in env 'nemo-gym', not in 'tool'"):
        await collected([row("x")], agent=f"nemo-gym:{head}", env="tool")
    with pytest.raises(UsageError, match="head must be the address of a head server"):
        await collected([row("x")], agent="nemo-gym:localhost")


# -- finding the servers


@pytest.mark.parametrize("rest", ["u:hunter2secret@127.0.0.1:9", "127.0.0.1:9?key=hunter2secret"])
async def test_an_address_with_a_secret_in_it_is_refused_and_not_shown(rest: str) -> None:
    with pytest.raises(UsageError, match="must not hold a user name") as refused:
        await collected([row("x")], agent=f"nemo-gym:http://{rest}", out="run")
    assert "hunter2" not in str(refused.value)
    assert not Path("run").exists()


async def test_agents_are_found_in_the_configuration_where_the_head_server_lists_no_instances(
    gym: Callable[..., Gym],
) -> None:
    server = gym(listed=False)
    assert (await played_once(server, out="run")).reward == 1.0
    assert server.requests["/global_config_dict_yaml"] == 1
    assert not any(SECRET in file.read_text() for file in Path("run").iterdir())


async def test_a_head_server_that_does_not_answer_as_one_stops_the_run_with_nothing_written(
    gym: Callable[..., Gym], tmp_path: Path
) -> None:
    server = gym()
    agent = f"http://127.0.0.1:{server.ports['math']}"
    with pytest.raises(EndpointError, match="as a head server of NeMo Gym does"):
        await collected([row("x")], agent=f"nemo-gym:{agent}", out=str(tmp_path / "run"))
    server.stop("head")
    with pytest.raises(EndpointError, match="cannot be reached"):
        await collected([row("x")], agent=f"nemo-gym:{server.head}", out=str(tmp_path / "run"))
    assert (tmp_path / "run" / "rollouts.jsonl").read_bytes() == b""


async def test_an_agent_that_was_started_anew_elsewhere_is_found_again(gym: Callable[..., Gym]) -> None:
    """Nothing was sent to the old address: it is no attempt."""
    moved = asyncio.Event()
    loop = asyncio.get_running_loop()

    def moving(sent: Row, n: int) -> Row:
        loop.call_soon_threadsafe(moved.set)
        return right(sent, n)

    server = gym({"first": moving, "math": right})
    task = asyncio.create_task(
        played(
            server,
            [row("a", "first"), row("b")],
            concurrency=1,
            sets=["policy.backoff_s=0.05"],
            call_retries=20,
        )
    )
    server.stop("math")
    await moved.wait()
    await asyncio.to_thread(server.start, "math")
    rollouts = await task
    assert [(one.status, one.attempt) for one in rollouts] == [("completed", 1), ("completed", 1)]


async def test_an_agent_that_nobody_knows_costs_its_rows_and_is_found_once_it_is_there(
    gym: Callable[..., Gym],
) -> None:
    server = gym()
    rows = [row("a"), row("b", "code")]
    rollouts = await played(server, rows, out="run", retries=0)
    [error] = [error_of(one) for one in rollouts if one.status == "failed"]
    assert (error.owner, error.kind, error.retryable) == ("infra", "unknown_agent", True)
    assert "knows no agent 'code' (it knows: math)" in error.message
    server.agents["code"] = right
    server.start("code")
    [later] = await played(server, rows, out="run", retries=0)
    assert (later.agent, later.status, later.attempt) == ("code", "completed", 2)


async def test_a_connection_that_nobody_takes_is_tried_again_and_then_given_up(
    gym: Callable[..., Gym],
) -> None:
    server = gym({"math": right, "code": right})
    server.stop("math")
    before = server.requests["/server_instances"]
    rollouts = await played(server, [row("a"), row("b", "code")], call_retries=2, retries=0)
    by_agent = {one.agent: one for one in rollouts}
    error = error_of(by_agent["math"])
    assert (error.owner, error.kind, error.retryable) == ("infra", "not_connected", True)
    assert by_agent["code"].reward == 1.0
    assert server.requests["/server_instances"] - before == 3  # at the start, and before each new try


async def test_a_dead_agent_is_noticed_once_and_waited_for_by_all_its_rows(gym: Callable[..., Gym]) -> None:
    server = gym({"math": right, "code": right})
    server.stop("math")
    warnings: list[str] = []
    rows = [*(row(f"m{n}") for n in range(100)), row("c", "code")]
    options: dict[str, Any] = {"call_retries": 1000, "sets": ["policy.backoff_s=0.01"], "retries": 0}
    task = asyncio.create_task(
        played(server, rows, concurrency="unlimited", on_warning=warnings.append, **options)
    )
    asked = server.requests["/server_instances"]
    await until(lambda: server.requests["/server_instances"] > asked + 3 and server.rows_of("code") != [])
    assert [text for text in warnings if "takes no connection" in text] == warnings != []
    assert len(warnings) == 1
    await asyncio.to_thread(server.start, "math")
    rollouts = await task
    assert {(one.status, one.attempt) for one in rollouts} == {("completed", 1)}
    assert len(server.rows_of("math")) == 100
    assert warnings[1:] == ["agent 'math' takes connections again"]


async def test_an_agent_that_stays_dead_is_not_tried_for_each_of_its_rows(gym: Callable[..., Gym]) -> None:
    server = gym({"math": right, "code": right})
    server.stop("math")
    rows = [*(row(f"m{n}") for n in range(100)), row("c", "code")]
    asked = server.requests["/server_instances"]
    rollouts = await played(server, rows, call_retries=2, retries=0, concurrency="unlimited")
    assert server.requests["/server_instances"] - asked == 3  # at the start, and before each new try
    failed = [error_of(one).kind for one in rollouts if one.status == "failed"]
    assert failed == ["not_connected"] * 100
    assert server.requests["/run"] == 1


# -- what is written down


async def test_an_episode_is_written_down_turn_by_turn_with_its_tools_usage_and_what_was_verified(
    gym: Callable[..., Gym],
) -> None:
    thought = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Add them."}]}

    def play(sent: Row, n: int) -> Row:
        said = [thought, call("c1", "add", {"a": 2, "b": 2}), call("c2", "add", {"a": 0}), result("c1", "4")]
        asked = {"type": "message", "role": "user", "content": "Well?"}
        return answer(
            sent, *said, asked, "It is 4.", reward=0.5, accuracy=True, notes={"by": "judge"}, mask_sample=True
        )

    given = row("2 + 2?")
    schema = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
    given["responses_create_params"]["tools"] = [
        {"type": "function", "strict": True, **schema},
        {"type": "web_search"},
    ]
    rollout = await played_once(gym(play), given)
    assert rollout.tools == (schema,)
    assert (rollout.status, rollout.stop, rollout.env, rollout.agent) == (
        "completed",
        "answered",
        "nemo-gym",
        "math",
    )
    assert rollout.policy.model == "remote"
    assert [(one.role, one.text, one.origin) for one in rollout.messages] == [
        ("user", "2 + 2?", "task"),
        ("assistant", "", "policy"),
        ("tool", "4", "tool"),
        ("user", "Well?", "env"),
        ("assistant", "It is 4.", "policy"),
    ]
    first, last = rollout.turns
    assert rollout.messages[1].reasoning == "Add them."
    assert [(one.id, one.arguments, one.result) for one in first.tool_calls] == [("c1", {"a": 2, "b": 2}, 2)]
    assert rollout.metrics["unanswered_tool_calls"] == 1
    assert (last.reads, last.writes, last.model) == (((0, 4),), 4, "served-model")
    assert (rollout.usage.prompt_tokens, rollout.usage.completion_tokens, rollout.usage.cached_tokens) == (
        7,
        3,
        2,
    )
    assert (rollout.grade, rollout.reward) == ("graded", 0.5)
    assert rollout.scores["reward"].scorer == "nemo-gym"
    assert rollout.metrics["accuracy"] == rollout.metrics["mask_sample"] == 1.0
    assert rollout.state["nemo_gym"]["fields"]["notes"] == {"by": "judge"}
    assert rollout.timing.env > 0


async def test_tokens_are_stored_once_and_give_training_sequences(gym: Callable[..., Gym]) -> None:
    first, second = sampled([1, 2, 3], [4, 5], [-0.1, -0.2]), sampled([1, 2, 3, 4, 5, 6, 7], [8], [-0.3])

    def play(sent: Row, n: int) -> Row:
        said = [call("c1", "add", {}, **first), result("c1", "4"), message("4", **second)]
        return answer(sent, *said, response={"usage": {"input_tokens": 10, "output_tokens": 3}})

    rollout = await played_once(gym(play))
    assert rollout.capture == "tokens"
    tokens = rollout.turns[1].tokens
    assert tokens is not None
    assert (tokens.continues, tokens.prefix) == (0, 5)
    assert len(prompt_ids(rollout.turns, 1)) == 7 * 4
    [sequence] = training_sequences(rollout)
    assert list(sequence.input_ids) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [n for n, trained in enumerate(sequence.loss_mask) if trained] == [3, 4, 7]
    shares = [
        turn.usage and (turn.usage.prompt_tokens, turn.usage.completion_tokens) for turn in rollout.turns
    ]
    assert shares == [(3, 2), (7, 1)]
    assert list(problems(rollout)) == []
    assert (await played_once(gym(play), capture="text")).turns[0].tokens is None


@pytest.mark.parametrize(
    ("reason", "status", "stop"),
    [("max_output_tokens", "truncated", "length"), ("content_filter", "completed", "answered")],
)
async def test_an_incomplete_response_is_truncated_and_keeps_its_reward(
    gym: Callable[..., Gym], reason: str, status: str, stop: str
) -> None:
    cut = {"incomplete_details": {"reason": reason}}
    rollout = await played_once(gym(lambda sent, n: answer(sent, "4 is", response=cut, reward=0.0)))
    assert (rollout.status, rollout.stop, rollout.reward) == (status, stop, 0.0)


async def test_what_was_played_elsewhere_is_not_replayed_here(gym: Callable[..., Gym]) -> None:
    rollout = await played_once(gym(), out="run")
    with pytest.raises(UsageError, match="was played by agent 'math' elsewhere"):
        await replay("run", rollout)


# -- how it fails

BODY = "RuntimeError('no browser')"
PARTIAL = {"prompt_token_ids": [1], "generation_token_ids": [2]}
FAILURES: dict[str, tuple[Any, str, str, bool]] = {
    "500": ((500, BODY), "infra", "http_500", True),
    "503": ((503, "busy"), "infra", "http_503", True),
    "redirect": ((302, "over there"), "env", "http_302", True),
    "422": ((422, {"detail": [{"loc": ["body"], "msg": "Field required"}]}), "env", "http_422", False),
    "dies": (DIE, "infra", "transport", True),
    "dies in mid-answer": (CUT, "infra", "transport", True),
    "not-json": ("<html>", "env", "bad_answer", True),
    "nan": ({"reward": math.nan}, "env", "bad_reward", True),
    "null": ({"reward": None}, "env", "bad_reward", True),
    "text": ({"reward": "1.0"}, "env", "bad_reward", True),
    "true": ({"reward": True}, "env", "bad_reward", True),
    "class": ({"_ng_failure_class": "kill_shaped", "error": "oom"}, "infra", "kill_shaped", True),
    "terminal": (
        {"_ng_failure_class": "timeout_exceeded", "_ng_failure_terminal": True, "reward": 0.0},
        "infra",
        "timeout_exceeded",
        False,
    ),
    "partial-tokens": ({"output": [message("4", **PARTIAL)]}, "env", "bad_answer", True),
}


def failing(how: Any) -> Play:
    """Answers like this a row that says `bad`, and rightly every other one."""

    def play(sent: Row, n: int) -> Any:
        if prompt_of(sent) != "bad":
            return right(sent, n)
        if not isinstance(how, dict):
            return how
        fields = dict(how)
        return answer(sent, *fields.pop("output", ["4"]), **{"reward": 1.0, **fields})

    return play


@pytest.mark.parametrize("name", FAILURES)
async def test_each_failure_is_a_typed_record_and_the_run_goes_on(gym: Callable[..., Gym], name: str) -> None:
    how, owner, kind, retryable = FAILURES[name]
    server = gym(failing(how))
    rollouts = await played(server, [row("bad"), *(row(f"good {n}") for n in range(3))], retries=0)
    [bad] = [one for one in rollouts if one.messages[0].text == "bad"]
    error = error_of(bad)
    assert (bad.status, error.owner, error.kind, error.retryable) == ("failed", owner, kind, retryable)
    assert (bad.reward, bad.grade) == (None, "none")
    assert [one.reward for one in rollouts if one is not bad] == [1.0] * 3


@pytest.mark.parametrize(
    ("how", "times"),
    [
        ((500, BODY), 3),
        ((422, {"detail": []}), 1),
        (DIE, 3),
        (FAILURES["terminal"][0], 1),
        ({"_ng_no_persist": True}, 3),
    ],
    ids=["500", "422", "dies", "terminal", "no-persist"],
)
async def test_what_was_sent_is_tried_again_only_as_often_as_retries_say_each_time_under_another_id(
    gym: Callable[..., Gym], how: Any, times: int
) -> None:
    server = gym(failing(how))
    await played(server, [row("bad")], retries=2, call_retries=5)
    sent = server.rows_of("math")
    assert len(sent) == times
    assert len({one["_ng_rollout_id"] for one in sent}) == times
    assert [one.get("_ng_attempt_index") for one in sent] == [None, 1, 2][:times]


async def test_the_body_of_a_500_and_the_detail_of_a_422_are_kept_cut_to_a_length(
    gym: Callable[..., Gym],
) -> None:
    rollout = await played_once(gym(failing((500, BODY))), row("bad"))
    assert BODY in error_of(rollout).message
    rollout = await played_once(gym(failing((500, "x" * 10_000))), row("bad"))
    assert len(error_of(rollout).message) < 3_000
    rollout = await played_once(gym(failing((500, "x" * (2 << 20)))), row("bad"))
    assert error_of(rollout).kind == "http_500"
    unknown = row("2 + 2?")
    unknown["responses_create_params"]["min_p"] = 0.1
    rollout = await played_once(gym(), unknown)
    assert "min_p" in error_of(rollout).message
    assert "Extra inputs are not permitted" in error_of(rollout).message


async def test_what_an_answer_without_a_reward_says_is_kept(gym: Callable[..., Gym]) -> None:
    rollout = await played_once(gym(failing({"reward": math.nan, "loss": math.inf})), row("bad"))
    assert rollout.reply == "4"
    assert "nan" in error_of(rollout).message
    rollout = await played_once(
        gym(failing({"_ng_failure_class": "transient", "error": "502 from it"})), row("bad")
    )
    assert (rollout.reply, error_of(rollout).message) == ("4", "502 from it")


async def test_an_agent_that_hangs_is_given_up_at_its_deadline_and_told_by_the_closed_connection(
    gym: Callable[..., Gym],
) -> None:
    server = gym(failing(HANG))
    rows = [row("good"), row("bad")]
    playing = asyncio.create_task(played(server, rows, episode_timeout=LIMIT_S, retries=1, concurrency=1))
    for rows_sent in (2, 3):
        await until(lambda: len(server.rows_of("math")) == rows_sent)  # noqa: B023
        time_passes()
    rollouts = await playing
    assert [one.reward for one in rollouts if one.status == "completed"] == [1.0]
    cut = [error_of(one) for one in rollouts if one.status == "failed"]
    assert [(one.owner, one.kind, one.retryable) for one in cut] == [("infra", "timeout", True)] * 2
    assert len(server.rows_of("math")) == 3
    await until(lambda: server.in_flight["math"] == 0)


async def test_what_an_agent_does_not_want_kept_is_interrupted_and_played_again(
    gym: Callable[..., Gym], tmp_path: Path
) -> None:
    server = gym(lambda sent, n: answer(sent, "4", **({"_ng_no_persist": True} if n == 0 else {})))
    run = tmp_path / "run"
    await played(server, [row("2 + 2?")], retries=0, out=str(run))
    [first] = windrow.load(run)
    assert (first.status, first.reason, first.reward) == ("cancelled", "interrupted", None)
    [second] = await played(server, [row("2 + 2?")], retries=0, out=str(run))
    assert (second.status, second.attempt, second.reward) == ("completed", 2, 1.0)


# -- several agents


async def test_agents_have_limits_and_metrics_of_their_own(gym: Callable[..., Gym], tmp_path: Path) -> None:
    server = gym({"math": right, "code": lambda sent, n: answer(sent, "x", reward=0.0)})
    rows = [row(f"{agent} {n}", agent) for n in range(8) for agent in ("math", "code")]
    held: dict[str, int] = {"math": 2, "code": 8}
    limits = [f"{name}={most}" for name, most in held.items()]
    await played(server, rows, agent_concurrency=limits, concurrency=16, out=str(tmp_path / "run"))
    assert server.peaks["math"] <= 2
    measured = json.loads((tmp_path / "run" / "metrics.json").read_text())["agents"]
    found = {one["agent"]: one["agent_metrics"]["reward"] for one in measured}
    assert {name: (mean["value"], mean["n"]) for name, mean in found.items()} == {
        "math": (1.0, 8),
        "code": (0.0, 8),
    }
    with pytest.raises(
        UsageError, match=r"--agent-concurrency chat: no row is for it \(they are for: code, math\)"
    ):
        await played(server, rows, agent_concurrency=["chat=2"])


async def test_all_episodes_run_at_a_time_on_request(gym: Callable[..., Gym]) -> None:
    """Each answer waits until all rows have come; a run of 64 at a time would never end."""
    everybody = threading.Barrier(70)

    def together(sent: Row, n: int) -> Row:
        everybody.wait(PATIENCE_S)
        return right(sent, n)

    server = gym(together)
    with ThreadPoolExecutor(70) as pool:
        server.use_threads(pool)
        rollouts = await played(
            server, [row(str(n)) for n in range(35)], samples=2, concurrency="unlimited", retries=0
        )
    assert (len(rollouts), server.peaks["math"]) == (70, 70)
    assert {one.status for one in rollouts} == {"completed"}


async def test_a_run_goes_on_with_another_head_server_and_plays_nothing_twice(
    gym: Callable[..., Gym], tmp_path: Path
) -> None:
    rows, out = [row(f"{n}") for n in range(4)], str(tmp_path / "run")
    first, second = gym(), gym()
    await played(first, rows, out=out)
    rollouts = await played(second, rows, out=out, samples=2)
    assert len(rollouts) == len(second.rows_of("math")) == 4
    assert {one["_ng_rollout_index"] for one in second.rows_of("math")} == {1}


# -- verifying


def judge_failed(sent: Row, n: int) -> Row:
    fields = {"_ng_failure_class": "judge_failed", "_ng_failure_judge_error": "the judge is away"}
    return answer(sent, "4", reward=0.0, **(fields if prompt_of(sent) == "bad" else {}))


async def test_what_a_judge_could_not_judge_is_kept_and_mended_by_verifying_alone(
    gym: Callable[..., Gym], tmp_path: Path
) -> None:
    server = gym(
        judge_failed, verify=lambda sent, n: {**sent, "reward": 0.75, "agreement": 3}, mode="unknown"
    )
    run = tmp_path / "run"
    await played(server, [row("bad", expected_answer="4"), row("good")], out=str(run))
    bad, good = windrow.load(run)
    assert (bad.status, bad.grade, bad.reward, bad.reply) == ("completed", "failed", None, "4")
    assert (error_of(bad).owner, error_of(bad).kind) == ("scorer", "judge_failed")
    assert (good.grade, good.reward) == ("graded", 0.0)
    found = await windrow.rescore(run, failed_only=True)  # the run's own scorer, at the run's own head server
    assert (found.generation, found.judged, found.failed) == (1, 1, 0)
    assert len(server.rows) == 2
    [sent] = server.verified
    assert sent["expected_answer"] == "4"
    assert sent["response"]["output"][0]["content"][0]["text"] == "4"
    bad, good = windrow.load(run)
    assert (bad.grade, bad.reward, bad.metrics["agreement"], good.reward) == ("graded", 0.75, 3.0, 0.0)


async def test_a_verifier_takes_the_place_of_the_first_verdict_if_it_needs_nothing_of_the_session(
    gym: Callable[..., Gym], tmp_path: Path
) -> None:
    run = str(tmp_path / "run")
    server = gym(verify=lambda sent, n: {"reward": 0.25})
    await played(server, [row("2 + 2?")], out=run)
    scorer = [f"nemo-gym:{server.head}"]
    found = await windrow.rescore(run, scorers=scorer)
    assert (found.generation, found.failed, [one.reward for one in windrow.load(run)]) == (2, 0, [0.25])
    server.mode = "unsupported"
    found = await windrow.rescore(run, scorers=scorer)
    assert found.failed == 1
    assert "says 'unsupported', not 'stateless'" in found.example
    forced = {"name": "nemo-gym", "settings": {"url": server.resources, "force": True}}
    found = await windrow.rescore(run, sets=[f"scorers={json.dumps([forced])}"])
    assert found.failed == 0
    [rollout] = windrow.load(run)
    assert rollout.scores["reward"].evidence == {"reverify_mode": "unsupported"}
    server.mode = None  # it is older than the question
    found = await windrow.rescore(run, scorers=scorer)
    assert "says 'unknown', not 'stateless'" in found.example
    assert (await windrow.rescore(run, sets=[f"scorers={json.dumps([forced])}"])).failed == 0


@pytest.mark.parametrize(
    "said",
    [
        {"reward": math.nan},
        {"score": 1},
        {"reward": 0.0, "_ng_failure_class": "judge_failed", "_ng_failure_judge_error": "no verdict"},
        (500, "boom"),
        (422, {"detail": []}),
        DIE,
    ],
)
async def test_a_verdict_that_is_none_is_a_grading_that_failed(
    gym: Callable[..., Gym], tmp_path: Path, said: Any
) -> None:
    run = str(tmp_path / "run")
    server = gym(verify=lambda sent, n: said)
    await played(server, [row("2 + 2?")], out=run)
    found = await windrow.rescore(run, scorers=[f"nemo-gym:{server.head}"])
    assert (found.failed, found.active) == (1, False)
    assert [one.reward for one in windrow.load(run)] == [1.0]


async def test_each_agents_episodes_are_verified_by_its_own_resources_server(gym: Callable[..., Gym]) -> None:
    server = gym(
        {"math": right, "code": right},
        verify={"sums": lambda sent, n: {"reward": 0.1}, "tests": lambda sent, n: {"reward": 0.2}},
        verifiers={"math": "sums", "code": "tests"},
    )
    await played(server, [row("a", None), row("b", "code")], "/math", out="run")
    found = await windrow.rescore("run", scorers=["nemo-gym"])
    assert (found.failed, [one.reward for one in windrow.load("run")]) == (0, [0.1, 0.2])
    del server.verifiers["code"]
    found = await windrow.rescore("run", scorers=["nemo-gym"])
    assert (
        "does not say which resources server agent 'code' is verified by (it knows: sums, tests)"
        in found.example
    )


async def test_a_verifier_judges_what_a_policy_of_our_own_has_answered(gym: Callable[..., Gym]) -> None:
    server = gym(
        verify=lambda sent, n: {"reward": float(sent["response"]["output"][0]["content"][0]["text"])}
    )
    scorer = [f"nemo-gym:{server.head}"]
    [rollout] = await collected(
        [row("2 + 2?")], env="nemo-gym", policy=answering("4"), scorers=scorer, out="run"
    )
    assert (rollout.agent, rollout.grade, rollout.reward) == ("chat", "graded", 4.0)
    assert (server.refused, len(server.rows)) == ([], 0)
    found = await windrow.rescore("run", scorers=["nemo-gym"])
    assert (found.failed, "no server has verified this episode" in found.example) == (1, True)


# -- aggregating


async def test_each_agent_is_asked_for_its_own_metrics_with_one_row_for_a_task_and_sample(
    gym: Callable[..., Gym], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = gym(
        {"math": failing((500, BODY)), "code": lambda sent, n: answer(sent, "x", reward=0.5, passed=2)}
    )
    run = str(tmp_path / "run")
    await played(server, [row("a"), row("bad"), row("b", "code")], samples=2, retries=1, out=run)
    assert await asyncio.to_thread(main, ["stats", run, "--aggregate", f"nemo-gym:{server.head}"]) == 0
    code, math_ = json.loads(capsys.readouterr().out)
    assert (code["agent_ref"], code["agent_metrics"]["mean/reward"]) == ({"name": "code"}, 0.5)
    assert (math_["agent_ref"], math_["agent_metrics"]["mean/reward"]) == ({"name": "math"}, 1.0)
    rows = dict(server.aggregated)
    assert [(one["_ng_task_index"], one["_ng_rollout_index"], one["passed"]) for one in rows["code"]] == [
        (2, 0, 2),
        (2, 1, 2),
    ]
    assert [(one["_ng_task_index"], one["_ng_rollout_index"]) for one in rows["math"]] == [(0, 0), (0, 1)]
    assert rows["code"][0]["response"] == {
        "usage": server.aggregated and rows["code"][0]["response"]["usage"]
    }
    assert "responses_create_params" not in rows["code"][0]
    assert {name: {one["agent_ref"]["name"] for one in sent} for name, sent in rows.items()} == {
        "math": {"math"},
        "code": {"code"},
    }


async def test_a_call_that_is_cancelled_closes_its_connections_and_the_next_one_plays_what_was_cut(
    gym: Callable[..., Gym],
) -> None:
    server = gym(lambda sent, n: HANG if n == 0 else right(sent, n))
    first = asyncio.create_task(played(server, [row("2 + 2?")], out="run"))
    await until(lambda: server.in_flight["math"] == 1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await until(lambda: server.in_flight["math"] == 0)
    [rollout] = await played(server, [row("2 + 2?")], out="run")
    assert (rollout.reward, len(server.rows_of("math"))) == (1.0, 2)
