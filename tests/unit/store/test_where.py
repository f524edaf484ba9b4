"""`--where` and `--redo`: which rollouts a condition selects, and what is refused as none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.run_builders import FAILED, make_rollout
from windrow.errors import UsageError
from windrow.records import RecordedScore, Rollout
from windrow.store.where import parse_where

GRADED = make_rollout(
    "007",
    index=3,
    sample=1,
    grade="graded",
    reward=0.25,
    scores={
        "number": RecordedScore(value=1.0, weight=1.0, scorer="number"),
        "number.format": RecordedScore(value=0.0, weight=0.0, scorer="number"),
        "my_pkg.judges:style": RecordedScore(value=0.5, weight=1.0, scorer="my_pkg.judges:style"),
    },
    metrics={"steps": 4.0},
    state={"won": True, "name": "null island"},
)
FAILURE = make_rollout("b", status="failed", stop="error", error=FAILED)


def matches(text: str, rollout: Rollout) -> bool:
    return parse_where(text)(msgspec.to_builtins(rollout))


@pytest.mark.parametrize(
    ("text", "graded", "failure"),
    [
        ("status=failed", False, True),
        ("status!=failed", True, False),
        ("error.owner=infra", False, True),
        ("error.kind=http_503", False, True),
        ("error=null", True, False),
        ("error!=null", False, True),
        ("error.owner=null", True, False),
        ("error.retryable=true", False, True),
        ("error.retryable=false", False, False),
        ("reward=null", False, True),
        ("reward!=null", True, False),
        ("reward<0.5", True, False),
        ("reward<=0.25", True, False),
        ("reward<0.25", False, False),
        ("reward>0.25", False, False),
        ("reward>=0.25", True, False),
        ("reward=0.25", True, False),
        ("reward=0.250", True, False),
        ("reward=25e-2", True, False),
        ("reward!=0.25", False, True),
        ("sample=1", True, False),
        ("sample=1.0", True, False),
        ("sample>0", True, False),
        ("attempt=1", True, True),
        ("task.index=3", True, False),
        ("task.data.prompt=b", False, True),
        ("state.won=true", True, False),
        ("state.won=false", False, False),
        ("state.name=null island", True, False),
        ("metrics.steps>=4", True, False),
        ("metrics.steps<4", False, False),
        ("metrics.nothing<4", False, False),
        ("metrics.nothing=null", True, True),
        ("metrics.nothing!=4", True, True),
        ("status<5", False, False),
        ("scores.number.value=1", True, False),
        ("scores.number.format.value=0", True, False),
        ("scores.number.format.value<0.5", True, False),
        ("scores.my_pkg.judges:style.value=0.5", True, False),
        ("status=failed,error.owner=infra", False, True),
        ("status=failed,error.owner=policy", False, False),
        (" status = failed , reward = null ", False, True),
        ("status=failed,", False, True),
        ("grade=graded,reward<0.5,sample=1", True, False),
        ("status=", False, False),
    ],
)
def test_a_condition_selects(text: str, graded: bool, failure: bool) -> None:
    assert (matches(text, GRADED), matches(text, FAILURE)) == (graded, failure)


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("task.key=007", "007", True),
        ("task.key=7", "007", False),
        ("task.key=1e5", "100000", False),
        (
            "task.key=12e4567",
            "98e7654",
            False,
        ),  # text that happens to read as a number, both of them infinite
        ("task.key=nan", "nan", True),
        ("task.key=inf", "infinity", False),
        ("task.key!=7", "7.0", True),
    ],
)
def test_text_is_compared_as_text_also_where_it_reads_as_a_number(
    text: str, value: str, expected: bool
) -> None:
    assert matches(text, make_rollout(value)) is expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty condition"),
        (" , ,", "empty condition"),
        ("status", "expected FIELD=VALUE"),
        ("=failed", "expected FIELD=VALUE"),
        ("status==failed,?", "expected FIELD=VALUE"),
        ("1=1", "expected FIELD=VALUE"),
        ("reward<high", "< needs a number"),
        ("reward>=", ">= needs a number"),
        ("statsu=failed", "no field 'statsu'; did you mean 'status'"),
        ("score.number>1", "no field 'score.number'; did you mean 'scores'"),
        ("error.ownr=infra", "no field 'error.ownr'; did you mean 'owner'"),
        ("task.kye=x", "no field 'task.kye'; did you mean 'key'"),
        ("usage.tokens>5", "no field 'usage.tokens'"),
        ("status.x=1", "no field 'status.x'"),
    ],
)
def test_what_is_no_condition_is_refused_with_the_part_that_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_where(text)
    assert complaint in str(refused.value)


def test_the_part_that_is_wrong_is_named() -> None:
    with pytest.raises(UsageError, match="'rewrad<1'"):
        parse_where("status=failed, rewrad<1, sample=0")


@pytest.mark.parametrize("value", [True, "0.1", None, [], {}])
def test_only_numbers_are_less_or_more(value: Any) -> None:
    rollout = make_rollout("a", state={"value": value})
    assert not matches("state.value<5", rollout)
    assert not matches("state.value>=0", rollout)
