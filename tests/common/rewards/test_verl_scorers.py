r"""Scores of veRL's datasets: each rule by a case that is worked out by hand."""

from __future__ import annotations

import itertools
import re
import time

import pytest

from trinity.common.rewards.verl import UnknownSourceError, score_of
from trinity.common.rewards.verl.geometry import has_form
from trinity.common.rewards.verl.minerva import plain


@pytest.mark.parametrize(
    ("response", "truth", "score"),
    [
        ("so 70 + 2\n#### 72", "72", 1.0),
        ("#### 1,072", "1072", 1.0),
        ("#### 71 #### 72", "72", 1.0),
        ("#### 72.0", "72", 0.0),
        ("#### 72.", "72", 0.0),
        ("#### $72", "72", 0.0),
        ("####72", "72", 0.0),
        ("the answer is 72", "72", 0.0),
        ("#### 72" + " " * 300, "72", 0.0),
        ("#### -3", "-3", 1.0),
    ],
)
def test_gsm8k_is_the_number_after_the_last_mark(response: str, truth: str, score: float) -> None:
    assert score_of("openai/gsm8k", response, truth) == score


@pytest.mark.parametrize(
    ("answer", "truth", "score"),
    [
        (r"\boxed{\frac12}", r"\frac{1}{2}", 1.0),
        (r"\boxed{0.5}", r"\frac{1}{2}", 1.0),
        (r"\boxed{1/2}", r"\frac{1}{2}", 1.0),
        (r"\boxed{x=5}", "5", 1.0),
        (r"\boxed{\left(3, 4\right)}", "(3,4)", 1.0),
        (r"\boxed{90^\circ}", "90", 1.0),
        (r"\boxed{50\%}", "50", 1.0),
        (r"\boxed{12\text{ cm}}", "12", 1.0),
        (r"\boxed{\sqrt3}", r"\sqrt{3}", 1.0),
        (r"\boxed{\dfrac{3}{4}}", r"\frac{3}{4}", 1.0),
        (r"first \boxed{1}, then \boxed{2}", "2", 1.0),
        (r"so $\boxed 3$", "3", 1.0),
        (r"\boxed{-03/-0}", r"\frac{-3}{0}", 1.0),
        (r"\boxed{" + "01" * 2500 + "/1}", r"\frac{" + ("01" * 2500)[1:] + "}{1}", 1.0),
        (r"\boxed{" + "1" * 5000 + "/1}", "1", 0.0),
        (r"\boxed{6/8}", r"\frac{3}{4}", 0.0),
        (r"\boxed{3", "3", 0.0),
        (r"\fbox{3}", "3", 0.0),
        ("3", "3", 0.0),
    ],
)
def test_competition_answers_are_compared_in_one_spelling(answer: str, truth: str, score: float) -> None:
    assert score_of("lighteval/MATH", answer, truth) == score


@pytest.mark.parametrize(
    ("response", "truth", "is_right"),
    [
        ("Answer: 34", "34", True),
        ("answer : $34$", "34", True),
        ("Answer: 1\nAnswer: 2", "2", True),
        ("Answer: 12,345", "12345", True),
        ("Answer: x = 7", "7", True),
        ("Answer: 35", "34", False),
        (r"\boxed{34}", "34", True),
        (r"Answer: 1 \boxed{34}", "34", False),
        (r"\boxed{34}" + " " * 100, "34", False),
    ],
)
def test_dapo_is_the_text_after_the_last_answer(response: str, truth: str, is_right: bool) -> None:
    wanted = {"score": 1.0 if is_right else -1.0, "acc": float(is_right)}
    assert score_of("math_dapo", response, truth) == wanted == score_of("aime2024", response, truth)


def test_dapo_spelling_takes_units_and_latex_away() -> None:
    assert plain(r"$\text{12 units}$") == "12" and plain(r"\frac12") == r"\frac{1}{2}" and plain("30^{\\circ}") == "30"


def test_geometry_is_nine_parts_answer_and_one_part_form() -> None:
    right, formed = r"\boxed{0.5}", r"<think>half</think> \boxed{2}"
    assert score_of("hiyouga/geometry3k", right, "1/2") == {"score": 0.9, "acc": 1.0, "format": 0.0}
    found = score_of("hiyouga/geometry3k", formed, "1/2")
    assert isinstance(found, dict) and found["acc"] == 0.0 and found["score"] == pytest.approx(0.1)
    assert isinstance(both := score_of("hiyouga/geometry3k", f"<think>a</think>{right}", "1/2"), dict)
    assert both["score"] == pytest.approx(1.0)


PARTS = ["<think>", "</think>", r"\boxed{", "}", "\n"]
FORM = re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL)


@pytest.mark.parametrize("size", range(6))
def test_the_form_of_geometry_is_that_of_its_pattern(size: int) -> None:
    texts = ["".join(parts) for parts in itertools.product(PARTS, repeat=size)]
    assert [has_form(text) for text in texts] == [FORM.fullmatch(text) is not None for text in texts]


def test_the_form_of_geometry_is_found_in_linear_time() -> None:
    begin = time.thread_time()  # of this thread: other processes do not count
    for text in ("<think>" + "</think>" * 4000 + r"\boxed{" * 4000, "<think>" * 9000, "<think></think>" * 9000):
        score_of("hiyouga/geometry3k", text, "1")
    assert time.thread_time() - begin < 5.0  # it takes milliseconds; the pattern takes minutes


def test_an_unknown_source_names_the_known_ones_and_the_way_out() -> None:
    with pytest.raises(UnknownSourceError, match=r"'mine' has no scorer; known: openai/gsm8k.*custom_reward_function"):
        score_of("mine", "1", "1")
