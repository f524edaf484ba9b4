"""Task files of any bytes: tasks come out, or one error that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutations import fuzz, mutated_bytes, mutated_json, mutated_text, taken_or_refused
from tests.support.run_builders import folder_in_memory
from tests.support.task_loading import resolved
from windrow.collecting.resolve import ResolvedRun

ROWS = [
    {"id": "a", "prompt": "2 + 2?", "answer": "4", "tags": ["x"], "data": {"n": [1, 2.5, None]}},
    {"messages": [{"role": "system", "content": "brief"}, {"role": "user", "content": [{"type": "text", "text": "2?"}]}]},
    {"prompt": "é😀", "answer": 4, "env": "problem", "sampling": {"temperature": 0.5, "stop": ["x"]}, "agent": "chat"},
]  # fmt: skip
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode() + b"\n"
ARRAY = json.dumps(ROWS, indent=1).encode()
TABLE = b'id,prompt,answer\n1,"2 + 2?",4\n2,"say ""hi""\nthere",\xc3\xa9\n'
FORMS = {
    "jsonl": mutated_bytes([LINES, ARRAY, LINES * 3]) | mutated_json(ROWS),
    "json": mutated_bytes([ARRAY, LINES]) | mutated_json([ROWS]),
    "csv": mutated_bytes([TABLE, TABLE.replace(b"\n", b"\r\n")]),
    "tsv": mutated_bytes([TABLE.replace(b",", b"\t")]),
}
MAPS = ["prompt=question", "prompt={{question}} now", "answer=solution|after:####", "prompt=a.b[0]|strip|lower",
        "answer=choices|index:2", "id=x|default:3"]  # fmt: skip
TEMPLATES = ["system: You are {{ role }}.\nuser: '{{ prompt }}'\n", "user: '{% if x %}{{ x|upper }}{% endif %}'\n",
             "messages:\n- {role: user, content: '{{ prompt }}'}\n"]  # fmt: skip


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with folder_in_memory() as path:
        yield path


def read(path: Path, **options: object) -> ResolvedRun | None:
    """What is made of the file; None where it is refused. Anything else that is raised is a failure."""
    found: ResolvedRun | None = taken_or_refused(lambda: resolved(path, **options))
    if found is None:
        return None
    tasks = [found.source.task(position) for position in range(len(found.source))]
    msgspec.json.encode(tasks)
    return found


@pytest.mark.parametrize("ending", FORMS)
@fuzz(200)
@given(data=st.data())
def test_a_task_file_of_any_bytes_is_read_or_refused(ending: str, data: st.DataObject, folder: Path) -> None:
    path = folder / f"tasks.{ending}"
    path.write_bytes(data.draw(FORMS[ending]))
    strict = read(path)
    lenient = read(path, skip_invalid=True)
    assert strict is None or (lenient is not None and len(lenient.source) == len(strict.source))


@fuzz(250)
@given(text=mutated_text(MAPS))
def test_any_mapping_is_taken_or_refused(text: str, folder: Path) -> None:
    path = folder / "mapped.jsonl"
    path.write_bytes(
        b'{"question": "2?", "prompt": "p", "solution": "a #### 4", "a": {"b": ["X "]}, "choices": [1, 2]}\n'
    )
    read(path, map=[text])


@fuzz(250)
@given(text=mutated_text(TEMPLATES))
def test_any_prompt_template_is_taken_or_refused(text: str, folder: Path) -> None:
    template = folder / "prompt.yaml"
    template.write_bytes(text.encode(errors="surrogateescape"))
    path = folder / "templated.jsonl"
    path.write_bytes(b'{"prompt": "2?", "x": "y", "role": "short"}\n')
    read(path, prompt=str(template))
