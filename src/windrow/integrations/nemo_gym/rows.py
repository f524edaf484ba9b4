"""A row of NeMo Gym: what of it is the task, and what it asks of a policy.

    {"responses_create_params": {"input": …, "instructions"?: …, "temperature"?: …},
     "agent_ref": {"name": …}, <task fields>, "_ng_task_index"?: 0, "_ng_rollout_index"?: 1}

Keys that begin with `_ng_` number and route a row; they are no content, so they are in no digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from windrow.config import Sampling, nearest
from windrow.integrations.nemo_gym.items import read_items
from windrow.records import Json, Message
from windrow.tasks.row_formats import Marks, RowFormat

PARAMS = "responses_create_params"
AGENT = "agent_ref"
TASK_INDEX = "_ng_task_index"
ROLLOUT_INDEX = "_ng_rollout_index"
ATTEMPT_INDEX = "_ng_attempt_index"
ROLLOUT_ID = "_ng_rollout_id"
FAILURE_CLASS = "_ng_failure_class"
FAILURE_TERMINAL = "_ng_failure_terminal"
JUDGE_ERROR = "_ng_failure_judge_error"
NO_PERSIST = "_ng_no_persist"
MARK = "_ng_"  # how the keys begin that are no content

# The parameters of a request; the servers refuse others.
CREATE_PARAMS = (
    *(
        "background",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "model",
    ),
    *(
        "parallel_tool_calls",
        "previous_response_id",
        "prompt",
        "reasoning",
        "service_tier",
        "store",
        "stream",
    ),
    *("temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"),
)
_SAMPLING = {"temperature": "temperature", "top_p": "top_p", "max_output_tokens": "max_tokens"}
# What a policy of ours is not told, but for the values that ask for nothing.
_UNHEEDED: dict[str, tuple[Json, ...]] = {
    "tools": ([],),
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True,),
    "max_tool_calls": (),
    "text": ({"format": {"type": "text"}},),
    "truncation": ("disabled",),
    "previous_response_id": (),
    "prompt": (),
    "top_logprobs": (0,),
}


def is_row(row: Mapping[str, Json]) -> bool:
    """Whether a row is one of NeMo Gym's."""
    return isinstance(row.get(PARAMS), dict) or isinstance(row.get(AGENT), dict)


def split_row(row: Mapping[str, Json]) -> tuple[dict[str, Json], Marks]:
    """The task in a row, and how the row is numbered. The same for all rollouts of a task.

    A seed that is only the number of the rollout (their `num_repeats_add_seed`) is no part of the task.
    """
    marks = Marks(_number(row, TASK_INDEX), _number(row, ROLLOUT_INDEX))
    content = {key: value for key, value in row.items() if not key.startswith(MARK)}
    params = content.get(PARAMS)
    if isinstance(params, dict) and marks.rollout is not None and seed_of(params) == marks.rollout:
        content[PARAMS] = without_seed(params)
        marks = msgspec.structs.replace(marks, seeded=True)
    return content, marks


def agent_of(row: Mapping[str, Json]) -> str | None:
    """The name of the agent that the row is for."""
    ref = row.get(AGENT)
    name = ref.get("name") if isinstance(ref, dict) else None
    return name if isinstance(name, str) else None


def with_agent(row: Mapping[str, Json], agent: str) -> dict[str, Json]:
    """The row for this agent, unless it names one itself."""
    return dict(row) if agent_of(row) is not None else {**row, AGENT: {"name": agent}}


def has_input(row: Mapping[str, Json]) -> bool:
    return bool(params_of(row).get("input"))


def params_of(row: Mapping[str, Json]) -> dict[str, Json]:
    params = row.get(PARAMS)
    return params if isinstance(params, dict) else {}


def tools_of(row: Mapping[str, Json]) -> tuple[dict[str, Json], ...]:
    """The functions that the row shows the model, as a record has them."""
    tools = params_of(row).get("tools")
    tool_dicts = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return tuple(
        {key: tool[key] for key in ("name", "description", "parameters") if key in tool}
        for tool in tool_dicts
        if tool.get("type", "function") == "function"
    )


def opening_of(row: Mapping[str, Json]) -> list[dict[str, Any]]:
    """The messages that a row opens with: its instructions as the system's, then its input. ValueError says what is
    wrong with them."""
    params = params_of(row)
    row_input = params.get("input")
    if not row_input or not isinstance(row_input, str | list):
        raise ValueError(f"{PARAMS!r} has no 'input': a string, or a list of messages")
    instructions = params.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise ValueError(f"{PARAMS}.instructions must be a string")
    first = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(row_input, str):
        return [*first, {"role": "user", "content": row_input}]
    return first + [as_dict(message) for message in read_items(row_input, where=f"{PARAMS}.input")]


def as_dict(message: Message) -> dict[str, Any]:
    """A message in the usual dict form."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    for field in ("tool_call_id", "reasoning"):
        if (value := getattr(message, field)) is not None:
            fields[field] = value
    return fields


def sampling_of(row: Mapping[str, Json]) -> dict[str, Json]:
    """What the row asks of the sampling, in our words."""
    params = params_of(row)
    asked = {ours: params[theirs] for theirs, ours in _SAMPLING.items() if params.get(theirs) is not None}
    reasoning = params.get("reasoning")
    if isinstance(reasoning, dict) and isinstance(reasoning.get("effort"), str):
        asked["reasoning_effort"] = reasoning["effort"]
    body = _extra_body(params)
    asked |= {
        key: value for key, value in body.items() if key in Sampling.__struct_fields__ and key != "extra"
    }
    if extra := {key: value for key, value in body.items() if key not in Sampling.__struct_fields__}:
        asked["extra"] = extra
    return asked


def unheeded(row: Mapping[str, Json]) -> list[str]:
    """What the row asks for that a policy of ours is not told."""
    params = params_of(row)
    return [
        key for key, usual in _UNHEEDED.items() if params.get(key) is not None and params[key] not in usual
    ]


def seed_of(params: Mapping[str, Json]) -> int | None:
    """The seed in `metadata.extra_body`, an object in JSON text; NeMo Gym until 0.2 has it among the parameters."""
    seed = _extra_body(params).get("seed", params.get("seed"))
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else None


def with_seed(params: Mapping[str, Json], seed: int) -> dict[str, Json]:
    return with_extra_body(params, {"seed": seed})


def with_extra_body(params: Mapping[str, Json], values: Mapping[str, Json]) -> dict[str, Json]:
    """The parameters with these values in `metadata.extra_body`, beside those that are there."""
    before = _extra_body(params)
    if all(key in before and before[key] == value for key, value in values.items()):
        return dict(params)
    return {**params, "metadata": {**_metadata(params), "extra_body": _written({**before, **values})}}


def with_sampling(params: Mapping[str, Json], sampling: Mapping[str, Json]) -> dict[str, Json]:
    """The parameters with a sampling in our words: those that the format has no place for ride in the extra body."""
    rest = {key: value for key, value in sampling.items() if value is not None}
    asked = {theirs: rest.pop(ours) for theirs, ours in _SAMPLING.items() if ours in rest}
    effort = rest.pop("reasoning_effort", None)
    if effort is not None:
        asked["reasoning"] = {**(params.get("reasoning") or {}), "effort": effort}
    return with_extra_body({**params, **asked}, {**(rest.pop("extra", None) or {}), **rest})


def with_overrides(params: Mapping[str, Json], overrides: Mapping[str, Json]) -> dict[str, Json]:
    """The parameters with the run's own laid over them; of nested objects only the keys that are given."""
    merged = dict(params)
    for key, value in overrides.items():
        before = merged.get(key)
        both = isinstance(value, dict) and isinstance(before, dict)
        merged[key] = with_overrides(before or {}, value) if both else value
    return merged


def check_overrides(overrides: Json) -> None:
    """ValueError for parameters that no server takes, or that have a flag of their own."""
    if not isinstance(overrides, dict):
        raise ValueError(f"{PARAMS} must be an object, found {overrides!r:.80}")
    for key in overrides:
        if key not in CREATE_PARAMS:
            raise ValueError(f"{PARAMS} has no parameter {key!r}{nearest(key, CREATE_PARAMS)}")
        if key == "input":
            raise ValueError(f"{PARAMS}.input is the row's; a prompt template (--prompt) makes another")
        if key in _SAMPLING:
            raise ValueError(f"{PARAMS}.{key}: give --{_SAMPLING[key].replace('_', '-')}")


def without_seed(params: Mapping[str, Json]) -> dict[str, Json]:
    """The parameters as they were before `with_seed`."""
    body = {key: value for key, value in _extra_body(params).items() if key != "seed"}
    metadata = {key: value for key, value in _metadata(params).items() if key != "extra_body"}
    if body:
        metadata["extra_body"] = _written(body)
    rest = {key: value for key, value in params.items() if key not in ("metadata", "seed")}
    return {**rest, "metadata": metadata} if metadata else rest


def _metadata(params: Mapping[str, Json]) -> dict[str, Json]:
    metadata = params.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _extra_body(params: Mapping[str, Json]) -> dict[str, Json]:
    text = _metadata(params).get("extra_body")
    try:
        body = msgspec.json.decode(text) if isinstance(text, str) else None
    except msgspec.DecodeError:
        return {}
    return body if isinstance(body, dict) else {}


def _written(body: Mapping[str, Json]) -> str:
    """JSON as Python's own module spells it, which is what theirs is written with."""
    return json.dumps(body)


def _number(row: Mapping[str, Json], key: str) -> int | None:
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{key!r} must be a whole number from 0 on, found {value!r:.80}")
    return value


ROW_FORMAT = RowFormat(
    is_row=is_row,
    opening_of=opening_of,
    has_input=has_input,
    split_row=split_row,
    with_agent=with_agent,
    sampling_of=sampling_of,
    unheeded=unheeded,
    merges_repeats=True,
)
