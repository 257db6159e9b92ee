"""Where the answer stands, and which texts are equal without computer algebra."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

from trinity.common.rewards.answer import (
    FinalAnswer,
    compare_cheaply,
    final_answer,
    last_number,
    plain_number,
    same_number,
    true_answer,
)


@pytest.mark.parametrize(
    ("response", "text", "is_marked"),
    [
        ("7+8+0=15,4+5+1=10####105", "105", True),
        ("reasoning\n#### 18", "18", True),
        ("a # 7", "7", True),
        ("#### 18\nand so on", "18", True),
        ("<answer>1</answer> no, <answer> 2 </answer>", "2", True),
        ("<answer>\\boxed{3}</answer>", "3", True),
        ("so \\boxed{\\frac{1}{2}} it is", "\\frac{1}{2}", True),
        ("\\boxed{1} then \\boxed{2}", "2", True),
        ("#### \\boxed{5}", "5", True),
        ("\\boxed{4}\n#### 5", "5", True),
        ("\\boxed{unclosed", "\\boxed{unclosed", False),
        ("#### Step 4: add up\nThe total is 18.", "#### Step 4: add up\nThe total is 18.", False),
        ("####", "", True),
        ("only text 12", "only text 12", False),
        ("</answer> 3 <answer>", "</answer> 3 <answer>", False),
    ],
)
def test_final_answer(response: str, text: str, is_marked: bool) -> None:
    assert final_answer(response) == FinalAnswer(text, is_marked)


def test_truth_of_gsm8k_is_what_follows_the_last_mark() -> None:
    assert true_answer("He has 3 #### no.\n#### 1,234") == "1,234"
    assert true_answer("thus \\boxed{x^2}") == "x^2"
    assert true_answer(42) == "42"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("105", 105),
        ("0105", 105),
        ("-7", -7),
        ("+7", 7),
        ("$18", 18),
        ("-$18", -18),
        ("$-18", -18),
        ("$x$", None),
        ("$42$", 42),
        ("1,234,567.50", Fraction(246913500, 200)),
        ("1,23", None),
        ("3/4", Fraction(3, 4)),
        ("3/0", None),
        ("3.5.", Fraction(7, 2)),
        (".5", Fraction(1, 2)),
        (".", None),
        ("", None),
        ("12 apples", None),
        ("²", None),
        ("١٢", None),
        ("9" * 65, None),
        ("1e5", 100000),
        ("1e9999", None),
        ("--5", 5),
    ],
)
def test_plain_number(text: str, value: Fraction | int | None) -> None:
    assert plain_number(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7+8+0=15,4+5+", 5),
        ("the answer is 1,234.", 1234),
        ("5-3", 3),
        ("it is -3", -3),
        ("x=-3.25!", Fraction(-13, 4)),
        ("3 of 4, or 3/4", Fraction(3, 4)),
        ("none", None),
    ],
)
def test_last_number(text: str, value: Fraction | int | None) -> None:
    assert last_number(text) == value


def test_integers_are_compared_exactly_and_decimals_to_six_digits() -> None:
    assert not same_number(Fraction(10**9), Fraction(10**9 + 1))
    assert same_number(Fraction("0.333333333"), Fraction(1, 3))
    assert not same_number(Fraction("0.333"), Fraction(1, 3))


@pytest.mark.parametrize(
    ("response", "truth", "expected"),
    [
        ("####105", "105", True),
        ("####0105", "105", True),
        ("####104", "105", False),
        ("####", "105", False),
        ("<answer>2 * (50 + 2.5)</answer>", "105", True),
        ("<answer>105 apples</answer>", "105", True),
        ("<answer>x = 105</answer>", "105", True),
        ("gives 105", "105", True),
        ("gives 105, no 106", "105", False),
        ("no number", "105", False),
        ("<answer>blue</answer>", "blue", True),
        ("<answer>red</answer>", "blue", None),
        ("<answer>\\frac{210}{2}</answer>", "105", None),
        ("<answer>" + "(" * 5000 + "</answer>", "105", False),
    ],
)
def test_cheap_comparison(response: str, truth: str, expected: bool | None) -> None:
    assert compare_cheaply(final_answer(response), truth) is expected


@pytest.mark.parametrize(
    "text", ["#" * 100_000, "\\boxed{" * 20_000, "<answer>" * 20_000, "1," * 50_000, "{" * 100_000]
)
def test_a_long_response_takes_no_long_time(text: str) -> None:
    begin = time.thread_time()
    compare_cheaply(final_answer(text), "105")
    assert time.thread_time() - begin < 2.0
