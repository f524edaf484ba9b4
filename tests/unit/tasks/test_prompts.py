"""Prompt templates: what a row becomes, and what is refused before the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.model_server import ModelServer, write_jsonl
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


NEMO = """\
system: Put the answer in \\\\boxed{{}}.
user: |-
  {question}
  Choices: {choices} ({weight:.1f})
"""


def test_placeholders_as_nemo_gym_has_them_are_filled_as_python_does(tmp_path: Path) -> None:
    row = {"question": "1 + 1?", "choices": ["1", "2"], "weight": 0.25}
    messages = read_template(template(tmp_path, NEMO.replace("\\\\\\\\", "\\\\"))).messages(row)
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[0]["content"].endswith("boxed{}.")
    assert messages[1]["content"] == "1 + 1?\nChoices: ['1', '2'] (0.2)"


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("user: 'Say {\"a\": 1}'", 'Say {"a": 1}'),  # braces of JSON are no placeholders
        ("user: '{{ question }} in {tex}'", "1 + 1? in {tex}"),  # Jinja's marks win
        ("user: '{question}'\nplaceholders: jinja", "{question}"),
        ("user: '{{a}} {question}'\nplaceholders: format", "{a} 1 + 1?"),
        ("user: 'a {} b'", "a {} b"),
        ("user: 'an open { brace'", "an open { brace"),
    ],
)
def test_whose_placeholders_are_meant_is_seen_by_the_text_or_said(
    tmp_path: Path, text: str, rendered: str
) -> None:
    assert read_template(template(tmp_path, text)).messages({"question": "1 + 1?"})[0]["content"] == rendered


def test_a_field_that_the_row_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'question' is undefined \(the row has: prompt\)$"):
        read_template(template(tmp_path, "user: '{question}'")).messages({"prompt": "x"})
    with pytest.raises(ValueError, match=r"'a' is undefined .* say 'placeholders: format'"):
        read_template(template(tmp_path, "user: '{{a}} {question}'")).messages({"question": "x"})


@pytest.mark.parametrize("text", ["{a.__class__}", "{a[0]}", "{}", "{a:{b.c}}", "{a"])
def test_placeholders_reach_fields_and_nothing_inside_them(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="prompt template"):
        read_template(template(tmp_path, f"user: '{text}'\nplaceholders: format"))


def test_a_row_with_an_input_of_its_own_is_not_overwritten(tmp_path: Path) -> None:
    row = {"responses_create_params": {"input": "2 + 2?"}, "question": "1 + 1?"}
    prompt = read_template(template(tmp_path, "user: '{question}'"))
    with pytest.raises(ValueError, match="the row has an input of its own"):
        prompt.messages(row)
    assert prompt.messages({**row, "responses_create_params": {}})[0]["content"] == "1 + 1?"


def test_placeholders_shape_the_rollouts_and_jinja_templates_keep_their_identity(tmp_path: Path) -> None:
    jinja = read_template(template(tmp_path, "user: '{{ question }}'"))
    assert jinja.source == {"user": "{{ question }}", "system": None, "messages": []}
    assert read_template(template(tmp_path, "user: '{question}'")).source["placeholders"] == "format"
