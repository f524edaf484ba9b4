"""Contract servers of NeMo Gym, written from its documentation: a head server, agent servers, a resources server.

The real wire on 127.0.0.1, from a thread of its own, strict about what it is sent: a body that FastAPI and the closed
create params would refuse is a 422 here too. What an agent does with a row is a function that the test gives:

    with Gym({"math": lambda row, n: answer(row, "4", reward=1.0)}) as gym: ...     # the answer of /run
    lambda row, n: (500, "RuntimeError('no browser')")                              # a status and its body
    lambda row, n: HANG / DIE / CUT                          # never answers; closes the connection; does so in mid-answer

`n` counts the agent's rows from 0. The function runs in a worker thread, and may block.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import yaml
from aiohttp import web

HANG, DIE, CUT = object(), object(), object()
Row = dict[str, Any]
Play = Callable[[Row, int], Any]

CREATE_PARAMS = frozenset(
    "background include input instructions max_output_tokens max_tool_calls metadata model parallel_tool_calls "
    "previous_response_id prompt reasoning service_tier store temperature text tool_choice tools top_logprobs top_p "
    "truncation user stream".split()
)
NEVER_NULL = ("input", "tools", "tool_choice", "parallel_tool_calls")
RESPONSE = "id created_at model object output parallel_tool_calls tool_choice tools".split()
ROLLOUT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
SECRET = "sk-of-the-head-server"  # which serves its whole configuration, keys and all
USAGE = {
    "input_tokens": 7,
    "input_tokens_details": {"cached_tokens": 2},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 10,
}


def row(prompt: str, agent: str | None = "math", **fields: Any) -> Row:
    """An input row, as their data files have it."""
    params = {"input": [{"role": "user", "content": prompt}], "tools": []}
    return {"responses_create_params": params, **({"agent_ref": {"name": agent}} if agent else {}), **fields}


def prompt_of(sent: Row) -> str:
    return str(sent["responses_create_params"]["input"][0]["content"])


def message(text: str, **more: Any) -> Row:
    part = {"type": "output_text", "text": text, "annotations": []}
    said = {
        "id": f"msg_{text[:8]}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    return {**said, **more}


def call(id: str, name: str, arguments: Mapping[str, Any], **more: Any) -> Row:
    asked = {"type": "function_call", "call_id": id, "name": name, "arguments": json.dumps(arguments)}
    return {**asked, "id": f"fc_{id}", "status": "completed", **more}


def result(id: str, output: str) -> Row:
    return {"type": "function_call_output", "call_id": id, "output": output, "id": f"fco_{id}"}


def sampled(prompt: list[int], output: list[int], logprobs: list[float] | None = None) -> Row:
    """The tokens that the last item of a model call carries."""
    chances = [-0.5] * len(output) if logprobs is None else logprobs
    return {"prompt_token_ids": prompt, "generation_token_ids": output, "generation_log_probs": chances}


def answer(
    sent: Row, *output: str | Row, reward: Any = 1.0, response: Row | None = None, **fields: Any
) -> Row:
    """What /run answers: the verifier's response, which echoes nothing but the parameters."""
    items = [message(item) if isinstance(item, str) else item for item in output]
    said = {
        "id": "resp_1",
        "created_at": 1700000000.0,
        "model": "served-model",
        "object": "response",
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": USAGE,
        "incomplete_details": None,
    }
    params = sent["responses_create_params"]
    return {
        "responses_create_params": params,
        "response": {**said, **(response or {})},
        "reward": reward,
        **fields,
    }


class Gym:
    """`verify` is what the resources server's /verify answers, or by name what each of several does; `verifiers` says
    which agent has which. `listed`: whether the head server has /server_instances."""

    def __init__(
        self,
        agents: Mapping[str, Play],
        *,
        verify: Play | Mapping[str, Play] | None = None,
        verifiers: Mapping[str, str] | None = None,
        mode: str | None = "stateless",
        listed: bool = True,
        head_port: int = 0,
    ) -> None:
        self.agents = dict(agents)
        verify = verify or (lambda row, n: {**row, "reward": 1.0})
        self.verify = {"resources": verify} if callable(verify) else dict(verify)
        self.verifiers = dict(verifiers or {})
        self.mode = mode
        self.listed = listed
        self.rows: list[tuple[str, Row]] = []  # let in, by agent, in the order they came
        self.verified: list[Row] = []
        self.aggregated: list[tuple[str, list[Row]]] = []
        self.refused: list[str] = []  # why, of bodies that were not as they must be
        self.requests: Counter[str] = Counter()
        self.in_flight: Counter[str] = Counter()
        self.peaks: Counter[str] = Counter()
        self.ports: dict[str, int] = {}
        self._runners: dict[str, web.AppRunner] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nemo-gym", daemon=True)
        self._thread.start()
        for name in ("head", *self.verify, *self.agents):
            self.start(name, head_port if name == "head" else 0)

    @property
    def head(self) -> str:
        return f"http://127.0.0.1:{self.ports['head']}"

    @property
    def resources(self) -> str:
        return f"http://127.0.0.1:{self.ports['resources']}"

    def rows_of(self, agent: str) -> list[Row]:
        return [row for name, row in self.rows if name == agent]

    def use_threads(self, pool: ThreadPoolExecutor) -> None:
        """Let the functions of the test run in these threads: all at a time, where they wait for each other."""
        self._loop.call_soon_threadsafe(self._loop.set_default_executor, pool)

    def start(self, name: str, port: int = 0) -> None:
        """Start one of the servers, also again, at a port of its own."""
        self._do(self._serve(name, port))

    def stop(self, name: str) -> None:
        """End one of the servers: its connections are refused from now on, and the head server still lists it."""
        self._do(self._runners.pop(name).cleanup())

    def close(self) -> None:
        for name in tuple(self._runners):
            self.stop(name)
        self._do(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def __enter__(self) -> Gym:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _serve(self, name: str, port: int) -> None:
        app = web.Application(client_max_size=2**28)
        get, post = app.router.add_get, app.router.add_post
        get("/", _ok)
        if name == "head":
            get("/global_config_dict_yaml", self._configuration)
            if self.listed:
                get("/server_instances", self._instances)
        elif name in self.verify:
            post("/verify", partial(self._verify, name))
            get("/reverify_mode", self._mode)
        else:
            post("/run", partial(self._run, name))
            post("/aggregate_metrics", partial(self._aggregate, name))
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.ports[name], self._runners[name] = runner.addresses[0][1], runner

    # -- the head server

    async def _instances(self, request: web.Request) -> web.Response:
        self.requests["/server_instances"] += 1
        listed = []
        for name, port in self.ports.items():
            kind = "resources_servers" if name in self.verify else "responses_api_agents"
            where = {"host": "127.0.0.1", "port": port, "url": f"http://127.0.0.1:{port}"}
            if name != "head":
                listed.append({"process_name": name, "server_type": kind, "name": "impl", "pid": 1, **where})
        return web.json_response(listed)

    async def _configuration(self, request: web.Request) -> web.Response:
        self.requests["/global_config_dict_yaml"] += 1
        config: dict[str, Any] = {"policy_base_url": "${oc.env:URL}", "policy_api_key": SECRET}
        for name, port in self.ports.items():
            where = {"host": "0.0.0.0", "port": port, "entrypoint": "app.py"}
            if name in self.verify:
                config[name] = {"resources_servers": {"impl": where}}
            elif name != "head":
                verifier = self.verifiers.get(name, "resources")
                where["resources_server"] = {"type": "resources_servers", "name": verifier}
                config[name] = {"responses_api_agents": {"impl": where}}
        return web.json_response(yaml.safe_dump(config))

    # -- an agent server

    async def _run(self, name: str, request: web.Request) -> web.StreamResponse:
        self.requests["/run"] += 1
        sent = await request.json()
        if (wrong := _wrong_row(sent)) is not None:
            return self._unprocessable(wrong)
        if not ROLLOUT_ID.fullmatch(str(sent.get("_ng_rollout_id"))):
            return self._unprocessable(("_ng_rollout_id", "not an id of a rollout"))
        n = len(self.rows_of(name))
        self.rows.append((name, sent))
        self.in_flight[name] += 1
        self.peaks[name] = max(self.peaks[name], self.in_flight[name])
        try:
            return await self._answer(self.agents[name], sent, n, request)
        finally:
            self.in_flight[name] -= 1

    async def _aggregate(self, name: str, request: web.Request) -> web.Response:
        sent = await request.json()
        rows = sent.get("verify_responses") if isinstance(sent, dict) else None
        if not isinstance(rows, list):
            return self._unprocessable(("verify_responses", "Field required"))
        if any(not isinstance(row.get("reward"), int | float) for row in rows):
            return self._unprocessable(("verify_responses", "a reward is missing"))
        keys = [(row.get("_ng_task_index", 0), row.get("_ng_rollout_index", 0)) for row in rows]
        if len(set(keys)) < len(keys):
            return web.json_response("ValueError('duplicate keys')", status=500)
        self.aggregated.append((name, rows))
        mean = sum(row["reward"] for row in rows) / max(len(rows), 1)
        metrics = {"mean/reward": mean, "own/score": 42.0}
        return web.json_response(
            {"group_level_metrics": [], "agent_metrics": metrics, "key_metrics": {"mean/reward": mean}}
        )

    # -- the resources server

    async def _mode(self, request: web.Request) -> web.Response:
        return web.Response(status=404) if self.mode is None else web.json_response(self.mode)

    async def _verify(self, name: str, request: web.Request) -> web.StreamResponse:
        self.requests["/verify"] += 1
        sent = await request.json()
        wrong = _wrong_row(sent)
        response = sent.get("response") if isinstance(sent, dict) else None
        if wrong is None and not isinstance(response, dict):
            wrong = ("response", "Field required")
        if wrong is None and (missing := next((key for key in RESPONSE if key not in response), None)):
            wrong = (f"response.{missing}", "Field required")
        if wrong is not None:
            return self._unprocessable(wrong)
        self.verified.append(sent)
        return await self._answer(self.verify[name], sent, len(self.verified) - 1, request)

    # -- what all have

    async def _answer(self, play: Play, sent: Row, n: int, request: web.Request) -> web.StreamResponse:
        try:
            said = await asyncio.to_thread(play, sent, n)
        except Exception as problem:  # as FastAPI's handler there: the exception's repr, in JSON
            return web.json_response(repr(problem), status=500)
        if said is HANG:
            await asyncio.Event().wait()
        if said in (DIE, CUT):
            assert request.transport is not None
            if said is CUT:
                begun = web.StreamResponse(headers={"Content-Length": "1000"})
                await begun.prepare(request)
                await begun.write(b'{"reward": 1.0, "response": {')
            request.transport.abort()
            return web.Response()
        if isinstance(said, tuple):
            status, body = said
            return web.json_response(body, status=status)
        return web.Response(body=json.dumps(said), content_type="application/json")  # NaN as Python writes it

    def _unprocessable(self, wrong: tuple[str, str]) -> web.Response:
        place, why = wrong
        self.refused.append(f"{place}: {why}")
        detail = [{"type": "value_error", "loc": ["body", *place.split(".")], "msg": why, "input": None}]
        return web.json_response({"detail": detail}, status=422)


async def _ok(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


def _wrong_row(sent: Any) -> tuple[str, str] | None:
    """Where a row is not as the documented models have it, and why."""
    params = sent.get("responses_create_params") if isinstance(sent, dict) else None
    if not isinstance(params, dict):
        return "responses_create_params", "Field required"
    if unknown := sorted(params.keys() - CREATE_PARAMS):
        return f"responses_create_params.{unknown[0]}", "Extra inputs are not permitted"
    if "input" not in params:
        return "responses_create_params.input", "Field required"
    null = next((key for key in NEVER_NULL if key in params and params[key] is None), None)
    if null is not None:
        return f"responses_create_params.{null}", "Input should be valid, not null"
    metadata = params.get("metadata") or {}
    if not all(isinstance(value, str) for value in metadata.values()):
        return "responses_create_params.metadata", "Input should be a valid string"
    return None
