"""Whatever NeMo Gym's servers answer: a record with a finite reward or none, a list of servers, or an error of ours."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given

from tests.fuzz.mutations import fuzz, mutated_json, mutated_text, reshaped
from tests.support.nemo_gym_servers import answer, call, message, result, row, sampled
from windrow import Message, Task
from windrow.agents import Played
from windrow.config.yamltext import NotYaml, yaml_value
from windrow.engine.external_episode import record_external_episode
from windrow.engine.record_building import build_rollout
from windrow.engine.recorder import Recorder
from windrow.integrations.nemo_gym.client import configured_servers, decoded, listed_servers
from windrow.integrations.nemo_gym.episodes import played_of
from windrow.integrations.nemo_gym.results import STATE
from windrow.records import PolicyRecord, Rollout, decode_rollout, encode
from windrow.tasks.plan import Slot

ROW = row("2 + 2?", expected_answer="4")
TASK = Task(key="k", digest="d", source="s", split=None, index=0, tags=(), data=ROW)
OPENING = (Message(role="user", content="2 + 2?", origin="task"),)
THOUGHT = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]}
ANSWERS = [
    answer(ROW, THOUGHT, call("c", "add", {"a": 1}, **sampled([1, 2], [3])), result("c", "4"), message("4", **sampled([1, 2, 3, 4], [5]))),
    answer(ROW, "4", {"type": "message", "role": "user", "content": "?"}, {"type": "mcp_call", "id": "m"}, "5", accuracy=0.5),
    answer(ROW, "4", reward=0.0, _ng_failure_class="judge_failed", _ng_failure_judge_error="away"),
    answer(ROW, "4", _ng_failure_class="transient", _ng_failure_terminal=True, _ng_no_persist=False),
]  # fmt: skip
INSTANCES = [
    {"process_name": "math", "server_type": "responses_api_agents", "url": "http://127.0.0.1:1", "port": 1},
    {"process_name": "res", "server_type": "resources_servers", "host": "0.0.0.0", "port": 2},
    {"process_name": "odd", "server_type": "responses_api_agents", "url": "http://[::1", "port": 3},
]
CONFIG = "math:\n  responses_api_agents:\n    impl: {host: 0.0.0.0, port: 1, resources_server: {name: res}}\nkey: ${x}\n"


def recorded(played: Played) -> Rollout:
    slot = Slot(number=0, id="i", attempt=1, group="g", sample=0, seed=0, task=TASK, recorded_task=TASK)
    policy = PolicyRecord(model="remote", sampling={}, fingerprint="")
    recorder = Recorder(slot, env="nemo-gym", agent="math", policy=policy, capture="tokens")
    recorder.add(OPENING, "task")
    record_external_episode(recorder, played)
    return build_rollout(recorder)


@fuzz(200)
@given(body=mutated_json(ANSWERS))
def test_an_answer_of_any_shape_is_a_record(body: bytes) -> None:
    found = decoded(body)
    if not isinstance(found, dict):
        return
    rollout = recorded(played_of(found, TASK, OPENING, agent="math"))
    assert decode_rollout(encode(rollout)) == rollout
    if rollout.status in ("completed", "truncated"):
        told = rollout.state[STATE]
        assert "judge_error" in told or math.isfinite(told["reward"])


@fuzz(200)
@given(found=reshaped([INSTANCES]))
def test_whatever_lists_servers_is_a_list_of_them(found: Any) -> None:
    for server in listed_servers(found, "127.0.0.1"):
        assert isinstance(server.url, str)


@fuzz(200)
@given(text=mutated_text([CONFIG]))
def test_whatever_configures_servers_is_a_list_of_them(text: str) -> None:
    try:
        config = yaml_value(text)
    except NotYaml:
        return
    for server in configured_servers(config, "127.0.0.1"):
        assert server.url.startswith("http://")
