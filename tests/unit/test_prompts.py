"""Prompt templates: what a row becomes, and what is refused before the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving import ModelServer, write_jsonl
from windrow.cli.main import main
from windrow.errors import UsageError
from windrow.tasks.prompts import read_template

TEMPLATE = """\
system: You are {{ tone }}.
messages:
  - {role: user, content: "2 + 2?"}
  - {role: assistant, content: "4"}
user: |-
  Q: {{ question }}
  {% for hint in hints %}- {{ hint }}
  {% endfor %}
"""


def template(tmp_path: Path, text: str = TEMPLATE) -> str:
    path = tmp_path / "prompt.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_row_becomes_system_few_shot_and_user_messages(tmp_path: Path) -> None:
    messages = read_template(template(tmp_path)).messages(
        {"tone": "terse", "question": "1 + 1?", "hints": ["add"]}
    )
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[0]["content"] == "You are terse."
    assert messages[3]["content"].startswith("Q: 1 + 1?\n- add")


def test_the_endpoint_gets_the_rendered_messages_and_the_record_keeps_them(tmp_path: Path) -> None:
    tasks = write_jsonl(
        tmp_path / "t.jsonl", [{"tone": "terse", "question": "1 + 1?", "hints": [], "answer": 2}]
    )
    with ModelServer("2") as server:
        arguments = ["collect", str(tasks), "--model", "stub", "--base-url", server.url]
        arguments += ["--prompt", template(tmp_path), "--out", str(tmp_path / "run"), "--quiet"]
        assert main(arguments) == 0
        assert server.bodies[0]["messages"][0] == {"role": "system", "content": "You are terse."}
        assert server.bodies[0]["messages"][-1]["content"].startswith("Q: 1 + 1?")


def test_an_undefined_variable_names_the_row_and_the_variable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"tone": "terse", "question": "1 + 1?", "hints": []}, {"tone": "terse", "hints": []}]
    tasks = write_jsonl(tmp_path / "t.jsonl", rows)
    arguments = ["collect", str(tasks), "--model", "m", "--base-url", "http://127.0.0.1:9/v1"]
    assert main([*arguments, "--prompt", template(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "t.jsonl:2" in said
    assert "'question' is undefined" in said
    assert "tone, hints" in said


def test_ready_made_messages_clash_with_a_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = write_jsonl(tmp_path / "t.jsonl", [{"messages": [{"role": "user", "content": "hi"}]}])
    arguments = ["collect", str(tasks), "--model", "m", "--base-url", "http://127.0.0.1:9/v1"]
    assert main([*arguments, "--prompt", template(tmp_path)]) == 2
    assert "ready-made 'messages'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("usr: hi", "unknown key 'usr'; did you mean 'user'?"),
        ("system: hi", "user"),
        ("user: '{{ oops'", "prompt.yaml"),
        ("- user", "prompt.yaml"),
        ("user: [1", "not valid YAML"),
        ("user: hi\nmessages: [{role: user}]", "content"),
    ],
)
def test_a_flawed_template_is_refused_with_its_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_template(template(tmp_path, text))
    assert said in str(refused.value)


def test_a_missing_template_is_named() -> None:
    with pytest.raises(UsageError, match="cannot read the prompt template"):
        read_template("nowhere.yaml")


def test_a_template_cannot_reach_out_of_its_sandbox(tmp_path: Path) -> None:
    hostile = template(tmp_path, "user: \"{{ ''.__class__.__mro__[1].__subclasses__() }}\"")
    with pytest.raises(ValueError, match="unsafe"):
        read_template(hostile).messages({})


def test_another_template_is_another_behaviour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = write_jsonl(tmp_path / "t.jsonl", [{"question": "1 + 1?", "answer": 2}])
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("user: '{{ question }}'", encoding="utf-8")
    second.write_text("user: 'Please: {{ question }}'", encoding="utf-8")
    with ModelServer("2") as server:
        arguments = ["collect", str(tasks), "--model", "stub", "--base-url", server.url]
        arguments += ["--out", str(tmp_path / "run"), "--quiet"]
        assert main([*arguments, "--prompt", str(first)]) == 0
        assert main([*arguments, "--prompt", str(second)]) == 2
        assert "prompt.user" in capsys.readouterr().err
        assert server.completions == 1
