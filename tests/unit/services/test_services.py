"""`services:` before anything is started: what is refused, who comes after whom, and what addresses stand for."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_server import write_jsonl
from windrow.cli.progress_text import Speed, frame
from windrow.collecting.resolve import ResolvedRun, resolve
from windrow.config import expand, load_config, services_at
from windrow.engine.progress import Progress
from windrow.errors import UsageError
from windrow.services import addresses, plan_services
from windrow.services.ports import LOWEST, free_port, is_free
from windrow.util.redaction import Redactor

pytestmark = pytest.mark.slow


def planned(services: Any, **options: Any) -> Any:
    run = load_config((), options, base={"services": services}).run
    return plan_services(run, Redactor())


def resolved(path: Path, tree: dict[str, Any], **options: Any) -> ResolvedRun:
    tasks = str(write_jsonl(path / "tasks.jsonl", [{"prompt": "hello"}]))
    return resolve(load_config((), {"tasks": tasks, "env": "prompt", "model": "m", **options}, base=tree))


@pytest.mark.parametrize(
    ("services", "message"),
    [
        ({"model": {}}, "services.model: give a `command` that starts it, or the `url` where it runs"),
        ({"model": {"comand": "x"}}, r"unknown key 'services.model.comand'; did you mean 'command'\?"),
        ({"model": {"command": "x", "port": 0}}, "services.model.port: expected `int` >= 1"),
        ({"model": {"command": "x", "port": "any"}}, r"invalid enum value 'any' \(known: auto\)"),
        ({"model": {"command": "serve 'x"}}, "services.model.command: not a command: No closing quotation"),
        ({"a model": {"command": "x"}}, "services: 'a model' is not a name"),
        ({"model": {"url": "localhost:8000"}}, "services.model.url: expected a URL such as"),
        (
            {"model": {"command": "x"}, "world": {"command": "x", "needs": ["modle"]}},
            r"services.world: it needs 'modle', which is no service; did you mean 'model'\?",
        ),
        (
            {"a": {"command": "x ${service.b.url}"}, "b": {"command": "x", "needs": ["a"]}},
            "they need each other in a circle: ",
        ),
        (
            {"a": {"command": "x", "port": 8000}, "b": {"command": "x", "port": 8000}},
            "services 'a' and 'b' would both be at http://127.0.0.1:8000",
        ),
        (
            {"model": {"command": "x"}, "world": {"command": "x ${service.model.adress}"}},
            "expected \\${service.NAME.url}, or .host or .port",
        ),
        ({"model": {"command": "x ${NOT_SET_ANYWHERE}"}}, "services.model.command: the environment variable"),
    ],
)
def test_what_is_wrong_with_a_service_is_said_before_it_is_started(services: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(services)


def test_each_service_comes_after_those_it_needs_and_is_told_where_they_are() -> None:
    services = planned(
        {
            "world": {"command": ["serve", "--model", "${service.model.url}/v1"], "needs": ["tools"]},
            "tools": {
                "command": "serve {port} ${PORT}",
                "env": {"AT": "${PORT}"},
                "health": "/up?port={port}",
            },
            "model": {"command": "serve", "port": 8123, "health": "http://localhost:${PORT}/health"},
        }
    )
    by_name = {service.name: service for service in services}
    assert [*by_name].index("world") == 2
    port = by_name["tools"].url.rpartition(":")[2]
    assert by_name["world"].command == ("serve", "--model", "http://127.0.0.1:8123/v1")
    assert set(by_name["world"].needs) == {"model", "tools"}
    assert by_name["tools"].command == ("serve", port, port)
    assert by_name["tools"].environment == {"AT": port, "PORT": port}
    assert by_name["tools"].health == f"http://127.0.0.1:{port}/up?port={port}"
    assert by_name["model"].health == "http://localhost:8123/health"


def test_a_variable_stays_one_word_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHTS", "my model.gguf")
    [service] = planned({"model": {"command": "serve ${WEIGHTS}"}})
    assert service.command == ("serve", "my model.gguf")


def test_what_runs_already_is_not_started() -> None:
    services = {"a": {"command": "x", "port": 8001}, "b": {"command": "x", "url": "https://there.example/b/"}}
    assert [service.command for service in planned(services, serve=False)] == [(), ()]
    assert {service.name: bool(service.command) for service in planned(services)} == {"a": True, "b": False}
    assert addresses(planned(services))["b"] == "https://there.example/b"
    with pytest.raises(UsageError, match=r"services\.a: --no-serve starts none, so say where it runs"):
        planned({"a": {"command": "x"}}, serve=False)


def test_an_address_stands_for_itself_and_its_parts_wherever_a_value_is_used() -> None:
    value = {"at": ["${service.a.url}/v1", "${service.a.host}", "${service.b.port}"]}
    with services_at({"a": "http://127.0.0.1:8000", "b": "https://there.example"}):
        assert expand(value, where="here") == {"at": ["http://127.0.0.1:8000/v1", "127.0.0.1", "443"]}
        with pytest.raises(UsageError, match="here: no address of a service 'c' is known here"):
            expand("${service.c.url}", where="here")
    with pytest.raises(UsageError, match=r"--set services\.a\.url=URL says where one runs"):
        expand("${service.a.url}", where="here")


def test_an_address_is_in_no_fingerprint(tmp_path: Path) -> None:
    tree = {"policy": {"base_url": "${service.model.url}/v1"}}
    tools = [
        {"mcp": {"command": ["serve", "--at", "${service.model.url}"]}},
        {"mcp": {"url": "${service.model.url}/mcp"}},
    ]
    found = [
        resolved(
            tmp_path,
            {**tree, "services": {"model": {"command": "serve", **service}}},
            tools=tools,
            env="tool",
        )
        for service in ({}, {"port": 8001}, {"url": "http://there.example:8002"})
    ]
    assert len({one.behaviour.hash for one in found}) == 1
    assert "${service.model.url}/mcp" in str(found[0].behaviour.of)


def test_what_is_waited_for_is_shown() -> None:
    waiting = Progress(planned=4, phase="serving", waiting_for=("model", "tools"))
    assert frame(waiting, Speed()).status == "waiting for service model, tools"
    assert frame(Progress(planned=4, phase="serving"), Speed()).status == "waiting for the policy"


def test_a_port_is_given_once_until_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_port()
    others = [number for number in range(LOWEST, LOWEST + 100) if number != first.number]
    drawn = iter([first.number, first.number, *others])
    monkeypatch.setattr("random.randrange", lambda low, high: next(drawn))
    second = free_port()
    assert second.number in others
    first.release()
    monkeypatch.setattr("random.randrange", lambda low, high: first.number)
    assert free_port().number == first.number


def test_a_port_on_which_someone_listens_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_secrets_of_services_are_kept_out_of_run_json(tmp_path: Path) -> None:
    service = {"command": "serve", "env": {"API_KEY": "a-key-of-ours", "MODE": "fast-and-loose"}}
    run = resolved(
        tmp_path, {"services": {"model": service}, "policy": {"base_url": "${service.model.url}/v1"}}
    )
    assert run.redactor.text("a-key-of-ours fast-and-loose") == "[redacted] fast-and-loose"


@pytest.mark.parametrize("name", ["", "/math"])
def test_a_head_server_of_nemo_gym_may_be_a_service(name: str) -> None:
    agent = load_config((), {"agent": "nemo-gym:${service.head.url}" + name}).run.agent
    assert agent.settings == {"head": "${service.head.url}", **({"agent": "math"} if name else {})}
