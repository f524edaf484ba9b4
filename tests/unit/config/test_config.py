"""One configuration from files, flags and --set: what wins, and what is said of what is wrong."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from windrow.cli.main import main
from windrow.config import as_tree, expand, load_config, parse_scorer
from windrow.errors import UsageError


@pytest.fixture
def yaml(tmp_path: Path, monkeypatch):
    """Writes run.yaml, run2.yaml, … in the current directory, so that messages name them shortly."""
    monkeypatch.chdir(tmp_path)
    names = itertools.chain(["run.yaml"], (f"run{number}.yaml" for number in itertools.count(2)))

    def write(text: str) -> str:
        name = next(names)
        Path(name).write_text(text, encoding="utf-8")
        return name

    return write


def refusal(files: Any = (), options: Any = None, sets: Any = ()) -> str:
    with pytest.raises(UsageError) as caught:
        load_config(files, options, sets)
    return str(caught.value)


def test_later_files_win_key_by_key(yaml) -> None:
    first = yaml(
        "policy: {model: a, sampling: {temperature: 1, top_p: 0.5}}\nsamples: 2\nlimits: {max_turns: 3}"
    )
    second = yaml("policy:\n  model: b\n  sampling: {temperature: 0.1}\nlimits: {max_tool_calls: 1}")
    run = load_config([first, second]).run
    assert (run.policy.model, run.samples) == ("b", 2)
    assert as_tree(run.policy.sampling) == {"temperature": 0.1, "top_p": 0.5}
    assert (run.limits.max_turns, run.limits.max_tool_calls) == (3, 1)
    assert load_config([second, first]).run.policy.model == "a"


def test_flags_win_over_files_and_set_over_flags(yaml) -> None:
    file = yaml("samples: 2\nconcurrency: 3\nretries: 4\n")
    run = load_config([file], {"samples": 5, "concurrency": 6, "limit": None}, ["samples=7"]).run
    assert (run.samples, run.concurrency, run.retries, run.tasks.limit) == (7, 6, 4, None)


def test_every_value_knows_where_it_was_set(yaml) -> None:
    file = yaml("samples: 2\npolicy:\n  sampling:\n    temperature: 1\n")
    origins = load_config([file], {"top_p": 0.5}, ["policy.sampling={max_tokens: 3}"]).origins
    assert origins["samples"] == "run.yaml:1"
    assert origins["policy.sampling.temperature"] == "run.yaml:4"
    assert origins["policy.sampling.top_p"] == "--top-p"
    assert origins["policy.sampling.max_tokens"] == "--set policy.sampling"


def test_short_spellings_stand_for_sections(yaml) -> None:
    file = yaml("tasks: t.jsonl\nenv: my:Env\nagent: my:Agent\nscorers: [exact, number=0.5, {name: a:b}]")
    run = load_config([file]).run
    assert (run.tasks.path, run.env.name, run.agent.name) == ("t.jsonl", "my:Env", "my:Agent")
    assert [(scorer.name, scorer.weight) for scorer in run.scorers or ()] == [
        ("exact", 1.0),
        ("number", 0.5),
        ("a:b", 1.0),
    ]


def test_another_env_does_not_inherit_the_settings_of_the_first(yaml) -> None:
    first = yaml("env: {name: my:Env, settings: {level: 1, size: 2}}")
    more = yaml("env: {settings: {level: 3}}")
    other = yaml("env: other:Env")
    assert as_tree(load_config([first, more]).run.env) == {
        "name": "my:Env",
        "settings": {"level": 3, "size": 2},
    }
    assert as_tree(load_config([first, other]).run.env) == {"name": "other:Env", "settings": {}}
    assert load_config([first], {"env": "other:Env"}).run.env.settings == {}
    assert load_config([first], {"env": "my:Env"}).run.env.settings == {"level": 1, "size": 2}
    assert load_config([first], sets=["env.settings.level=9"]).run.env.settings == {"level": 9, "size": 2}


def test_settings_with_the_names_of_sections_are_left_as_they_are(yaml) -> None:
    text = "policy: {sampling: {extra: {env: a, tasks: b, name: %s}}}"
    run = load_config([yaml(text % "c"), yaml(text % "d")]).run
    assert run.policy.sampling.extra == {"env": "a", "tasks": "b", "name": "d"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\n", "run.yaml:1: unknown key 'a'"),
        ("samples: 1\nsample: 2\n", "run.yaml:2: unknown key 'sample'; did you mean 'samples'?"),
        ("pass_: 2\n", "run.yaml:1: unknown key 'pass_'; did you mean 'pass'?"),
        ("tasks:\n  pth: a\n", "run.yaml:2: unknown key 'tasks.pth'; did you mean 'path'?"),
        ("policy:\n\n  modle: a\n", "run.yaml:3: unknown key 'policy.modle'; did you mean 'model'?"),
        (
            "policy:\n  sampling:\n    top_p: 1\n    temprature: 1\n",
            "run.yaml:4: unknown key 'policy.sampling.temprature'; did you mean 'temperature'?",
        ),
        (
            "policy: {local: {thread: 1}}",
            "run.yaml:1: unknown key 'policy.local.thread'; did you mean 'threads'?",
        ),
        ("env:\n  nam: x\n", "run.yaml:2: unknown key 'env.nam'; did you mean 'name'?"),
        ("agent: {settngs: {}}", "run.yaml:1: unknown key 'agent.settngs'; did you mean 'settings'?"),
        ("limits:\n  max_turn: 3\n", "run.yaml:2: unknown key 'limits.max_turn'; did you mean 'max_turns'?"),
        (
            "scorers:\n  - exact\n  - name: number\n    wieght: 2\n",
            "run.yaml:4: unknown key 'scorers[1].wieght'; did you mean 'weight'?",
        ),
    ],
)
def test_an_unknown_key_names_its_file_and_line_and_the_nearest_one(yaml, text: str, said: str) -> None:
    assert refusal([yaml(text)]).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("samples: many\n", "run.yaml:1: samples: expected `int`, got `str`"),
        ("samples: true\n", "run.yaml:1: samples: expected `int`, got `bool`"),
        ("lock: 1\n", "run.yaml:1: lock: expected `bool`, got `int`"),
        ("policy: fast\n", "run.yaml:1: policy: expected `object`, got `str`"),
        ("limits:\n  max_turns: [3]\n", "run.yaml:2: limits.max_turns: expected `int`, got `array`"),
        (
            "policy:\n  sampling:\n    temperature: hot\n",
            "run.yaml:3: policy.sampling.temperature: expected `float | null`, got `str`",
        ),
        (
            "policy:\n  sampling:\n    logit_bias:\n      a: b\n",
            "run.yaml:3: policy.sampling.logit_bias: expected `float`, got `str`",
        ),
        ("policy:\n  1: 2\n", "run.yaml:1: policy: keys must be text; put quotes around them"),
        ("scorers: exact\n", "run.yaml:1: scorers: expected `array | null`, got `str`"),
        ("scorers:\n- exact\n- 3\n", "run.yaml:3: scorers[1]: expected `object`, got `int`"),
        ("scorers:\n- weight: 2\n", "run.yaml:2: scorers[0]: object missing required field `name`"),
        ("seeds: ids\n", "run.yaml:1: seeds: invalid enum value 'ids' (known: none, id, sample)"),
        ("tasks:\n  split: 2024-01-01\n", "run.yaml:2: tasks.split: expected `str | null`, got `date`"),
        ("env:\n  name: null\n", "run.yaml:2: env.name: expected `str`, got `null`"),
    ],
)
def test_a_wrong_type_names_its_file_and_line(yaml, text: str, said: str) -> None:
    assert refusal([yaml(text)]) == said


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("samples=0", "samples: expected `int` >= 1"),
        ("concurrency=0", "concurrency: expected `int` >= 1"),
        ("retries=-1", "retries: expected `int` >= 0"),
        ("pass=-1", "pass: expected `int` >= 0"),
        ("tasks.limit=0", "tasks.limit: expected `int` >= 1"),
        ("limits.max_turns=0", "limits.max_turns: expected `int` >= 1"),
        ("limits.call_timeout_s=0", "limits.call_timeout_s: expected `float` > 0.0"),
        ("policy.call_retries=-1", "policy.call_retries: expected `int` >= 0"),
        ("policy.sampling.temperature=-0.1", "policy.sampling.temperature: expected `float` >= 0.0"),
        ("policy.sampling.top_p=1.5", "policy.sampling.top_p: expected `float` <= 1.0"),
        ("policy.sampling.top_p=0", "policy.sampling.top_p: expected `float` > 0.0"),
        (
            "policy.sampling.temperature=.inf",
            "policy.sampling.temperature: expected a finite number, found inf",
        ),
        (
            "policy.sampling.presence_penalty=.nan",
            "policy.sampling.presence_penalty: expected a finite number",
        ),
        ("limits.call_timeout_s=.inf", "limits.call_timeout_s: expected a finite number, found inf"),
    ],
)
def test_a_value_out_of_range_names_its_key_and_flag(assignment: str, said: str) -> None:
    assert refusal(sets=[assignment]).startswith(f"--set {assignment.partition('=')[0]}: {said}")


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("samples", "--set 'samples': expected KEY=VALUE"),
        ("=3", "--set '=3': expected KEY=VALUE"),
        ("samples=[1", "--set 'samples=[1': the value is not valid YAML"),
        ("sampels=3", "--set sampels: unknown key 'sampels'; did you mean 'samples'?"),
        (
            "limits.max_trns=3",
            "--set limits.max_trns: unknown key 'limits.max_trns'; did you mean 'max_turns'?",
        ),
        ("limit.max_turns=3", "--set limit.max_turns: unknown key 'limit'; did you mean 'limits'?"),
        ("samples.x=3", "--set samples.x: samples is not a section, so samples.x cannot be set in it"),
        ("..=3", "--set ..: unknown key ''"),
    ],
)
def test_a_bad_set_is_quoted(yaml, assignment: str, said: str) -> None:
    file = yaml("samples: 1\nlimits:\n  max_turns: 2\n")
    assert refusal([file], None, [assignment]).startswith(said)


def test_values_of_set_are_yaml() -> None:
    sets = ["policy.sampling.stop=[a, b]", "tasks.split=test", "env={name: my:Env}", "out=", "samples= 3"]
    run = load_config(sets=sets).run
    assert (run.policy.sampling.stop, run.tasks.split, run.env.name) == (["a", "b"], "test", "my:Env")
    assert (run.out, run.samples) == (None, 3)
    assert load_config(sets=["policy.model=a=b"]).run.policy.model == "a=b"


def test_a_file_that_is_no_configuration_says_so(yaml) -> None:
    assert refusal(["none.yaml"]) == "cannot read the configuration none.yaml: No such file or directory"
    assert refusal(["."]) == "cannot read the configuration .: Is a directory"
    assert refusal([yaml("- a\n- b\n")]) == "run.yaml: expected a mapping of settings, found list"
    assert refusal([yaml("samples: [1\n")]).startswith("run2.yaml is not valid YAML: ")
    Path("latin.yaml").write_bytes(b"out: caf\xe9\n")
    assert refusal(["latin.yaml"]) == "cannot read the configuration latin.yaml: it is not UTF-8 text"
    assert load_config([yaml("# nothing yet\n")]).run == load_config().run


def test_a_key_set_twice_in_a_file_is_refused(yaml) -> None:
    file = yaml("samples: 1\npolicy:\n  model: a\n  model: b\n")
    assert refusal([file]) == "run.yaml:4: policy.model is set twice, first at run.yaml:3"


def test_variables_stay_unexpanded_in_what_is_written_and_are_expanded_at_use(yaml, monkeypatch) -> None:
    monkeypatch.setenv("MY_HOST", "example.test")
    monkeypatch.delenv("MY_PORT", raising=False)
    text = "policy: {base_url: 'http://${MY_HOST}:${MY_PORT:80}/v1'}"
    run = load_config([yaml(text)]).run
    assert as_tree(run)["policy"]["base_url"] == "http://${MY_HOST}:${MY_PORT:80}/v1"
    assert expand(run.policy.base_url, where="policy.base_url") == "http://example.test:80/v1"
    nested = {"a": ["${MY_HOST}", 1], "b": {"c": "x${MY_PORT:}y"}, "d": "$MY_HOST $${MY_HOST"}
    assert expand(nested, where="settings") == {
        "a": ["example.test", 1],
        "b": {"c": "xy"},
        "d": "$MY_HOST $${MY_HOST",
    }


def test_a_missing_variable_is_named_with_the_key_that_asks_for_it(monkeypatch) -> None:
    monkeypatch.delenv("MY_PORT", raising=False)
    with pytest.raises(UsageError) as caught:
        expand({"a": {"b": "${MY_PORT}"}}, where="env.settings")
    assert str(caught.value) == "env.settings.a.b: the environment variable MY_PORT is not set"


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("exact", {"name": "exact"}),
        ("exact=0.5", {"name": "exact", "weight": 0.5}),
        ("my.mod:fn=-2", {"name": "my.mod:fn", "weight": -2.0}),
        ("my.mod:fn", {"name": "my.mod:fn"}),
    ],
)
def test_a_scorer_is_a_name_and_perhaps_a_weight(text: str, parsed: dict[str, Any]) -> None:
    assert parse_scorer(text) == parsed


def test_a_scorer_with_a_bad_weight_is_quoted() -> None:
    assert (
        refusal((), {"scorers": ["exact=much"]})
        == "--scorer 'exact=much': the weight after '=' must be a number"
    )
    assert refusal((), {"scorers": ["exact=nan"]}).startswith(
        "--scorer: scorers[0].weight: expected a finite number"
    )


def test_an_unknown_keyword_of_the_library_names_the_nearest() -> None:
    assert refusal((), {"temprature": 1}) == "unknown option 'temprature'; did you mean 'temperature'?"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["collect", "--temprature", "0.5", "t.jsonl"],
            "unknown flag --temprature; did you mean '--temperature'?",
        ),
        (["collect", "t.jsonl", "--max-token=5"], "unknown flag --max-token; did you mean '--max-tokens'?"),
        (["collect", "t.jsonl", "--temp", "1"], "unknown flag --temp"),
        (["show", "run", "--wher", "x"], "unknown flag --wher; did you mean '--where'?"),
        (
            ["tasks", "check", "t.jsonl", "--skip-invald"],
            "unknown flag --skip-invald; did you mean '--skip-invalid'?",
        ),
        (["collect", "t.jsonl", "more.jsonl"], "unexpected argument 'more.jsonl'"),
        (
            ["collect", "t.jsonl", "-k", "many"],
            "argument -k/--samples/--group-size: invalid int value: 'many'",
        ),
        (["collect", "t.jsonl", "-k", "0"], "--samples: samples: expected `int` >= 1"),
        (["collect", "t.jsonl", "--seeds", "ids"], "argument --seeds: invalid choice: 'ids'"),
        (
            ["collect", "t.jsonl", "--temperature", "nan"],
            "--temperature: policy.sampling.temperature: expected a",
        ),
        (["colect", "t.jsonl"], "unknown command 'colect'; did you mean 'collect'?"),
    ],
)
def test_a_misspelt_command_line_is_refused_with_the_nearest_name(arguments, said: str, capsys) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"windrow: {said}")
    assert shown.out == ""
    assert "Traceback" not in shown.err


def test_settings_without_a_name_are_for_whichever_environment_is_named_later(tmp_path: Path) -> None:
    file, later = tmp_path / "a.yaml", tmp_path / "b.yaml"
    file.write_text("env: {settings: {opponents: {1: {model: m}}}}")
    later.write_text("env: {name: 'my:Game', settings: {rounds: 2}}")
    assert load_config([file], {"env": "my:Game"}).run.env.settings == {"opponents": {1: {"model": "m"}}}
    assert load_config([file, later]).run.env.settings == {"opponents": {1: {"model": "m"}}, "rounds": 2}
