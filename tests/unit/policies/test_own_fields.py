"""`sampling.extra` adds fields to a request and replaces none of ours: the record is right about what was sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import collected, single
from tests.support.model_server import write_jsonl
from windrow.cli.main import main
from windrow.errors import PolicyError, UsageError
from windrow.policies.base import Request
from windrow.policies.dialects import DIALECTS
from windrow.policies.dialects.token_in_token_out import TokenDialect
from windrow.records import Message

TASK = {"prompt": "2 + 2?", "answer": "4"}
TOOL = {"name": "look", "description": "", "parameters": {"type": "object", "properties": {}}}


def body_of(dialect: Any, **options: Any) -> dict[str, Any]:
    request = Request(
        messages=(
            Message(role="system", content="Be brief.", origin="task"),
            Message(role="user", content="2 + 2?", origin="task"),
        ),
        tools=(TOOL,),
        id="r",
        attempt=1,
        turn=0,
        capture="tokens",
        top_logprobs=2,
        **options,
    )
    if not isinstance(dialect, TokenDialect):
        return dialect.body(request, "m")
    body = dialect.body_of([1, 2], request, "m")
    return body.get("sampling_params", body)  # where `extra` goes


@pytest.mark.parametrize("name", DIALECTS)
def test_every_field_that_a_dialect_writes_is_refused_in_extra(name: str) -> None:
    dialect = DIALECTS[name]
    values = {"reasoning_effort": "low", "stop": ["x"], "logit_bias": {"1": 1.0}}
    sampling = {option: values.get(option, 1) for option in sorted(dialect.accepts - {"extra"})}
    written = set(body_of(dialect, sampling=sampling)) - {"reasoning"}  # of which `extra` may give the rest
    for field in written | {"model", "messages", "n", "seed", "stream", "tools"}:
        with pytest.raises(PolicyError, match=f"may not have '{field}'"):
            body_of(dialect, sampling={"extra": {field: "theirs"}})
    assert body_of(dialect, sampling={"extra": {"cache_salt": "s"}})["cache_salt"] == "s"


@pytest.mark.parametrize("field", ["model", "messages", "n", "seed", "temperature", "tools", "logprobs"])
async def test_a_row_that_replaces_a_field_of_ours_is_refused_by_line(
    stub, tmp_path: Path, field: str
) -> None:
    server = stub("4")
    rows = [TASK, {**TASK, "id": "b", "sampling": {"extra": {"cache_salt": "s", field: 1}}}]
    tasks = write_jsonl(tmp_path / "tasks.jsonl", rows)
    with pytest.raises(UsageError, match=rf"tasks\.jsonl:2: 'sampling.extra' may not have '{field}'"):
        await collected(str(tasks), model="stub", base_url=server.url, out=str(tmp_path / "run"))
    assert server.bodies == []


def test_tasks_check_names_the_line_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [TASK, {**TASK, "id": "b", "sampling": {"extra": {"model": "dear"}}}]
    tasks = write_jsonl(tmp_path / "tasks.jsonl", rows)
    assert main(["tasks", "check", str(tasks)]) != 0
    said = capsys.readouterr()
    assert "tasks.jsonl:2: 'sampling.extra' may not have 'model'" in said.out + said.err


async def test_the_configuration_cannot_replace_them_either(stub, tmp_path: Path) -> None:
    options = {"model": "stub", "base_url": stub("4").url, "out": str(tmp_path / "run")}
    with pytest.raises(UsageError, match=r"policy\.sampling.*may not have 'n'.*-k"):
        await single([TASK], **options, sets=["policy.sampling.extra={n: 4}"])
