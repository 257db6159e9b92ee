"""Exact, bounded arithmetic on text."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trinity.common.rewards.arithmetic import MAX_CHARS, ArithmeticRefused, evaluate, numbers_in


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", Fraction(7)),
        ("(1 + 2) * 3", Fraction(9)),
        ("10 / 4", Fraction(5, 2)),
        ("1/3 + 1/3 + 1/3", Fraction(1)),
        ("-(2 - 5)", Fraction(3)),
        ("+0105 - 5", Fraction(100)),
        ("0.1 + 0.2", Fraction(3, 10)),
        (".5 * 4.", Fraction(2)),
        ("2\n* 3", Fraction(6)),
        ("100 - 007", Fraction(93)),
        ("10.007 - 0", Fraction(10007, 1000)),
    ],
)
def test_four_operations_are_exact(text: str, value: Fraction) -> None:
    assert evaluate(text) == value


@pytest.mark.difference("Arithmetic in rewards")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("44**19**35", "only numbers"),
        ("7 // 2", "only numbers"),
        ("7 % 2", "only numbers"),
        ("1e9", "only numbers"),
        ("2 ^ 3", "only numbers"),
        ("١ + ٢", "only numbers"),  # Arabic-Indic digits
        ("１+１", "only numbers"),  # full-width digits
        ("().__class__", "only numbers"),
        ("9" * 25, "more than 24 digits"),
        ("1+" * 300 + "1", f"longer than {MAX_CHARS}"),
        ("1+" * 100 + "1", "more than 128 parts"),
        ("-" * 300 + "1", "more than 128 parts"),
        ("(" * 250 + "1" + ")" * 250, "not an expression"),
        ("1 / (2 - 2)", "division by zero"),
        ("(1)(2)", "Call is not allowed"),
        ("1 2", "not an expression"),
        ("", "not an expression"),
        ("()", "Tuple is not allowed"),
    ],
)
def test_everything_else_is_refused_with_its_reason(text: str, reason: str) -> None:
    begin = time.thread_time()
    with pytest.raises(ArithmeticRefused, match=reason):
        evaluate(text)
    assert time.thread_time() - begin < 1.0


@given(st.text(alphabet="0123456789+-*/(). ", max_size=60))
@settings(max_examples=300, deadline=500)
def test_any_text_of_the_alphabet_is_a_number_or_refused(text: str) -> None:
    try:
        value = evaluate(text)
    except ArithmeticRefused:
        return
    assert isinstance(value, Fraction)


@given(
    st.recursive(
        st.integers(0, 999).map(str),
        lambda inner: st.builds("({}{}{})".format, inner, st.sampled_from("+-*"), inner),
        max_leaves=12,
    )
)
@settings(max_examples=100)
def test_agrees_with_pythons_own_integers(text: str) -> None:
    # Worked out independently: a stack machine over the fully parenthesised text.
    stack: list[list[str | int]] = [[]]
    number = ""
    for char in text + " ":
        if char.isdigit():
            number += char
            continue
        if number:
            stack[-1].append(int(number))
            number = ""
        if char == "(":
            stack.append([])
        elif char == ")":
            left, sign, right = stack.pop()
            assert isinstance(left, int) and isinstance(right, int)
            stack[-1].append({"+": left + right, "-": left - right, "*": left * right}[str(sign)])
        elif char in "+-*":
            stack[-1].append(char)
    assert evaluate(text) == stack[0][0]


def test_numbers_are_found_in_order_without_signs() -> None:
    assert numbers_in("3 * (12 - 4.5) + 007") == [3, 12, Fraction(9, 2), 7]
