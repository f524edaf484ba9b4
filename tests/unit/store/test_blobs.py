"""Large bytes stand once beside the log, whole, and a model sees what the record names."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.fake_disks import FullDisk
from tests.support.image_env import blobs_of, picture, seen
from tests.support.run_builders import collect, contents, open_run, rows
from windrow.collecting.running import run_collection
from windrow.errors import StoreError
from windrow.exports.tokens.verify import verify_run
from windrow.policies.base import Request
from windrow.policies.dialects import DIALECTS
from windrow.records import Message
from windrow.store.blobs import BlobStore, read_blob
from windrow.util.blobs import MemoryBlobs, shown

PICTURED: dict[str, Any] = {"env": "tests.support.image_env:Pictured", "scorers": ()}


def files(run: Path) -> list[Path]:
    return sorted(path for path in (run / "blobs").rglob("*") if path.is_file())


async def test_the_same_bytes_are_kept_once_whoever_puts_them(tmp_path: Path) -> None:
    one, other = BlobStore(tmp_path), BlobStore(tmp_path)
    names = await asyncio.gather(*(store.put(b"same") for store in (one, other) for _ in range(5)))
    assert len(set(names)) == 1
    assert [path.read_bytes() for path in files(tmp_path)] == [b"same"]
    assert await other.get(names[0]) == b"same"


async def test_a_name_that_a_power_cut_left_with_less_is_filled_again(tmp_path: Path) -> None:
    name = await BlobStore(tmp_path).put(b"whole")
    files(tmp_path)[0].write_bytes(b"")
    with pytest.raises(StoreError, match="is damaged"):
        read_blob(tmp_path / "blobs", name)
    assert await BlobStore(tmp_path).put(b"whole") == name
    assert read_blob(tmp_path / "blobs", name) == b"whole"


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "0" * 63 + "/", "f" * 64])
async def test_only_a_name_that_was_given_reads_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError):
        await BlobStore(tmp_path).get(name)
    with pytest.raises(StoreError):
        await MemoryBlobs().get(name)


async def test_a_disk_that_takes_no_blob_stops_the_run_and_loses_nothing(tmp_path: Path) -> None:
    disk = FullDisk(10**6)
    collection = open_run(tmp_path / "run", tasks=rows(20), answer=seen, disk=disk, **PICTURED)
    disk.room = 2 * len(picture(1))
    with pytest.raises(StoreError, match=r"cannot write .*/blobs/.*run the same command again"):
        await run_collection(collection)
    await collect(tmp_path / "run", tasks=rows(20), answer=seen, **PICTURED)
    assert len(contents(tmp_path / "run", "final")) == 40
    assert not verify_run(tmp_path / "run").findings


async def test_the_model_sees_the_picture_and_the_record_names_it(tmp_path: Path) -> None:
    asked: list[Request] = []

    def answer(request: Request) -> str:
        asked.append(request)
        return "seen"

    await collect(tmp_path / "run", tasks=rows(1), samples=1, answer=answer, **PICTURED)
    [rollout] = contents(tmp_path / "run")
    first, second = blobs_of(rollout)
    assert rollout["messages"][0]["content"] == [
        {"type": "text", "text": "Look."},
        {"blob": first, "media_type": "image/png", "width": 8, "height": 6},
    ]
    sent = [part["image_url"]["url"] for message in asked[1].messages for part in images(message)]
    kept = [read_blob(tmp_path / "run" / "blobs", name) for name in (first, second)]
    assert sent == [url(data) for data in kept]


async def test_an_image_in_view_is_read_and_encoded_once_and_few_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = (picture(number) for number in (1, 2, 3))
    monkeypatch.setattr("windrow.util.blobs.CACHE_CHARS", len(url(one) + url(two)))
    store = BlobStore(tmp_path)
    parts = [await store.image(data, "image/png", 8, 6) for data in (one, two)]
    asked = [Message(role="user", content=[part], origin="env") for part in parts]
    for file in files(tmp_path):
        file.unlink()
    for _ in range(3):  # turns
        sent = [images(message)[0]["image_url"]["url"] for message in await shown(asked, store)]
        assert sent == [url(one), url(two)]
    again = await shown(asked, store)
    images(again[0])[0]["image_url"]["url"] = "spoilt"  # by whoever was shown it
    assert images((await shown(asked[:1], store))[0])[0]["image_url"]["url"] == url(one)
    await store.image(three, "image/png", 8, 6)  # in the place of the one that was shown longest ago
    assert await store.data_url(parts[0]["blob"], "image/png") == url(one)
    with pytest.raises(StoreError, match="cannot read the blob"):
        await shown(asked, store)


async def test_an_image_that_was_put_by_another_is_checked_when_it_is_first_shown(tmp_path: Path) -> None:
    part = await BlobStore(tmp_path).image(picture(1), "image/png", 8, 6)
    store, asked = BlobStore(tmp_path), [Message(role="user", content=[part], origin="env")]
    [file] = files(tmp_path)
    file.write_bytes(b"other")
    with pytest.raises(StoreError, match="is damaged"):
        await shown(asked, store)
    file.write_bytes(picture(1))
    [message] = await shown(asked, store)
    assert images(message)[0]["image_url"]["url"] == url(picture(1))


def url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def images(message: Message) -> list[dict[str, Any]]:
    return (
        [part for part in message.content if "image_url" in part] if isinstance(message.content, list) else []
    )


async def test_a_missing_or_damaged_blob_is_found_by_verify(tmp_path: Path) -> None:
    await collect(tmp_path / "run", tasks=rows(2), answer=seen, **PICTURED)
    assert not verify_run(tmp_path / "run").findings
    first, second, *_ = files(tmp_path / "run")
    first.unlink()
    second.write_bytes(b"other")
    [finding] = verify_run(tmp_path / "run").findings
    assert (finding.check, finding.level) == ("blob", "fatal")


async def test_an_image_reaches_each_dialect_in_its_own_form() -> None:
    blobs = MemoryBlobs()
    part = await blobs.image(picture(1), "image/png", 8, 6)
    asked = Message(role="user", content=[{"type": "text", "text": "Look."}, part], origin="task")
    answer = Message(role="tool", content=[part], origin="tool", tool_call_id="c")
    messages = await shown([asked, answer], blobs)
    data = base64.b64encode(picture(1)).decode()

    def body(dialect: str, *messages: Message) -> Any:
        request = Request(messages=messages, tools=(), sampling={}, id="r", attempt=1, turn=0)
        return msgspec.json.decode(msgspec.json.encode(DIALECTS[dialect].body(request, "m")))

    assert body("openai", messages[0])["messages"][0]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": url(picture(1))},
    }
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    [turn] = body("anthropic", *messages)["messages"]
    assert turn["content"][1] == block
    assert turn["content"][2]["content"] == [block]
    assert body("responses", messages[0])["input"][0]["content"] == [
        {"type": "input_text", "text": "Look."},
        {"type": "input_image", "image_url": url(picture(1))},
    ]
    shown_to_responses = body("responses", messages[1])["input"][0]["output"]
    assert shown_to_responses == [{"type": "input_image", "image_url": url(picture(1))}]
