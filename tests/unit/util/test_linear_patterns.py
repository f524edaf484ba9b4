"""Patterns of rows: they mean what they mean in `re`, take linear time, or are refused with the reason."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.util.linear_patterns import MAX_PATTERN_CHARS, linear_pattern

PATTERNS = (
    *(r"\d+", r"\D", r"\w+", r"\W+", r"\s+", r"\S+", r"[\s\S]+?b", r"[\W_]+", r"[^\W\d_]+", r"[a-c\d]+"),
    *(r"^a", r"(?m)^a$", r"\Aab\Z", r"42$", r"a|b|", r"(?:ab){2,3}?", r"(a|b)*c", r"a{3}", r"a.b"),
    *(
        r"(?s)a.b",
        r"(?i)<score>(.*?)</score>",
        r"(?i)ÄB",
        r"(?i:a)b",
        r"(?x) a  b # c",
        r"(?a)\w+",
        r"(?a)\s",
    ),
    *(r"(?P<x>a)(b)?", r"[\]\-\\^]+", r"\.\*", r"\x41|\u00e9", r"", r"(?-i:a)", r"[^a]", r"\bab\b", r"a\Bb"),
)
TEXTS = (
    "",
    "42\n",
    "a\nb\na\n",
    "A b_é١\u00a0 x",
    "<SCORE>5</score><score>6</score>",
    "ab abc",
    "ababab\n",
    "äb ÄB",
)


@given(
    st.sampled_from(PATTERNS),
    st.one_of(st.sampled_from(TEXTS), st.text("ab42 \n_é١\u00a0\u2028Ä<>*.\\[]^-", max_size=12)),
)
@settings(max_examples=300, deadline=None)
def test_a_pattern_means_what_it_means_in_re(pattern: str, text: str) -> None:
    theirs, ours = re.compile(pattern), linear_pattern(pattern)
    assert ours.groups == theirs.groups
    assert (ours.search(text) is None) == (theirs.search(text) is None)
    if "$" not in pattern and r"\b" not in pattern.lower():  # $ takes the last newline, \b is that of ASCII
        found = [match.span(min(theirs.groups, 1)) for match in theirs.finditer(text)]
        # After an empty match, `re` also looks at the same place for one that is not empty.
        if all(start < end for start, end in found):
            assert [match.span(min(ours.groups, 1)) for match in ours.finditer(text)] == found


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        (r"(?=a)b", "looks ahead or behind"),
        (r"(?<!a)b", "looks ahead or behind"),
        (r"(a)\1", "refers back"),
        (r"(?>a)b", "atomic"),
        (r"a++", "possessive"),
        (r"(a)?(?(1)b|c)", "depends on whether a group"),
        (r"((a{500}){500}){5}", "too large"),
        (r"(\w{1,900}){1,900}", "too large"),
        ("(", "does not compile"),
        ("(" * 4000 + ")" * 4000, "does not compile"),
        ("a" * (MAX_PATTERN_CHARS + 1), "longer than"),
    ],
)
def test_a_pattern_without_bounds_is_refused_with_the_reason(pattern: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        linear_pattern(pattern)


def test_text_that_utf_8_cannot_write_is_searched_all_the_same() -> None:
    match = linear_pattern("b").search("é\ud800b")
    assert match is not None
    assert match.span() == (2, 3)


SCRIPT = r"""
import resource
resource.setrlimit(resource.RLIMIT_CPU, (10, 10))  # the kernel ends whatever takes longer
from windrow.util.linear_patterns import linear_pattern
for pattern in (r"(a+)+$", r"(a|aa)+$", r"(.*)*x", r"(a*)*(a*)*b", r"^(\w+\s?)*$"):
    assert linear_pattern(pattern).search("a" * 200_000 + "!") is None, pattern
"""


def test_patterns_that_never_end_in_re_take_no_time() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
