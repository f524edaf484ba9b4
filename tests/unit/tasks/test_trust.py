"""What rows may name beside data: nothing, unless the user has allowed it, and then exactly that."""

from __future__ import annotations

from typing import Any

import pytest

from windrow.config import LoadedConfig, RunConfig, TrustConfig, load_config
from windrow.config.sections import DatasetConfig, TasksConfig
from windrow.errors import UsageError
from windrow.tasks.trust import Demand, RowTrust, command_line, row_trust, server_demands


def allowed(kind: Any, name: str, **lists: Any) -> bool:
    return RowTrust(TrustConfig(**lists)).allowed_by(Demand(kind, name, "field")) is not None


def host(url: str) -> str:
    [demand] = server_demands({"url": url}, "mcp_config.x")
    return demand.name


@pytest.mark.parametrize("kind", ["module", "command", "host", "variable", "file"])
def test_everything_is_refused_by_default_and_trusted_rows_may_name_everything(kind: Any) -> None:
    assert not allowed(kind, "a:b")
    assert allowed(kind, "a:b", rows=True)


def test_a_list_allows_its_own_kind_alone() -> None:
    for kind, key in (
        ("module", "modules"),
        ("command", "commands"),
        ("host", "hosts"),
        ("variable", "variables"),
    ):
        names = [
            other
            for other in ("module", "command", "host", "variable", "file")
            if allowed(other, "a", **{key: ["a"]})
        ]
        assert names == [kind]  # fmt: skip


@pytest.mark.parametrize(
    ("listed", "name", "fits"),
    [
        ("pkg.envs", "pkg.envs:Maze", True),
        ("pkg.envs:Maze", "pkg.envs:Maze", True),
        ("pkg.envs:Maze", "pkg.envs:Other", False),
        ("pkg.*", "pkg:Maze", True),
        ("pkg.*", "pkg.envs.deep:Maze", True),
        ("pkg.*", "pkg_other:Maze", False),
        ("pkg", "pkg.envs:Maze", False),
        ("pkg", "pkgs:Maze", False),
        ("*", "pkg:Maze", False),
        ("pkg", "pkg:os.system", False),  # a path through the module into what it has imported
        ("pkg.*", "pkg.envs:shutil.rmtree", False),
        ("pkg", "pkg:x:y", False),
        ("pkg:Outer.Inner", "pkg:Outer.Inner", True),
    ],
)
def test_a_module_is_allowed_by_its_name_its_package_or_one_of_its_names(
    listed: str, name: str, fits: bool
) -> None:
    assert allowed("module", name, modules=[listed]) == fits


@pytest.mark.parametrize(
    ("listed", "name", "fits"),
    [
        ("h.example", "h.example", True),
        ("H.example", "h.example:8443", True),
        ("h.example:8443", "h.example:8443", True),
        ("h.example:8443", "h.example", False),
        ("example", "h.example", False),
        ("[::1]", "[::1]:80", True),
        ("[::1]:80", "[::1]:81", False),
        ("${HOST}", "${HOST}", True),
        ("h.example", "${HOST:h.example}", False),
    ],
)
def test_a_host_is_allowed_with_all_ports_or_with_one(listed: str, name: str, fits: bool) -> None:
    assert allowed("host", name, hosts=[listed]) == fits


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://H.example/mcp", "h.example"),
        ("https://h.example:8443?x", "h.example:8443"),
        ("http://[::1]:80/", "[::1]:80"),
        ("http://h.example#@evil.example", "h.example"),
    ],
)
def test_the_host_of_an_address_is_what_every_reader_takes_for_it(url: str, name: str) -> None:
    assert host(url) == name


@pytest.mark.parametrize(
    "url",
    [
        "http://good.example@evil.example/",
        "http://evil.example\\@good.example/",
        "http://good.example\n.evil.example/",
        "http://good.example:80:81/",
        "http://good.example:/",
        "http:///good.example",
        "//good.example",
        "file:///etc/passwd",
        "http://$good.example/",
        "",
    ],
)
def test_an_address_that_could_be_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"mcp_config\.x\.url: expected the address"):
        host(url)


def test_a_host_with_a_variable_in_it_is_compared_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_HOST", "secret.example")
    for url, name in (
        ("http://${CANARY_HOST}/mcp", "${CANARY_HOST}"),
        ("${CANARY_HOST:http://evil.example/}mcp", "${CANARY_HOST:http://evil.example/}mcp"),
        ("http://good.example.${CANARY_HOST:evil.example}/", "good.example.${CANARY_HOST:evil.example}"),
    ):
        variable, named = server_demands({"url": url}, "x")
        assert (variable.kind, variable.name) == ("variable", "CANARY_HOST")
        assert (named.kind, named.name) == ("host", name)


def test_a_command_is_known_by_all_that_decides_what_it_runs() -> None:
    server: dict[str, Any] = {
        "command": "python",
        "args": ["-m", "srv"],
        "env": {"B": "2", "A": "1 1"},
        "cwd": "/w d",
    }
    assert command_line(server) == "cd '/w d' && 'A=1 1' B=2 python -m srv"
    lines = [
        command_line(other)
        for other in (
            server,
            {"command": "sh", "args": ["-c", "a b"]},
            {"command": "sh", "args": ["-c", "a", "b"]},
            {"command": "sh -c a b"},
            {"command": "sh", "args": ["-c", "'a b'"]},
            {"command": "sh", "args": ["-c", "a b"], "cwd": "/x"},
            {"command": "sh", "args": ["-c", "a b"], "env": {"LD_PRELOAD": "/x.so"}},
            {"command": "LD_PRELOAD=/x.so", "args": ["sh", "-c", "a b", ""]},
            {"command": "sh", "args": ["-c", "${X:a b}"]},
            {"command": "sh", "args": ["-c", "${X:a", "b}"]},
            {"command": "cd", "args": ["/x", "&&", "sh", "-c", "a b"]},
        )
    ]  # fmt: skip
    assert len(set(lines)) == len(lines)


def test_every_variable_of_a_server_is_a_demand_wherever_it_stands() -> None:
    server = {
        "command": "${C1:x}",
        "args": ["${C2}"],
        "env": {"K": "a${C3}b${C4:d}"},
        "cwd": "${C5}",
        "headers": {"H": "${C6}"},
    }
    named = [demand.name for demand in server_demands(server, "x") if demand.kind == "variable"]
    assert named == ["C1", "C2", "C3", "C4", "C5", "C6"]


def test_what_the_user_names_outside_the_rows_needs_no_further_word() -> None:
    run = RunConfig(
        tasks=TasksConfig(path="gymnasium:my_worlds:Maze-v0?n=3"),
        datasets=[DatasetConfig(path="textarena:other:Game-v0", split="train")],
    )
    trust = row_trust(LoadedConfig(run, {}), ["my_agents:Solver"])
    for name in ("my_worlds:Maze-v0", "other:Game-v0", "my_agents:Solver"):
        trust.check([Demand("module", name, "game")])
    for name in ("my_worlds:Other-v0", "tasks:jsonl"):
        with pytest.raises(ValueError, match="would import the module"):
            trust.check([Demand("module", name, "game")])
    files = row_trust(LoadedConfig(RunConfig(tasks=TasksConfig(path="./a:b:c.jsonl")), {}))
    assert files.allowed_by(Demand("module", "b:c.jsonl", "game")) is None


def test_a_refusal_says_where_what_and_exactly_what_to_add() -> None:
    demand = Demand("command", "sh -c 'echo \"hi\"'", "mcp_config.world")
    with pytest.raises(ValueError, match="rows are data") as refused:
        RowTrust().check([demand])
    said = str(refused.value)
    assert said.startswith("mcp_config.world would start the command ")
    assert "--trust-rows" in said
    _, _, added = said.partition("add to the configuration ")
    loaded = load_config((), {}, [f"trust={added.removeprefix('trust: ')}"])
    RowTrust(loaded.trust).check([demand])
    with pytest.raises(ValueError, match=r"--trust-rows if you trust this source$"):
        RowTrust().check([Demand("file", "/etc/passwd", "kwargs.path")])


def test_no_run_directory_brings_trust_along() -> None:
    """What a run has kept is the base of `rescore`; a run.json with `trust` in it changes nothing."""
    base = {"trust": {"rows": True}, "samples": 2}
    assert load_config((), {}, base=base).trust == TrustConfig()
    assert load_config((), {"trust_rows": True}, base=base).trust.rows
    assert "trust" not in RunConfig.__struct_fields__


def test_an_unknown_key_of_trust_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"unknown key 'trust\.host'; did you mean 'hosts'"):
        load_config((), {}, ["trust.host=[a]"])
