"""Worked examples of every built-in reward function, and what they refuse to score."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from trinity.common.errors import WorkflowError
from trinity.common.rewards import (
    REWARD_FUNCTIONS,
    AccuracyReward,
    CountDownRewardFn,
    FormatReward,
    MathRewardFn,
    RewardError,
    RewardFn,
    RewardTimeoutError,
)
from trinity.common.rewards.sandbox import shared_sandbox

GSM8K = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nNatalia sold 48+24 = <<48+24=72>>72 in all.\n#### 72"


@pytest.mark.parametrize(
    ("response", "truth", "accuracy"),
    [
        ("7+8+0=15,4+5+1=10####105", "carry, carry #### 105", 1.0),
        ("7+8+0=15,4+5+1=10####105", "7+8+0=15,4+5+1=10\n#### 105", 1.0),
        ("####0105", "#### 105", 1.0),
        ("####15", "#### 105", 0.0),
        ("", "#### 105", 0.0),
        ("48 + 24 = 72 clips.", GSM8K, 1.0),
        ("<think>48</think><answer>72.0</answer>", GSM8K, 1.0),
        ("It is 72!", GSM8K, 1.0),
        ("答案是72。", GSM8K, 1.0),
        ("<answer>4! * 3</answer>", GSM8K, 1.0),
        ("<think>72</think><answer>48</answer>", GSM8K, 0.0),
        ("The answer is $\\boxed{72}$.", GSM8K, 1.0),
        ("\\boxed{\\frac{2}{4}}", "\\frac{1}{2}", 1.0),
        ("\\boxed{0.5}", "$\\frac{1}{2}$", 1.0),
        ("<answer>1+x</answer>", "x+1", 1.0),
        ("<answer>x+2</answer>", "x+1", 0.0),
        ("so it is $\\sqrt{16}$", "4", 1.0),
        ("\\boxed{(1, 2)}", "(1,2)", 1.0),
        ("<answer>green</answer>", "blue", 0.0),
        ("#### 3", 3, 1.0),
    ],
)
def test_accuracy(response: str, truth: Any, accuracy: float) -> None:
    assert AccuracyReward(deadline_s=20)(response, "prompt", truth) == {"accuracy": accuracy}


def test_plain_numbers_need_no_worker_and_next_to_no_time() -> None:
    reward = AccuracyReward()
    before = shared_sandbox().counts()["calls"]
    begin = time.thread_time()
    for _ in range(500):
        reward("7+8+0=15,4+5+1=10####105", truth="7+8+0=15,4+5+1=10#### 105")
        reward("7+8+0=15,4+5+1=1", truth="7+8+0=15,4+5+1=10#### 105")
    assert (time.thread_time() - begin) / 1000 < 200e-6  # measured: 3 to 15 us
    assert shared_sandbox().counts()["calls"] == before


def test_an_answer_parser_takes_the_answer_out_of_both_sides() -> None:
    reward = AccuracyReward(answer_parser=lambda text: text.partition("=>")[2] or None)
    assert reward("x => 7", truth="y => 07") == {"accuracy": 1.0}
    assert reward("7", truth="y => 07") == {"accuracy": 0.0}


@pytest.mark.parametrize("truth", [None, "", "   ", "reasoning ####", "#### \n"])
def test_a_task_without_truth_is_an_error_and_no_zero(truth: str | None) -> None:
    with pytest.raises(RewardError, match=r"E5114.*no truth to compare with.*response_key"):
        AccuracyReward()("#### 3", truth=truth)


def test_a_response_that_is_no_text_is_an_error() -> None:
    with pytest.raises(RewardError, match=r"E5111.*must be a text, got NoneType"):
        AccuracyReward()(None, truth="3")  # type: ignore[arg-type]
    assert issubclass(RewardError, WorkflowError)


STRICT = "<think>\nreasons\n</think>\n<answer>\n3\n</answer>"


@pytest.mark.parametrize(
    ("response", "score"),
    [
        (STRICT, 0.1),
        (STRICT + "\n", 0.1),
        ("<think>\na\n</think>\n<answer>\n</answer> x\n</answer>", 0.1),
        (" " + STRICT, -0.1),
        (STRICT + " trailing", -0.1),
        (STRICT.replace("</think>\n", "</think> "), -0.1),
        ("<think>\n</think>\n<answer>\n3\n</answer>", -0.1),
        ("3", -0.1),
        ("", -0.1),
    ],
)
def test_format(response: str, score: float) -> None:
    assert FormatReward()(response) == {"format_score": score}


def test_a_configured_pattern_is_matched_at_the_start() -> None:
    reward = FormatReward(pattern=r"A:.*$", deadline_s=20)
    assert reward("A: 3") == {"format_score": 0.1}
    assert reward("so A: 3") == {"format_score": -0.1}


def test_a_pattern_that_backtracks_without_end_is_stopped() -> None:
    reward = FormatReward(pattern=r"(a+)+$", deadline_s=0.5)
    with pytest.raises(RewardTimeoutError, match=r"E5112.*deadline_s = 0.5 s"):
        reward("a" * 60 + "!")
    with pytest.raises(RewardError, match=r"E5113.*unterminated"):
        FormatReward(pattern="[", deadline_s=20)("text")


@pytest.mark.parametrize(
    ("response", "accuracy", "format_score"),
    [
        ("<think>\n6*7\n</think>\n<answer>\n42\n</answer>", 1.0, 0.1),
        ("<think>6*7</think> <answer>42</answer>\n", 1.0, 0.1),
        ("well <think>a</think> b </think><answer>41</answer>", 0.0, 0.1),
        ("<answer>42</answer>", 1.0, -0.1),
        ("<think>6*7</think> so <answer>42</answer>", 1.0, -0.1),
        ("<think>6*7</think> <answer>42</answer> done", 1.0, -0.1),
        ("", 0.0, -0.1),
    ],
)
def test_math(response: str, accuracy: float, format_score: float) -> None:
    assert MathRewardFn()(response, "6*7?", "42") == {"accuracy": accuracy, "format_score": format_score}


def test_math_with_a_configured_pattern() -> None:
    assert MathRewardFn(pattern="#", deadline_s=20)("#### 42", truth="42") == {"accuracy": 1.0, "format_score": 0.1}


TRUTH = '{"target": 24, "numbers": [4, 6, 8, 8]}'


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("<think>..</think><answer>(8 / 8) * 4 * 6</answer>", 1.0),
        ("<answer>1</answer> or <answer>4*6 + 8 - 8</answer>", 1.0),
        ("<answer>4 * 6 * 8 / 8</answer>", 1.0),
        ("<answer>4 * 6</answer>", 0.1),  # two numbers unused
        ("<answer>4 * 6 + 8 - 8 + 0</answer>", 0.1),  # a number that was not given
        ("<answer>4 + 6 + 8 + 8</answer>", 0.1),  # 26
        ("<answer>44**19**35</answer>", 0.1),
        ("<answer>4*6+8-8 = 24</answer>", 0.1),
        ("<answer>8 / (8 - 8)</answer>", 0.1),
        ("4 * 6 + 8 - 8", 0.0),
        ("", 0.0),
    ],
)
def test_countdown(response: str, score: float) -> None:
    assert CountDownRewardFn()(response, truth=TRUTH) == {"score": score}


def test_countdown_takes_a_mapping_and_fractions() -> None:
    # 1/3 is exact: (1/3) * 3 reaches 1.
    truth = {"target": 1, "numbers": [1, 3, 3]}
    assert CountDownRewardFn()("<answer>1 / 3 * 3</answer>", truth=truth) == {"score": 1.0}


@pytest.mark.parametrize(
    "truth",
    [
        None,
        "",
        "24",
        "[4, 6]",
        '{"target": 24}',
        '{"target": "1e999999999", "numbers": [1]}',
        '{"target": 1, "numbers": 5}',
    ],
)
def test_countdown_without_a_usable_truth_is_an_error(truth: str | None) -> None:
    with pytest.raises(RewardError, match=r"E5115.*must be JSON like"):
        CountDownRewardFn()("<answer>1</answer>", truth=truth)


def test_a_reward_function_is_added_by_its_decorator() -> None:
    @REWARD_FUNCTIONS.register_module("length_reward_of_the_test")
    class LengthReward(RewardFn):
        def __call__(
            self, response: str, prompt: str | None = None, truth: Any = None, **kwargs: Any
        ) -> dict[str, float]:
            return {"length": float(len(response))}

    assert REWARD_FUNCTIONS.get("length_reward_of_the_test")()("four") == {"length": 4.0}


def test_importing_rewards_imports_neither_torch_nor_sympy() -> None:
    code = (
        "import sys; from trinity.common.rewards import AccuracyReward, MathRewardFn, CountDownRewardFn;"
        "from trinity.common.rewards.math_reward import MathRewardFn;"
        "print([name for name in ('torch', 'sympy', 'math_verify', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
