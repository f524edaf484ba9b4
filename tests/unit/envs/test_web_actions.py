"""Web actions as data: what a reply in words says, what a tool call says, and what is told where it says nothing."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.envs.web.action_executor import address
from windrow.envs.web.action_parser import read_action
from windrow.envs.web.actions import (
    KINDS,
    Answer,
    Back,
    Click,
    Drag,
    Goto,
    Scroll,
    Select,
    Type,
    allowed,
    arguments_of,
    make_action,
    schema_of,
)
from windrow.envs.web.blocklist import domain_of
from windrow.envs.web.env import WebEnv
from windrow.envs.web.prompt import in_view, system
from windrow.envs.web.settings import WebOptions, shaping, web_options
from windrow.envs.web.walls import wall
from windrow.errors import ToolError
from windrow.records import Message


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("click(3)", Click(element=3)),
        ("I see it.\nAction: click(3)", Click(element=3)),
        ("**Action:** `click(element=3, double=True)`", Click(element=3, double=True)),
        ("```\nAction: back()\n```", Back()),
        ("<think>\nAction: click(1)\nor not\n</think>\nAction: back()", Back()),
        ("action: type(4, 'two words', enter=True)", Type(element=4, text="two words", enter=True)),
        ('Action: type(text="it\'s \\"quoted\\"\\nand long")', Type(text='it\'s "quoted"\nand long')),
        ("Action: select(2, 'large')", Select(element=2, option="large")),
        ("Action: scroll()", Scroll()),
        ("Action: drag(1, 2)", Drag(element=1, to=2)),
        ("Action: answer()", Answer()),
        ("Action: answer('42')", Answer(text="42")),
        ("Action: goto('example.com')", Goto(url="example.com")),
        ("Action: answer('half \\ud83d of a sign')", Answer(text="half \ufffd of a sign")),
        (f"Action:{' ' * 200_000}answer({' ' * 30_000}'at last'){' ' * 200_000}", Answer(text="at last")),
    ],
)
def test_a_reply_in_words_says_one_action(reply: str, action: Any) -> None:
    assert read_action(reply, "elements") == action


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("", "empty"),
        ("I will click\non the button", "no line begins with 'Action:'"),
        ("Action: click(1)\nAction: click(2)", "one action at a time"),
        ("Action: click", "with its arguments in brackets"),
        ("Action: click 3", "write it as a call, such as click(3)"),
        ("Action: click(", "write it as a call"),
        ("Action: press(3)", "key: expected 'str', got 'int'"),
        ("Action: click('3')", "element: expected 'int"),
        ("Action: click(0)", ">= 1"),
        ("Action: click()", "click needs element"),
        ("Action: drag(1)", "drag needs to"),
        ("Action: click(1, True, 3)", "takes 2 arguments"),
        ("Action: click(1, element=1)", "twice"),
        ("Action: click(x=1, y=2)", "click takes element, double, not 'x'"),
        ("Action: jump(1)", "there is no action 'jump'; the actions are click, type"),
        ("Action: select(2)", "missing required field 'option'"),
        ("Action: wait(10000)", "<= 60"),
        ("Action: answer(__import__('os').getcwd())", "a text in quotes"),
        ("Action: answer([1])", "a text in quotes"),
        ("Action: answer(" + "(" * 5_000, "write it as a call"),
        ("Action: answer('" + "x" * 50_000 + "')", "longer than"),
    ],
)
def test_what_is_not_exactly_one_action_is_refused_with_what_is_wrong(reply: str, why: str) -> None:
    with pytest.raises(ToolError) as refused:
        read_action(reply, "elements")
    assert why in str(refused.value)


@given(
    st.text(max_size=80)
    | st.builds("Action: {}({})".format, st.sampled_from(sorted(KINDS)), st.text(max_size=30))
)
def test_whatever_a_reply_says_it_is_an_action_or_refused(reply: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            action = read_action(reply, "both")
        except ToolError:
            return
    assert type(action) in KINDS.values()


def test_a_place_is_meant_by_what_the_policy_sees() -> None:
    assert read_action("click(10, 20)", "coordinates") == Click(x=10, y=20)
    assert read_action("type(10, 20, 'hi')", "coordinates") == Type(x=10, y=20, text="hi")
    assert read_action("click(3)", "both") == Click(element=3)
    assert read_action("click(x=3, y=4)", "both") == Click(x=3, y=4)
    assert read_action("type(3, 'hi', True)", "both") == Type(element=3, text="hi", enter=True)
    for reply in ("click(element=3, x=1, y=2)", "click(x=1)", "click()"):
        with pytest.raises(ToolError, match="click needs either element or x and y"):
            read_action(reply, "both")
    assert "select" not in allowed("coordinates")
    assert WebOptions(observe="screenshot").pointing == "coordinates"
    assert WebOptions(observe="text+screenshot").pointing == "both"
    assert WebOptions(observe="text+marks").pointing == "elements"


@pytest.mark.parametrize("pointing", ["elements", "coordinates", "both"])
def test_a_tools_schema_takes_what_the_action_takes(pointing: Any) -> None:
    for name, kind in allowed(pointing).items():
        schema = schema_of(kind, pointing)
        jsonschema.Draft202012Validator.check_schema(schema)
        example = {
            key: _example(value) for key, value in schema["properties"].items() if key in schema["required"]
        }
        jsonschema.validate(example, schema)
        if example or not schema["properties"] or name in ("scroll", "wait", "answer"):
            assert set(arguments_of(make_action(name, example, pointing))) >= set(example)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**example, "nonsense": 1}, schema)
        with pytest.raises(ToolError, match="nonsense"):
            make_action(name, {**example, "nonsense": 1}, pointing)


def _example(schema: dict[str, Any]) -> Any:
    kind = schema["type"] if "type" in schema else schema["anyOf"][0]["type"]
    return {"integer": 2, "number": 2.0, "string": "word", "boolean": True}[kind]


def test_the_prompt_names_every_action_and_nothing_that_the_policy_cannot_use() -> None:
    text = system(WebOptions())
    assert all(f"\n{name}(" in text for name in KINDS)
    assert "type(element, text, enter=False): " in text
    assert "click(element, double=False): " in text
    assert "scroll(direction='down', element=None, screens=0.8): " in text
    places = system(WebOptions(observe="screenshot", coordinates="thousandths"))
    assert "click(x, y, double=False): " in places
    assert "x from 0 to 1000 and y from 0 to 1000" in places
    assert "\nselect(" not in places
    both = system(WebOptions(observe="text+screenshot"))
    assert "type(element, text, enter=False, x=None, y=None): " in both
    assert "Action:" not in system(WebOptions(actions="tools"))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("example.com", "https://example.com"),
        ("example.com:8080/a", "https://example.com:8080/a"),
        ("http://a.example/x y".replace(" ", "%20"), "http://a.example/x%20y"),
        ("/a?b", "http://site.example:8000/a?b"),
        ("?q=1", "http://site.example:8000/here/now?q=1"),
        ("//other.example/a", "http://other.example/a"),
    ],
)
def test_an_address_is_read_as_a_person_would_type_it(wanted: str, found: str) -> None:
    assert address(wanted, "http://site.example:8000/here/now") == found


@pytest.mark.parametrize(
    "wanted",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "about:blank",
        "data:text/html,x",
        "chrome://crash",
        "http://",
        "http://a b",
        "http://[::1",
        "",
    ],
)
def test_an_address_that_is_none_is_refused(wanted: str) -> None:
    with pytest.raises(ToolError) as refused:
        address(wanted, "http://site.example/")
    assert refused.value.kind == "invalid_url"


class Shown(NamedTuple):
    """What the detection reads of a look."""

    title: str = ""
    beginning: str = ""
    text_chars: int = 100
    status: int | None = 200
    captcha: int = 0
    url: str = "https://www.shop.example/a"


@pytest.mark.parametrize(
    ("shown", "kind"),
    [
        (Shown(status=403), "refused"),
        (Shown(status=429, text_chars=9_000), "refused"),
        (Shown(captcha=1), "captcha"),
        (Shown(title="Just a moment..."), "bot_wall"),
        (Shown(title="Access Denied"), "bot_wall"),
        (Shown(title="Shop", beginning="Please verify you are a human to go on"), "bot_wall"),
        (
            Shown(title="Google", beginning="Our systems have detected unusual traffic from your network"),
            "bot_wall",
        ),
        (Shown(title="Fruit shop", beginning="Apples, pears"), None),
        (Shown(captcha=1, text_chars=3_000), None),
        (
            Shown(title="How to pass 'are you a robot' tests", text_chars=5_000, beginning="are you a robot"),
            None,
        ),
        (Shown(status=404, title="Not found"), None),
        (Shown(status=503, title="Down for maintenance"), None),
        (Shown(title="Blockedge tools"), None),
    ],
)
def test_a_wall_is_told_from_a_page_that_has_something_to_say(shown: Any, kind: str | None) -> None:
    found = wall(shown)
    assert (found.kind if found else None) == kind


def test_a_domain_is_the_host_without_www() -> None:
    assert domain_of("https://WWW.Shop.example:8000/a") == "shop.example"
    assert domain_of("www.shop.example") == "shop.example"


def test_settings_are_checked_and_only_what_shapes_behaviour_counts() -> None:
    assert web_options({"observe": "text+marks", "browsers": 1}).marked
    with pytest.raises(ValueError, match="no setting 'observ'; did you mean 'observe'"):
        web_options({"observ": "text"})
    with pytest.raises(ValueError, match="observe"):
        web_options({"observe": "film"})
    with pytest.raises(ValueError, match="browsers"):
        web_options({"browsers": 0})
    settings = {"history": 2, "browsers": 7, "blocklist": "somewhere", "allow": ["127.0.0.1"], "contexts": 3}
    assert shaping(settings) == {"history": 2}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"instruction": "x"}, "neither 'start_url' nor 'url' is in the row"),
        ({"start_url": 3, "instruction": "x"}, "neither 'start_url' nor 'url'"),
        ({"url": "a.example"}, "neither 'prompt' nor 'messages' is in the row"),
        ({"url": "a.example", "instruction": ["x"]}, "'instruction' must be a string, found list"),
        ({"url": "a.example", "prompt": "x", "expect": {}}, "'expect' expects nothing"),
        (
            {"url": "a.example", "prompt": "x", "expect": {"url": "("}},
            "'expect.url': the pattern does not compile",
        ),
        (
            {"url": "a.example", "prompt": "x", "expect": {"dom": "a"}},
            "'expect': Object contains unknown field `dom`",
        ),
        ({"page_reward": 3}, "'page_reward' must be a name, found int"),
        ({"page_reward": "nobody"}, "unknown page_reward 'nobody'"),
        ({"page_reward": "windrow:Env"}, "not a class derived from windrow.envs.web.page_rewards.PageReward"),
    ],
)
def test_a_row_that_cannot_be_played_is_refused_before_the_run(row: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError) as refused:
        WebEnv.check_row(row)
    assert why in str(refused.value)


def test_a_row_needs_an_address_and_words() -> None:
    WebEnv.check_row({"start_url": "a.example", "instruction": "x", "expect": {"text": ["a", "b"]}})
    WebEnv.check_row({"url": "/a", "prompt": "x"})


def message(role: Any, text: str, origin: Any) -> Message:
    return Message(role=role, content=text, origin=origin)


def test_only_the_last_pages_stay_in_view() -> None:
    opening = [
        message("system", "How", "task"),
        message("user", "Your task: x", "task"),
        message("user", "Page: 0", "task"),
    ]
    rounds = [
        said
        for number in range(1, 4)
        for said in (
            message("assistant", "Page: I click", "policy"),
            message("user", "Clicked.", "env"),
            message("user", f"Page: {number}", "env"),
        )
    ]
    messages = [*opening, *rounds]
    assert in_view(messages, None) == [(0, 12)]
    assert in_view(messages, 9) == [(0, 12)]
    assert in_view(messages, 1) == [(0, 2), (3, 5), (6, 8), (9, 12)]
    assert in_view(messages, 2) == [(0, 2), (3, 5), (6, 12)]
    messages[1] = message("user", "Page: that is what my task begins with", "task")
    assert in_view(messages, 1) == [(0, 2), (3, 5), (6, 8), (9, 12)]


def test_a_page_reward_of_a_module_is_a_demand_and_one_of_an_integration_is_none() -> None:
    assert [demand.name for demand in WebEnv.demands({"page_reward": "canary:Paid"})] == ["canary:Paid"]
    assert [*WebEnv.demands({"page_reward": "miniwob"})] == []
