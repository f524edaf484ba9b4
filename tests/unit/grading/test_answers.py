"""The built-in scorers' verdicts: what counts as the reply's answer, and when it is right."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.grading.answers import choice, contains, exact, final_number, number, parse_number, regex

pytestmark = pytest.mark.slow

RIGHT, WRONG, UNFORMED = (True, True), (False, True), (False, False)


@pytest.mark.parametrize(
    ("reply", "answer", "verdict"),
    [
        ("Paris", "Paris", RIGHT),
        ("  Paris\n", " Paris ", RIGHT),
        ("paris", "Paris", WRONG),
        ("Paris.", "Paris", WRONG),
        ("", "Paris", UNFORMED),
        (" \n", "Paris", UNFORMED),
        ("Lyon", ["Paris", "Lyon"], RIGHT),
        ("Nice", ["Paris", "Lyon"], WRONG),
        ("5", 5, RIGHT),
        ("5.0", 5, WRONG),
        ("héllo", "héllo", RIGHT),
    ],
)
def test_exact_is_the_whole_reply(reply: str, answer: Any, verdict: tuple[bool, bool]) -> None:
    assert exact(reply, answer, {})[:2] == verdict


@pytest.mark.parametrize(
    ("reply", "answer", "verdict"),
    [
        ("It is Paris, of course.", "paris", RIGHT),
        ("STRASSE", "straße", RIGHT),
        ("It is Lyon.", "Paris", WRONG),
        ("", "Paris", UNFORMED),
        ("Lyon or so", ["Paris", " lyon "], RIGHT),
        ("12", 12, RIGHT),
    ],
)
def test_contains_is_anywhere_in_the_reply_in_either_case(reply, answer, verdict) -> None:
    assert contains(reply, answer, {})[:2] == verdict


@pytest.mark.parametrize(
    ("reply", "answer", "settings", "verdict"),
    [
        ("the sky is blue", r"\bblue\b", {}, RIGHT),
        ("the sky is bluer", r"\bblue\b", {}, WRONG),
        ("", r"\bblue\b", {}, UNFORMED),
        ("x=1, so x=2", "2", {"pattern": r"x=(\d)"}, RIGHT),
        ("x=1, so x=2", "1", {"pattern": r"x=(\d)"}, WRONG),
        ("<a>yes</a>", "<a>yes</a>", {"pattern": r"<a>.*</a>"}, RIGHT),
        ("no tags", "yes", {"pattern": r"<a>(.*)</a>"}, UNFORMED),
        ("<a> yes </a>", ["no", "yes"], {"pattern": r"<a>(.*)</a>"}, RIGHT),
        ("ab", "x", {"pattern": r"a(c)?"}, WRONG),
    ],
)
def test_regex_takes_the_last_match_of_the_pattern_or_the_answer_as_one(
    reply, answer, settings, verdict
) -> None:
    assert regex(reply, answer, settings)[:2] == verdict


@pytest.mark.parametrize(
    ("reply", "answer", "verdict"),
    [
        ("B", "B", RIGHT),
        ("b", "B", RIGHT),
        ("(b)", "B", RIGHT),
        ("C.", "C", RIGHT),
        ("c)", "C", RIGHT),
        ("The answer is (B).", "B", RIGHT),
        ("Answer: **D**", "D", RIGHT),
        ("the answer is d", "D", RIGHT),
        ("Answer is:\nC", "C", RIGHT),
        ("A and B are wrong, so it must be C", "C", RIGHT),
        ("A is correct", "A", RIGHT),
        ("A) is correct", "A", RIGHT),
        ("I think it is B", "B", RIGHT),
        ("It is B, I think.", "B", RIGHT),
        ("B. A triangle has three sides.", "B", RIGHT),
        ("The answer is a triangle, which is option C", "C", RIGHT),
        ("The answer is A because C is wrong", "A", RIGHT),
        ("The answer is A. No: the answer is B.", "B", RIGHT),
        ("C", ["A", "C"], RIGHT),
        ("C", "(C)", RIGHT),
        ("D", "C", WRONG),
        ("I do not know", "B", UNFORMED),
        ("none of them", "B", UNFORMED),
        ("", "B", UNFORMED),
        ("USA and CIA", "A", UNFORMED),
        ("I'm sure it isn't", "I", UNFORMED),
    ],
)
def test_choice_is_the_letter_that_the_reply_settles_on(reply, answer, verdict) -> None:
    assert choice(reply, answer, {})[:2] == verdict


NUMBERS: list[tuple[str, Any, tuple[bool, bool]]] = [
    # the whole reply
    ("42", "42", RIGHT),
    ("42", 42, RIGHT),
    ("42.0", "42", RIGHT),
    ("042", "42", RIGHT),
    ("+42", "42", RIGHT),
    (".5", "0.5", RIGHT),
    ("5.", "5", RIGHT),
    ("43", "42", WRONG),
    # thousands
    ("1,234", "1234", RIGHT),
    ("1234", "1,234", RIGHT),
    ("It costs 1,234,567.89 in all.", "1234567.89", RIGHT),
    ("one of 1, 2, 3", "3", RIGHT),
    ("one of 1,2,3", "3", RIGHT),
    # signs
    ("-7", "-7", RIGHT),
    ("−7", "-7", RIGHT),
    ("-7", "−7", RIGHT),
    ("It fell to −3.5 degrees", "-3.5", RIGHT),
    ("7", "-7", WRONG),
    ("10 - 3 = 7", "7", RIGHT),
    ("10-3", "3", RIGHT),
    ("pages 3-5", "5", RIGHT),
    ("x = -5", "-5", RIGHT),
    ("(-5)", "-5", RIGHT),
    ("covid-19", "19", RIGHT),
    # fractions
    ("3/4", "0.75", RIGHT),
    ("0.75", "3/4", RIGHT),
    ("The answer is 3 / 4.", "3/4", RIGHT),
    ("-1/3", "-1/3", RIGHT),
    ("0.333", "1/3", WRONG),
    ("1/0", "1", UNFORMED),
    (r"\boxed{\frac{3}{4}}", "3/4", RIGHT),
    (r"\boxed{-\dfrac{1}{2}}", "-0.5", RIGHT),
    (r"so $\frac{10}{4}$", "2.5", RIGHT),
    # percent and money
    ("12%", "12", RIGHT),
    ("12 %", "12 %", RIGHT),
    ("about 12.5% of them", "12.5%", RIGHT),
    (r"\boxed{50\%}", "50", RIGHT),
    ("$5", "5", RIGHT),
    ("-$5", "-5", RIGHT),
    ("$-5", "-5", RIGHT),
    ("5 €", "5", RIGHT),
    # powers of ten
    ("1e3", "1000", RIGHT),
    ("6.02E23", "6.02e23", RIGHT),
    ("1.5e-3 m", "0.0015", RIGHT),
    ("1e999999999", "1", UNFORMED),
    # what the reply settles on
    ("First 3, then 4, so 12", "12", RIGHT),
    ("First 3, then 4, so 12", "3", WRONG),
    (r"We get \boxed{7} out of 10", "7", RIGHT),
    (r"\boxed{6}, no: \boxed{7}. Checked 3 times", "7", RIGHT),
    (r"\boxed{1{,}234}", "1234", RIGHT),
    (r"\boxed{7 \text{ apples}}", "7", RIGHT),
    (r"\boxed{x = 7}", "7", RIGHT),
    ("3 * 4 = 12\n#### 12", "12", RIGHT),
    ("#### 1,200 dollars\nThat took 5 minutes", "1200", RIGHT),
    ("The answer is 7. I tried 3 ways.", "7", RIGHT),
    ("the answer is: 7", "7", RIGHT),
    ("Answer: **7** (of 10)", "7", RIGHT),
    ("Answer = $7", "7", RIGHT),
    ("The answer is seven; 2 of them", "2", RIGHT),
    ("The answer is 5. Wait. The answer is 6.", "6", RIGHT),
    # nothing there
    ("", "7", UNFORMED),
    ("no idea", "7", UNFORMED),
    ("NaN", "7", UNFORMED),
    ("infinity", "7", UNFORMED),
    ("/", "7", UNFORMED),
    # several right answers
    ("8", ["7", "8"], RIGHT),
    ("9", ["7", "8"], WRONG),
    ("9", "nine", WRONG),
]


@pytest.mark.parametrize(("reply", "answer", "verdict"), NUMBERS)
def test_number_is_the_one_that_the_reply_settles_on(reply, answer, verdict) -> None:
    assert number(reply, answer, {})[:2] == verdict


@pytest.mark.parametrize(
    ("reply", "tolerance", "right"),
    [
        ("3.14", 0.01, True),
        ("3.13", 0.01, True),
        ("3.129", 0.01, False),
        ("3.1415", 0, True),
        ("3.14", 0, False),
    ],
)
def test_a_tolerance_is_kept_exactly(reply: str, tolerance: float, right: bool) -> None:
    wanted = "3.1415" if tolerance == 0 else "3.14"
    assert number(reply, wanted, {"tolerance": tolerance})[:2] == (right, True)


@pytest.mark.parametrize(
    "text", ["", "x", "1 2", "1,23", "--1", "1.2.3", "1/2/3", "e5", "0x10", "1_000", "½", "nan"]
)
def test_what_is_not_a_number_as_a_whole_is_none(text: str) -> None:
    assert parse_number(text) is None


@given(
    st.fractions(max_denominator=10**6),
    st.sampled_from(["{}", "The answer is {}.", "#### {}", r"\boxed{{{}}}"]),
)
def test_every_fraction_is_read_back_exactly(value: Fraction, form: str) -> None:
    assert final_number(form.format(value)) == value


@given(st.integers(-(10**15), 10**15), st.integers(0, 10**6))
def test_numbers_are_read_with_and_without_commas(whole: int, part: int) -> None:
    assert parse_number(f"{whole:,}.{part}") == parse_number(f"{whole}.{part}")
    assert final_number(f"so it is {whole:,}") == whole


@pytest.mark.parametrize(
    ("judge", "settings", "replies", "said"),
    [
        (number, {}, ("so 7", "7.0", r"\boxed{7}", "14/2", "$7"), "7"),
        (number, {"tolerance": 1}, ("7.5", "15/2"), "15/2"),
        (number, {}, ("no idea", ""), None),
        (choice, {}, ("(b)", "The answer is B.", "B"), "B"),
        (choice, {}, ("none of them",), None),
        (exact, {}, ("yes", " yes\n"), "yes"),
        (exact, {}, ("", "  "), None),
        (regex, {"pattern": r"<a>(.*?)</a>"}, ("<a>x</a>", "<a>no</a> <a> x </a>"), "x"),
        (regex, {"pattern": "x+"}, ("y",), None),
    ],
)
def test_replies_that_settle_on_the_same_say_the_same(judge, settings, replies, said) -> None:
    assert {judge(reply, "7", settings).final_answer for reply in replies} == {said}


def test_a_number_too_long_to_write_in_decimal_is_told_from_another() -> None:
    digits = "0." + "1" * 6000
    assert number(digits, "7", {}).final_answer == number(digits + "0", "7", {}).final_answer
    assert number(digits, "7", {}).final_answer != number(digits + "1", "7", {}).final_answer


def test_a_scorer_that_looks_for_no_answer_says_so() -> None:
    assert not contains("it is 7", "7", {}).looks_for_answer
    assert not regex("it is 7", "7", {}).looks_for_answer


@given(st.text())
def test_no_reply_makes_a_verdict_raise(reply: str) -> None:
    for judge in (exact, contains, choice, number):
        correct, formed, said, reads = judge(reply, "7", {})
        assert formed or not correct
        assert (said is not None) == (reads and formed)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("judge", [choice, number])
@pytest.mark.parametrize("filler", [" ", "\n", "*", "#", "-", "1", "1,", "1/", "(", r"\boxed{", "answer is "])
def test_a_reply_that_repeats_itself_to_the_token_limit_does_not_hold_up_the_loop(judge, filler) -> None:
    """Work that grows with the square of the length would take minutes."""
    assert judge("the answer is" + filler * (200_000 // len(filler)), "no", {})[0] is False


PIECES = ["the answer is", "ANSWER", ":", "=", " ", "\n", "####", "#", "\\boxed{", "\\BOXED {", "}", "-", "$", ".", ",", "/",
          "1", "42", "3.5", "1,000", "x", "e", "%"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_a_letter_beyond_ascii_after_a_reply_changes_nothing(reply: str) -> None:
    assert final_number(f"{reply}\né") == final_number(f"{reply}\n")
