"""The ids of prompts that go on from each other are read as if each came alone."""

from __future__ import annotations

import msgspec
import pytest

from windrow.policies.prompt_ids import WORTH_KEEPING, PromptReader, pack_ids

IDS = list(range(1000, 1000 + WORTH_KEEPING))
LAST = str(IDS)[:-1]  # without what closes it

# How the next prompt goes on from the text of the last one.
REFUSED = ("0.5]", ".0]", "e1]", ", -1]", ", 2147483648]", ', "7"]', ", null]", ", [7]]", ", 1.5, 7]")
TAKEN = ("]", " ]", ",7]", ", 7]", " , 7 ]", "7]", "7, 8]", ", 7, 8, 2147483647]")


def reader() -> PromptReader:
    """Has read the last prompt."""
    made = PromptReader()
    assert made.read(msgspec.Raw(f"{LAST}]".encode())) == pack_ids(IDS)
    return made


@pytest.mark.parametrize("more", TAKEN)
def test_a_prompt_has_the_ids_that_it_says_however_it_goes_on(more: str) -> None:
    text = f"{LAST}{more}"
    made = reader()
    for _ in range(2):  # and where it comes again
        assert made.read(msgspec.Raw(text.encode())) == pack_ids(msgspec.json.decode(text))


@pytest.mark.parametrize("more", REFUSED)
def test_what_is_no_id_is_refused_wherever_it_stands(more: str) -> None:
    text = msgspec.Raw(f"{LAST}{more}".encode())
    made = reader()
    for one in (made, PromptReader(), made):
        with pytest.raises(msgspec.ValidationError):
            one.read(text)
    assert made.read(msgspec.Raw(f"{LAST}]".encode())) == pack_ids(IDS)


def test_another_prompt_is_read_whole() -> None:
    made = reader()
    for ids in ([1, *IDS], IDS[:-1], IDS[1:], [], [7], IDS):
        assert made.read(msgspec.Raw(str(ids).encode())) == pack_ids(ids)


def test_a_prompt_that_is_not_told_is_none() -> None:
    assert reader().read(msgspec.Raw(b"null")) is None
