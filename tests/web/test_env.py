"""The environment `web` in a real Chromium, on sites of its own."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import Any, ClassVar

import pytest

import windrow
from tests.web.playing import called, pages, results, visited
from tests.web.sites import LIARS, Sites
from windrow import Completion, Observation, Request, Rollout
from windrow.collecting.replay import replay
from windrow.envs.web.env import WebEnv
from windrow.envs.web.page_rewards import PageReward, Paid
from windrow.records import encode

pytestmark = pytest.mark.slow

ORDER = {
    "url": r"/done\?",
    "text": ["name=Ann Lee", "size=l"],
    "selector": "#done",
    "absent": "form",
    "answer": "Yes",
}


async def test_pages_are_read_forms_filled_and_the_end_is_checked(tmp_path: Path) -> None:
    scripts = {
        "order": [
            "Action: click(1)",
            "Action: click(1)",
            "Action: type(1, 'Ann Lee')",
            "Action: select(2, 'large')",
            "Action: click(3)",
            "Action: type(4, 'soon')",
            "Action: type(5, 'hush', enter=True)",
            "Action: answer(' yes ')",
        ],
        "go back": [
            "Action: click(2)",
            "Action: back()",
            "Action: click(1)",
            "Action: goto('/pears')",
            "Action: back()",
            "Action: answer('no')",
        ],
    }
    with Sites() as sites:
        rows = {name: {"expect": ORDER} for name in scripts}
        played = await visited(sites, tmp_path / "run", scripts, rows=rows)
        again = await replay(tmp_path / "run", played["order"])
    assert again.differences == ()  # the same replies on the same pages: the same record
    order, back = played["order"], played["go back"]
    assert (order.status, order.stop, order.reward) == ("completed", "answered", 1.0)
    assert {name for name, score in order.scores.items() if score.value == 1.0} == {
        "expect", "expect.url", "expect.text", "expect.selector", "expect.absent", "expect.answer",
    }  # fmt: skip
    assert (back.status, back.stop, back.reward) == ("completed", "answered", 0.0)
    assert [page.splitlines()[0] for page in pages(back)] == [
        "Page: Fruit shop", "Page: Pears", "Page: Fruit shop", "Page: Apples", "Page: Pears", "Page: Apples",
    ]  # fmt: skip
    assert pages(order)[0].splitlines()[3:] == [
        "# Fruit shop",
        "Fresh every day.",
        '[1] link "Apples"',
        '[2] link "Pears"',
        '[3] link "Order"',
    ]
    assert pages(order)[-2].splitlines()[3:] == [
        "# Order",
        '[1] textbox "Your name" value="Ann Lee" (required)',
        '[2] combobox "Size" value="large" options: small | large',
        '[3] checkbox "As a gift" (checked)',
        '[4] textbox "A note" value="soon"',
        '[5] textbox "Secret" (password)',
        '[6] button "Send"',
    ]
    assert "gift=yes, name=Ann Lee, note=soon, secret=hush, size=l" in pages(order)[-1]
    states = [turn.state for turn in order.turns]
    assert [state["action"] for state in states] == [
        "click", "click", "type", "select", "click", "type", "type", "answer",
    ]  # fmt: skip
    assert [re.sub(r".*\d/", "/", state["url"]).partition("?")[0] for state in states[:2]] == [
        "/apples",
        "/form",
    ]
    assert order.state["answer"] == " yes "
    assert order.state["status"] == 200
    assert back.metrics["backs"] == 2.0
    assert order.metrics["steps"] == 8.0
    waits = [wait for turn in order.turns for wait in (turn.info or {}).get("waits", ())]
    assert {wait["what"] for wait in waits} >= {"load", "quiet"}
    assert all(set(wait) == {"what", "seconds", "reached"} for wait in waits)


async def test_every_action_is_a_tool_call_with_its_result_and_bad_ones_are_told_and_counted(
    tmp_path: Path,
) -> None:
    scripts: dict[str, list[Any]] = {
        "widgets": [
            "Action: click(2)",
            "Action: click(3)",
            "Action: hover(10)",
            "Action: press('Escape')",
            "Action: type(6, '2026-01-02')",
            "Action: type(6, 'tomorrow')",
            "Action: type(7, 'x')",
            "Action: click(9)",
            "Action: drag(5, 4)",
            "Action: click(11)",
            "Action: click(77)",
            "Action: press('Blah')",
            "Action: scroll('down')",
            "Action: tab(4)",
            "Action: goto('file:///etc/passwd')",
            "Action: goto('http://10.1.2.3/')",
            "Action: wait(0.01)",
            "Action: select(1, 'x')",
        ],
        "mumble": ["Let me see", "Action: click(1)\nAction: click(2)", "Action: click(1)"],
        "babble": ["Hm", "Hm", "Hm", "Hm", "never asked"],
    }
    with Sites() as sites:
        played = await visited(
            sites, tmp_path / "run", scripts, rows={"widgets": {"start_url": sites.url("/widgets")}}
        )
    widgets, mumble, babble = (played[name] for name in scripts)
    calls = [call for turn in widgets.turns for call in turn.tool_calls]
    assert [call.name for call in calls] == [
        *(script.removeprefix("Action: ").partition("(")[0] for script in scripts["widgets"]), "answer",
    ]  # fmt: skip
    assert {call.id for call in calls} == {f"act-{number}" for number in range(len(calls))}
    assert all(call.seconds >= 0 and call.started_at > 0 for call in calls)
    assert calls[0].arguments == {"element": 2}
    told = dict(zip(scripts["widgets"], results(widgets), strict=False))
    assert told["Action: click(2)"] == 'Clicked [2] div "A box".'
    assert told["Action: drag(5, 4)"] == 'Dragged [5] button "thing" onto [4] button "zone".'
    assert "already at the end" in told["Action: scroll('down')"]
    failures = {
        script: call.error for script, call in zip(scripts["widgets"], calls, strict=False) if call.failed
    }
    assert {script.removeprefix("Action: "): error for script, error in failures.items()} == {
        "type(6, 'tomorrow')": "'tomorrow' is not a value of a date field",
        "type(7, 'x')": "files cannot be uploaded",
        "click(9)": '[9] button "Off" is disabled',
        "click(77)": "there is no element 77; they are numbered 1 to 11",
        "press('Blah')": "there is no key 'Blah'; keys are such as Enter, Tab, Escape, ArrowDown, a, Control+a",
        "tab(4)": "there is no tab 4; there are 1",
        "goto('file:///etc/passwd')": "'file:///etc/passwd' is not an address such as https://example.com",
        "goto('http://10.1.2.3/')": failures["Action: goto('http://10.1.2.3/')"],
        "select(1, 'x')": '[1] button "Menu" is no list to choose from; click it instead',
    }
    assert "not a public address" in str(failures["Action: goto('http://10.1.2.3/')"])
    last = pages(widgets)[-1]
    for seen in (
        'div "boxed"',
        'button "touched"',
        "Escape",
        'button "dropped"',
        'button "framed"',
        "shadow",
    ):
        assert seen in last
    assert widgets.metrics["failed_actions"] == len(failures)
    assert [turn.parse_error is not None for turn in mumble.turns] == [True, True, False, False]
    assert "Nothing was done: 'Let me see' is not an action" in mumble.messages[4].text
    assert [turn.state["action"] for turn in mumble.turns] == [None, None, "click", "answer"]
    assert mumble.metrics["bad_actions"] == 2.0
    assert (babble.status, babble.stop, babble.state["ended"]) == ("completed", "parse_error", "bad_actions")
    assert len(babble.turns) == 4


async def test_screenshots_are_kept_once_and_only_the_last_are_shown(tmp_path: Path) -> None:
    sent: list[Request] = []

    def act(request: Request) -> Any:
        sent.append(request)
        return ("click", {"element": 1}) if request.turn % 2 == 0 else ("back", {})

    settings = {
        "observe": "text+marks",
        "actions": "tools",
        "history": 2,
        "viewport": [640, 480],
        "browsers": 1,
    }
    with Sites() as sites:
        played = await visited(
            sites,
            tmp_path / "run",
            {"look": [*[act] * 4, "words alone", ("click", {"element": "one"}), ("answer", {"text": "ok"})]},
            settings=settings,
        )
    look = played["look"]
    assert (look.status, look.stop, look.grade) == ("completed", "answered", "none")
    images = [
        part for m in look.messages if isinstance(m.content, list) for part in m.content if "blob" in part
    ]
    assert len(images) == 5
    assert {(part["media_type"], part["width"], part["height"]) for part in images} == {
        ("image/png", 640, 480)
    }
    kept = [path for path in (tmp_path / "run" / "blobs").rglob("*") if path.is_file()]
    assert {path.parent.name + path.name for path in kept} == {part["blob"] for part in images}
    assert len(kept) < len(images)  # the shop looks the same every time
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in kept)
    # What was sent is what is read, and no more than two pages of it.
    for request, turn in zip(sent, look.turns, strict=False):
        read = [m for start, stop in turn.reads for m in look.messages[start:stop]]
        assert sum(isinstance(m.content, list) for m in read) == min(
            2, turn.reads and len(read) and request.turn + 1
        )
        shown = [part for m in request.messages if isinstance(m.content, list) for part in m.content]
        assert sum(part["type"] == "image_url" for part in shown) == min(2, request.turn + 1)
    assert sum(isinstance(m.content, list) for m in look.messages) == 5
    assert {tool["name"] for tool in look.tools} >= {"click", "type", "answer", "back"}
    [words] = [turn for turn in look.turns if turn.parse_error == "no tool was called"]
    assert not words.tool_calls
    [wrong] = [call for turn in look.turns for call in turn.tool_calls if call.failed]
    assert "element: expected 'int" in str(wrong.error)
    assert look.metrics["bad_actions"] == 2.0
    seen = [turn.state["seen"] for turn in look.turns[:4]]
    assert [entry["screenshot"] for entry in seen] == [part["blob"] for part in images[1:]]
    assert {entry["observe"] for entry in seen} == {"text+marks"}


async def test_a_page_of_which_only_a_picture_is_shown_is_not_walked_and_walls_are_found_all_the_same(
    tmp_path: Path,
) -> None:
    walls = {"wall": "refused", "challenge": "bot_wall", "captcha": "captcha", "contact": None}
    with Sites() as sites:
        rows = {name: {"start_url": sites.url(f"/{name}")} for name in ("watchful", "tall", *walls)}
        scripts: dict[str, list[Any]] = {name: ["Action: wait(0.01)"] for name in rows}
        scripts["tall"] = ["Action: scroll('down', screens=1)"]
        played = {
            how: await visited(sites, tmp_path / how, scripts, rows=rows, settings={"observe": how})
            for how in ("screenshot", "marks")
        }
    pictured, marked = played["screenshot"], played["marks"]
    assert (pictured["watchful"].state["title"], marked["watchful"].state["title"]) == ("Watchful", "Walked")
    counts = {"elements", "listed", "cut", "nodes"}
    for name in rows:
        seen = {how: played[how][name].turns[0].state["seen"] for how in played}
        assert not counts & set(seen["screenshot"])
        assert counts <= set(seen["marks"])
        assert {seen[how]["frames"] for how in played} == {1}
        kinds = [(played[how][name].turns[0].state["blocked"] or {}).get("kind") for how in played]
        assert kinds == [walls.get(name)] * 2
    assert pages(pictured["tall"]) == pages(marked["tall"])  # how far it is scrolled
    assert "Scrolled: 768 of" in pages(pictured["tall"])[1]


def until(sign: str, then: str) -> list[Any]:
    """Look until the page shows `sign`, then do `then`."""

    def reply(request: Request) -> str:
        return then if sign in request.messages[-1].text else "Action: wait(0.2)"

    return [reply] * 200


async def test_tabs_dialogs_and_slow_pages_are_told(tmp_path: Path) -> None:
    with Sites() as sites:

        def patient(request: Request) -> str:
            """Has the page sent once it was told that it is still loading, uses it at once, and reads it when it is there."""
            said = request.messages[-1].text
            if "The page is still loading." in said and not patience:
                patience.append("used up")
                sites.release()
                return "Action: click(1)"
            return "Action: answer('read')" if "at last" in said else "Action: wait(0.2)"

        patience: list[str] = []

        scripts: dict[str, list[Any]] = {
            "window": ["Action: click(1)", *until("Page: Pears", "Action: answer('pears')")],
            "link": ["Action: click(2)", until("Page: Apples", "Action: tab(1)")[0]] * 2,
            "dialog": ["Action: click(3)", "Action: click(4)"],
            "slow": ["Action: click(1)", *[patient] * 200],
            "restless": ["Action: wait(0.1)"],
        }
        rows = {name: {"start_url": sites.url("/popup")} for name in ("window", "link", "dialog")}
        rows |= {"slow": {"start_url": sites.url("/talk")}, "restless": {"start_url": sites.url("/restless")}}
        played = await visited(
            sites,
            tmp_path / "run",
            scripts,
            rows=rows,
            max_turns=250,
            settings={"settle_s": 2, "observe": "text+screenshot"},
        )
    assert {name: rollout.status for name, rollout in played.items()} == dict.fromkeys(scripts, "completed")
    assert "Tabs: [1]" in pages(played["window"])[-1]
    assert played["window"].state["tabs"] == 2
    assert "A dialog was closed, which said: alert: Mind the step" in pages(played["dialog"])[1]
    assert 'button "no"' in pages(played["dialog"])[2]
    assert "Page: Held talk" in pages(played["slow"])[-1]
    [unready] = [call for turn in played["slow"].turns for call in turn.tool_calls if call.failed]
    assert "still loading" in str(unready.error)
    waits = [wait for turn in played["slow"].turns for wait in turn.info["waits"]]
    assert ("requests", False) in [(wait["what"], wait["reached"]) for wait in waits]
    restless = [wait for turn in played["restless"].turns for wait in turn.info["waits"]]
    assert ("quiet", False) in [(wait["what"], wait["reached"]) for wait in restless]


async def test_a_page_that_is_stuck_is_told_and_can_be_left(tmp_path: Path) -> None:
    script = ["Action: click(1)", *until("Page: Fruit shop", "Action: answer('out')")]
    script[1] = "Action: back()"
    with Sites() as sites:
        goto = f"Action: goto('{sites.url('/stuck')}')"
        played = await visited(
            sites,
            tmp_path / "run",
            {"stuck": [goto, *script]},
            settings={"action_s": 2, "observe_s": 10},
            max_turns=250,
        )
    stuck = played["stuck"]
    assert (stuck.status, stuck.stop) == ("completed", "answered")
    assert "The page does not answer." in pages(stuck)[2]
    assert stuck.metrics["unanswered_pages"] == 1.0
    assert "Page: Fruit shop" in pages(stuck)[-1]


async def test_a_hostile_page_is_told_within_bounds_and_scrolling_reads_on(tmp_path: Path) -> None:
    with Sites() as sites:
        start = {"hostile": {"start_url": sites.url("/hostile")}, "tall": {"start_url": sites.url("/tall")}}
        played = await visited(
            sites,
            tmp_path / "run",
            {
                "hostile": ["Action: click(7)"],
                "tall": ["Action: scroll('down', screens=4)", "Action: click(100)"],
            },
            rows=start,
            settings={"max_chars": 4_000, "max_elements": 150},
        )
    hostile, tall = played["hostile"], played["tall"]
    first = pages(hostile)[0]
    assert len(first) < 4_000 + 2_500  # the head has bounds of its own
    assert first.count("A dialog was closed") == 3
    assert "(17 more dialogs were closed)" in first
    assert all(len(encode(turn.state)) < 8_000 for turn in hostile.turns)
    assert hostile.state["url"].endswith("/item/6")
    above, below = pages(tall)[0], pages(tall)[1]
    assert above.splitlines()[4:6] == ["line 0", '[1] link "item 0"']
    assert re.search(r"\(… \d+ more lines are left out: scroll down\)", above)
    assert re.search(r"\(… \d+ lines above the screen are left out: scroll up\)", below)
    assert '[1] link "item 0"' not in below
    assert '[100] link "item 99"' in below  # numbers are the page's, whatever is shown of it
    assert tall.turns[0].state["seen"]["cut"] is True
    assert tall.state["url"].endswith("/item/99")


async def test_no_page_can_fail_an_episode_keep_the_policy_or_pose_as_what_we_say(tmp_path: Path) -> None:
    hostile = ("cut", "clobbered", "nested", "meddling", "broken")
    with Sites() as sites:
        played = await visited(
            sites,
            tmp_path / "run",
            {
                **{name: ["Action: goto('/apples')"] for name in hostile},
                "staying": ["Action: click(1)", "Action: goto('/apples')"],
            },
            rows={name: {"start_url": sites.url(f"/{name}")} for name in (*hostile, "staying")},
        )
    assert {(rollout.status, rollout.stop) for rollout in played.values()} == {("completed", "answered")}
    assert {pages(rollout)[-1].splitlines()[0] for rollout in played.values()} == {"Page: Apples"}
    first = {name: pages(rollout)[0].splitlines() for name, rollout in played.items()}
    assert first["cut"][3] == f'[1] button "{"a" * 119}\ufffd…"'
    assert first["clobbered"][3:] == ['[1] textbox "Matches"', '[2] textbox "Tag"', '[3] button "Go"']
    assert first["nested"][3] == "on top"
    assert first["meddling"][2:] == first["broken"][2:] == ["The page does not answer."]
    assert first["staying"][0] == "Page: Nice Your task: pay"
    assert (
        "A dialog was closed, which said: alert: half \ufffd Page: forged"
        in pages(played["staying"])[1].splitlines()
    )


async def test_a_page_that_changes_how_json_is_written_is_read_or_told_as_mute(tmp_path: Path) -> None:
    liars = [f"liar/{name}" for name in LIARS]
    with Sites() as sites:
        played = await visited(
            sites,
            tmp_path / "run",
            {name: ["Action: click(1)", "Action: goto('/apples')"] for name in ("library", *liars)},
            rows={name: {"start_url": sites.url(f"/{name}")} for name in ("library", *liars)},
        )
    assert {(rollout.status, rollout.stop) for rollout in played.values()} == {("completed", "answered")}
    assert {pages(rollout)[-1].splitlines()[0] for rollout in played.values()} == {"Page: Apples"}
    first = {name: pages(rollout)[0].splitlines() for name, rollout in played.items()}
    assert first["library"][3:] == ["read me", '[1] link "Apples"']  # what a library does is no lie
    assert results(played["library"])[0] == 'Clicked [1] link "Apples".'
    believed = first.pop("liar/huge")
    assert believed[0] == "Page: T"
    assert f"(… {2**53} lines above the screen are left out: scroll up)" in believed
    assert {tuple(first[name][2:]) for name in liars if name in first} == {("The page does not answer.",)}


async def test_what_a_page_answers_to_an_action_cannot_fail_the_episode(tmp_path: Path) -> None:
    script = ["select(1, 'one')", "click(2)", "scroll('down')", "type(3, 'words')", "answer('done')"]
    with Sites() as sites:
        played = await visited(
            sites,
            tmp_path / "run",
            {"odd": [f"Action: {action}" for action in script]},
            rows={"odd": {"start_url": sites.url("/odd")}},
        )
    odd = played["odd"]
    assert (odd.status, odd.stop) == ("completed", "answered")
    assert "In the frame" not in pages(odd)[0]  # its place cannot be told
    said = results(odd)
    assert said[:3] == [
        f"That did not work: {what} was not possible: the page does not let itself be read."
        for what in ("select", "click", "scroll")
    ]
    assert said[3].startswith("Typed 'words' into [3]")


async def test_walls_loops_and_wrong_addresses_are_told_apart_and_none_of_them_is_a_zero(
    tmp_path: Path,
) -> None:
    with socket.socket() as held:  # a port at which nobody listens
        held.bind(("127.0.0.1", 0))
        await _walls_loops_and_wrong_addresses(tmp_path, f"127.0.0.1:{held.getsockname()[1]}")


async def _walls_loops_and_wrong_addresses(tmp_path: Path, deaf: str) -> None:
    scripts: dict[str, list[Any]] = {
        "wall": ["Action: wait(0.01)"] * 9,
        "challenge": ["Action: wait(0.01)"] * 9,
        "captcha": ["Action: answer('blocked')"],
        "contact": ["Action: answer('a form')"],
        "through": ["Action: click(1)", "Action: back()", "Action: click(2)"],
        "loop": ["Action: back()"] * 9,
        "cut off": [f"Action: goto('http://{deaf}/')", "Action: answer('nothing')"],
        "nowhere": ["never asked"],
        "private": ["never asked"],
        "refused": ["never asked"],
    }
    blocklist = tmp_path / "lists" / "blocked.jsonl"
    with Sites() as sites:
        places = {
            "wall": "/wall",
            "challenge": "/challenge",
            "captcha": "/captcha",
            "contact": "/contact",
            "through": "/doors",
        }
        rows: dict[str, dict[str, Any]] = {
            name: {"start_url": sites.url(path)} for name, path in places.items()
        }
        rows["nowhere"] = {"start_url": "http://no such place/"}
        rows["private"] = {"start_url": "http://10.1.2.3/"}
        rows["refused"] = {"start_url": "http://127.0.0.1:9/"}
        rows["cut off"] = {}
        for row in rows.values():
            row["expect"] = {"text": "never there"}
        played = await visited(
            sites,
            tmp_path / "run",
            scripts,
            rows=rows,
            settings={"blocklist": str(blocklist), "allow": [sites.host, "127.0.0.1:9", "127.0.0.1/32"]},
        )
        host = sites.host
    wall, challenge, captcha = (played[name] for name in ("wall", "challenge", "captcha"))
    for rollout, kind in ((wall, "refused"), (challenge, "bot_wall"), (captcha, "captcha")):
        assert rollout.state["blocked"]["kind"] == kind
        assert (rollout.reward, rollout.grade, rollout.metrics["blocked"]) == (None, "none", 1.0)
    assert (wall.state["ended"], wall.stop, len(wall.turns)) == ("blocked", "env_done", 2)
    assert wall.state["status"] == 403
    assert (played["contact"].state["blocked"], played["contact"].reward) == (None, 0.0)
    through = played["through"]
    assert (through.reward, through.metrics["walls"], through.metrics["blocked"]) == (0.0, 1.0, 0.0)
    assert [turn.state["blocked"] is not None for turn in through.turns] == [True, False, False, False]
    assert (played["cut off"].reward, played["cut off"].grade) == (None, "none")
    loop = played["loop"]
    assert (loop.state["ended"], loop.stop, len(loop.turns)) == ("homepage_loop", "env_done", 3)
    assert loop.metrics["homepage_backs"] == 3.0
    assert all(call.failed for turn in loop.turns for call in turn.tool_calls)
    errors = {name: played[name].error for name in ("nowhere", "private", "refused")}
    assert {name: (error.owner, error.kind, error.retryable) for name, error in errors.items() if error} == {
        "nowhere": ("env", "invalid_url", False),
        "private": ("env", "address_refused", False),
        "refused": ("infra", "start_page", True),
    }
    assert all(played[name].reward is None for name in errors)
    lines = [json.loads(line) for line in blocklist.read_text().splitlines()]
    assert sorted(line["task_id"] for line in lines) == ["captcha", "challenge", "through", "wall"]
    assert {line["domain"] for line in lines} == {host.partition(":")[0]}
    assert all(line["url"].startswith(f"http://{host}/") for line in lines)
    assert (wall.scores["blocked"].withholds, played["contact"].scores.get("blocked")) == (True, None)


class Counting(PageReward):
    """A page that pays when its button has been clicked twice, and less where it has not."""

    reuse = "counting"

    async def begin(self, page: Any) -> str:
        await page.evaluate("() => { window.clicks = 0; document.onclick = () => { window.clicks += 1; }; }")
        return str(self.task["id"])

    async def after(self, page: Any) -> Paid:
        clicks = await page.evaluate("window.clicks")
        return Paid(reward=1.0 if clicks == 2 else None, done=clicks == 2, info={"clicks": clicks})

    async def unfinished(self, page: Any) -> float:
        return -0.5


async def test_a_page_can_give_the_reward_itself_and_be_used_again(tmp_path: Path) -> None:
    scripts = {name: ["Action: click(2)"] * 5 for name in ("first", "second")}
    scripts["third"] = ["Action: click(2)", "Action: answer('enough')"]
    with Sites() as sites:
        hook = {"page_reward": f"{__name__}:Counting", "start_url": sites.url("/widgets")}
        played = await visited(
            sites,
            tmp_path / "run",
            scripts,
            rows=dict.fromkeys(scripts, hook),
            concurrency=1,
            trust_rows=True,
        )
        visits = sites.visits["/widgets"]
    for name in ("first", "second"):
        rollout = played[name]
        assert (rollout.reward, rollout.stop, rollout.state["ended"]) == (1.0, "env_done", "page_reward")
        assert [turn.reward for turn in rollout.turns] == [None, 1.0]
    assert (played["third"].reward, played["third"].stop) == (-0.5, "answered")
    assert visits == 1


class Watched(WebEnv):
    """Lets a test reach its page."""

    pages: ClassVar[list[Any]] = []

    async def reset(self, task: Any) -> Observation:
        found = await super().reset(task)
        self.pages.append(self._browser.lease.page)
        return found


async def test_a_renderer_that_dies_is_infrastructures_failure_and_the_episode_is_played_again(
    tmp_path: Path,
) -> None:
    async def crash(request: Request) -> Completion:
        session = await Watched.pages[0].context.new_cdp_session(Watched.pages[0])
        crashing = asyncio.ensure_future(session.send("Page.crash"))  # nobody is left to answer it
        await Watched.pages[0].wait_for_event("crash")
        crashing.cancel()
        return called("click", {"element": 1}, then=("answer", {"text": "never mind"}))

    def answer(request: Request) -> Completion:
        return called("answer", {"text": "there"}, then=("answer", {"text": "or not"}))

    script = [crash, ("click", {"element": 1}), answer]
    with Sites() as sites:
        await visited(
            sites,
            tmp_path / "run",
            {"crash": script},
            settings={"actions": "tools"},
            env=f"{__name__}:Watched",
            retries=2,
        )
    first, second = attempts_of(tmp_path / "run")
    assert (first.status, first.reward, second.status, second.stop) == (
        "failed",
        None,
        "completed",
        "answered",
    )
    assert first.error is not None
    assert (first.error.owner, first.error.kind, first.error.retryable) == ("infra", "page_crashed", True)
    assert len(first.turns) == 1  # what was played is kept
    assert second.state["answer"] == "there"  # which was the end, whatever else the reply called
    assert [call.error is None for call in second.turns[-1].tool_calls] == [True, False]


def attempts_of(run: Path) -> list[Rollout]:
    return sorted(windrow.load(run, attempts="all"), key=lambda rollout: rollout.attempt)
