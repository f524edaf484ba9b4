"""Whatever stands in a row of HUD: a task, or a ValueError that says what is wrong; and a name that does not change."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given

from tests.fuzz.mutations import fuzz, reshaped
from tests.support.hud_rows import V5, V6, v4
from windrow.integrations.hud.env import Hud
from windrow.integrations.hud.rows import generation_of, key_of, owns_env, split_row
from windrow.tasks.row_formats import format_of, own_env, usual_env

WHOLE = v4(
    "log",
    {"url": "http://h/${NO_SUCH:mcp}", "headers": {"X-Image": "a", "Authorization": "Bearer ${NO_SUCH:x}"}},
    id="t",
    setup_tool=[{"name": "a", "arguments": {"x": 1}}, {"b": {"c": {"d": {}}}}],
    agent_config={"allowed_tools": ["*"], "system_prompt": "s", "append_setup_output": False},
    metadata={"level": 1},
)
TEXTS = {
    **WHOLE,
    "mcp_config": json.dumps(WHOLE["mcp_config"]),
    "setup_tool": json.dumps(WHOLE["setup_tool"]),
}


@fuzz(300)
@given(row=reshaped([WHOLE, TEXTS, V5, V6]))
def test_a_row_of_any_shape_is_a_task_or_is_refused_in_words(row: Any) -> None:
    if not isinstance(row, dict) or generation_of(row) is None:
        return
    assert format_of(row) is not None
    assert own_env(row) is None or not owns_env(row)
    usual_env(row)
    try:
        kept, _ = split_row(row)
        assert list(Hud.demands(row)) or generation_of(row) != "v4"
        Hud.check_row(row)
    except ValueError:
        return
    assert kept == row
    assert key_of(kept) == key_of(json.loads(json.dumps(row)))
