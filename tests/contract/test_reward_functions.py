"""Reward functions in every published form, called with what they name, and run as a plugin."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.docs.pages import page
from tests.e2e.tiny_run import TinyRun
from trinity.catalogue import builtin_catalogue
from trinity.common.config import examine
from trinity.common.errors import WorkflowError
from trinity.common.rewards import REWARD_FUNCTIONS, RewardError, RewardFn, RewardTimeoutError, eval_utils, sandbox
from trinity.common.rewards.accuracy_reward import AccuracyReward
from trinity.common.rewards.dapo_reward import MathDAPORewardFn
from trinity.common.rewards.eval_utils import (
    compute_score_v0,
    evaluate_equation,
    extract_solution,
    find_boxed_answer,
    is_equiv,
    last_boxed_only_string,
    parse_with_timeout,
    remove_boxed,
    remove_right_units,
    simple_answer_parser,
    validate_equation,
    validate_think_pattern,
    verify_with_timeout,
)
from trinity.common.rewards.math_reward import MathBoxedRewardFn
from trinity.common.rewards.naive_dapo_score import compute_score, grade_answer, match_answer
from trinity.common.rewards.qwen25_eval import extract_answer, math_equal, verify_math_answer
from trinity.common.rewards.scores import scores_of

OFFERED: dict[str, Any] = {
    "response": "abc", "prompt": "p", "truth": "c", "response_token": torch.tensor([1, 2, 3]), "info": {},
}  # fmt: skip


class WithoutPrompt(RewardFn):
    def __call__(self, response: str, truth: Any = None) -> float:
        return float(response.endswith(truth))


class OfTokens(RewardFn):
    def __init__(self, **kwargs: Any) -> None:
        self.scale = kwargs.get("scale", 1.0)

    def __call__(self, response: str, response_token: torch.Tensor, truth: str, **kwargs: Any) -> dict[str, float]:
        return {"length": self.scale * len(response_token), "more": float(len(kwargs))}


class NoBase:
    def __call__(self, **kwargs: Any) -> torch.Tensor:
        assert sorted(kwargs) == ["prompt", "response", "truth"]
        return torch.tensor([0.5])


def plain(response: str, truth: str) -> int:
    return int(truth in response)


def scaled(truth: str, scale: float = 1.0) -> float:
    return scale


@pytest.mark.parametrize(
    ("reward_fn", "scores"),
    [
        (WithoutPrompt(), {"reward": 1.0}),
        (OfTokens(scale=2.0), {"length": 6.0, "more": 1.0}),
        (NoBase(), {"reward": 0.5}),
        (plain, {"reward": 1.0}),
        (functools.partial(scaled, scale=3.0), {"reward": 3.0}),
        (lambda response, prompt: {"a": True, "b": torch.tensor(2)}, {"a": 1.0, "b": 2.0}),
        (lambda response: False, {"reward": 0.0}),
    ],
)
def test_a_reward_function_is_given_what_it_names_and_returns_a_number_or_numbers(
    reward_fn: Any, scores: dict[str, float]
) -> None:
    assert scores_of(reward_fn, OFFERED) == scores


class ReturnsText(RewardFn):
    def __call__(self, response: str) -> Any:
        return "right"


class ReturnsNothing(RewardFn):
    def __call__(self, response: str) -> Any:
        return None


@pytest.mark.parametrize(
    ("reward_fn", "words"),
    [
        (ReturnsText(), ["E5117", "ReturnsText", Path(__file__).name, "got str"]),
        (ReturnsNothing(), ["E5117", "ReturnsNothing", Path(__file__).name, "got NoneType"]),
        (lambda response: {"a": "b"}, ["E5117", Path(__file__).name, "'a'"]),
        (lambda response: torch.zeros(2), ["E5117", "Tensor"]),
        (lambda completion: 1.0, ["E5116", "completion", "response, prompt, truth"]),
    ],
)
def test_what_is_no_reward_names_the_function_and_its_file(reward_fn: Any, words: list[str]) -> None:
    with pytest.raises(RewardError) as caught:
        scores_of(reward_fn, OFFERED)
    assert all(word in str(caught.value) for word in words), caught.value


def test_an_answer_parser_may_return_a_list() -> None:
    reward = AccuracyReward(answer_parser=lambda text: text.split("|"))
    assert reward("1|x=2|", truth="5|2") == {"accuracy": 1.0}
    assert reward("1|3", truth="5|2") == {"accuracy": 0.0}
    with pytest.raises(WorkflowError, match="E5114"):
        reward("1", truth="|")


@pytest.mark.parametrize(
    ("response", "truth", "is_right"),
    [
        (r"so \boxed{1e3}", "1000", True),
        ("it is 1e3", "1000", True),
        ("it is 2.5e-1.", "1/4", True),
        (r"\boxed{1e3}", "1e3", True),
        (r"\boxed{1e3}", "13", False),
        (r"\boxed{3} and \boxed{-3}", "3, -3", True),
        (r"\boxed{-3} or \boxed{3}", r"\{3, -3\}", True),
        (r"\boxed{3} and \boxed{-3}", "3, 4", False),
        (r"first \boxed{7}, no: \boxed{3}", "3", True),
        (r"first \boxed{3}, no: \boxed{7}", "3", False),
    ],
)
def test_powers_of_ten_and_several_boxed_answers(response: str, truth: str, is_right: bool) -> None:
    for name in ("math_reward", "accuracy_reward"):
        assert REWARD_FUNCTIONS.get(name)()(response, truth=truth)["accuracy"] == is_right


def test_boxed_reward() -> None:
    reward = MathBoxedRewardFn()
    assert reward(r"a \boxed{2} b", "2") == {"accuracy": 1.0, "format_score": 0.0}
    assert reward(r"the answer is 2", "2")["accuracy"] == 0.0
    assert reward(r"\boxed{2}", "2", with_think=True, format_score_coef=0.5)["format_score"] == -0.5
    assert reward(r"<think>a</think>\boxed{2}", "2", with_think=True)["format_score"] == 0.0
    assert MathBoxedRewardFn(with_think=True)(r"\boxed{2}", "2")["format_score"] == -0.1


@pytest.mark.parametrize(("length", "penalty"), [(10, 0.0), (80, 0.0), (90, -0.25), (100, -0.5), (400, -0.5)])
def test_dapo_reward(length: int, penalty: float) -> None:
    reward = MathDAPORewardFn(
        enable_overlong_penalty=True, penalty_factor=0.5, max_response_length=100, cache_length=20
    )
    info: dict[str, Any] = {}
    scores = reward(r"<think>\boxed{3}</think> \boxed{2}", response_token=torch.zeros(length), truth="2", info=info)
    assert scores == {"accuracy": 1.0, "format_score": pytest.approx(penalty)}
    assert info == {"ground_truth": "2", "extracted_answer": "2"}
    assert MathDAPORewardFn()("3", torch.zeros(length), "2") == {"accuracy": -1.0, "format_score": 0.0}
    with pytest.raises(ValueError, match="max_response_length"):
        MathDAPORewardFn(enable_overlong_penalty=True).compute_overlong_penalty([1])


@pytest.mark.parametrize(
    ("arguments", "code", "key"),
    [
        ({"max_response_length": 100, "cache_length": 100, "penalty_factor": 1.0}, "E1302", "max_response_length"),
        ({"max_response_length": 100, "penalty_factor": 1.0}, "E1302", "cache_length"),
        ({"max_response_length": 100, "cache_length": 20, "penalty_factor": 1.0}, "", ""),
    ],
)
def test_lengths_of_the_dapo_reward_that_do_not_fit_are_refused_before_a_run(
    tmp_path: Path, arguments: dict[str, Any], code: str, key: str
) -> None:
    run = TinyRun(tmp_path).change(
        buffer__explorer_input__taskset__default_reward_fn_type="math_dapo_reward",
        buffer__explorer_input__taskset__reward_fn_args=arguments | {"enable_overlong_penalty": True},
    )
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run.tree))
    found = examine(tmp_path / "run.yaml", catalogue=builtin_catalogue())[1]
    problems = [problem for problem in found if problem.is_error]
    assert [(p.code, p.key.rpartition(".")[2]) for p in problems] == ([(code, key)] if code else [])


def test_helpers_that_plugins_import() -> None:
    assert (find_boxed_answer(r"a \boxed{\frac{1}{2}} b"), find_boxed_answer("a")) == (r"\frac{1}{2}", None)
    assert (last_boxed_only_string(r"\boxed{1} \boxed{2}"), remove_boxed(r"\boxed{2}")) == (r"\boxed{2}", "2")
    assert is_equiv("1/2", r"\frac{1}{2}") and not is_equiv("1/2", "1/3") and is_equiv(None, None)
    assert verify_with_timeout(parse_with_timeout(r"\boxed{0.5}"), simple_answer_parser("<answer>1/2</answer>"))
    assert compute_score_v0(r"\boxed{0.50}", "0.5") == 1.0
    assert (evaluate_equation("1+2*3"), evaluate_equation("1/2"), evaluate_equation("import os")) == (7, 0.5, None)
    assert extract_solution("a\n<answer>1+2</answer>") == "1+2"
    assert evaluate_equation(f"{'9' * 24}*" * 19 + "9.5/7") is None, "no float is that large"
    assert validate_equation("1+2", [2, 1]) and not validate_equation("1+2", [1])
    assert validate_equation("01+2", [2, 1]) and not validate_equation("1" * 5000, [1])
    assert validate_think_pattern("<think>a</think>") and not validate_think_pattern("</think><think>")
    assert (remove_right_units(r"5\text{ cm}"), remove_right_units("5")) == ("5", "5")
    assert match_answer(r"<think>\boxed{1}</think>\boxed{7}") == (True, "7") and match_answer("</think>a") == (
        False,
        "a",
    )
    assert grade_answer(" 0.5", "1/2") == (True, "0.5") and not grade_answer("1", "2")[0]
    assert compute_score(r"\boxed{7}", "7") == (1.0, "7") and compute_score("6", "7")[0] == 0.0
    assert math_equal("0.5", "1/2") and not math_equal(None, "1") and extract_answer("it is 4") == "it is 4"
    assert verify_math_answer(r"\boxed{4}", "4") == (1.0, {"extracted_answer": "4", "ground_truth": "4"})


HARD, THIRD = "9^{9^{9^{9}}}", r"\frac{1}{3}"
COMPARISONS: dict[str, Callable[[str, str], Any]] = {
    "is_equiv": is_equiv,
    "math_equal": math_equal,
    "grade_answer": grade_answer,
    "verify_with_timeout": lambda answer, truth: verify_with_timeout(truth, answer, timeout_seconds=1),
    "verify_math_answer": lambda answer, truth: verify_math_answer(rf"\boxed{{{answer}}}", truth),
    "AccuracyReward": lambda answer, truth: AccuracyReward(deadline_s=0.5)(rf"\boxed{{{answer}}}", truth=truth),
}


@pytest.mark.parametrize("compare", COMPARISONS.values(), ids=COMPARISONS)
@pytest.mark.parametrize("pair", [(HARD, THIRD), (THIRD, HARD)], ids=["the answer", "the truth"])
def test_a_comparison_that_takes_too_long_is_counted_and_no_reward_of_zero(
    compare: Callable[[str, str], Any], pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_utils, "DEADLINE_S", 0.5)
    before = sandbox.shared_sandbox().counts()
    with pytest.raises(RewardTimeoutError, match="E5112"):
        compare(*pair)
    assert sandbox.shared_sandbox().counts()["CallTimedOut"] == before["CallTimedOut"] + 1


@pytest.mark.parametrize("compare", COMPARISONS.values(), ids=COMPARISONS)
def test_a_sandbox_that_fails_is_no_reward_of_zero(
    compare: Callable[[str, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = sandbox.Sandbox()
    closed.close()
    monkeypatch.setattr(sandbox, "_shared", (os.getpid(), closed))
    with pytest.raises(RewardError, match="E5113.*the sandbox is closed"):
        compare(r"\frac{2}{6}", THIRD)


@pytest.mark.parametrize("text", ["blue", "####", "a b", "{", r"\text{Paris}", "北京"])
def test_what_is_no_mathematics_is_compared_as_text(text: str) -> None:
    assert is_equiv(text, f" {text} ") and grade_answer(text, text)[0]
    assert not is_equiv(text, THIRD) and not is_equiv(THIRD, text)
    assert not is_equiv(text, " ") and not is_equiv(" ", text)


PLUGIN = """
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn

@REWARD_FUNCTIONS.register_module("plain")
def plain(response, truth, scale=1.0):
    return scale * (len(response) % 3)

@REWARD_FUNCTIONS.register_module("without_prompt")
class WithoutPrompt(RewardFn):
    def __init__(self, scale=1.0):
        self.scale = scale

    def __call__(self, response, truth=None):
        return self.scale * (len(response) % 3)

@REWARD_FUNCTIONS.register_module("text")
class Text(RewardFn):
    def __call__(self, response, truth=None):
        return "good"
"""


@pytest.mark.parametrize("name", ["plain", "without_prompt"])
def test_a_plugin_without_prompt_and_a_plain_function_reward_a_run(tmp_path: Path, name: str) -> None:
    run = TinyRun(tmp_path, plugin=PLUGIN)
    taskset = run.tree["buffer"]["explorer_input"]["taskset"]
    taskset |= {"default_reward_fn_type": name, "reward_fn_args": {"scale": 2.0}}
    end = run.finish()
    assert end.status == 0, end.output
    lines = run.lines("explorer")
    assert len(lines) >= 2
    assert all(0.0 <= line["rollout/reward/mean"] <= 4.0 for line in lines)
    assert any(line["rollout/reward/max"] > 1.0 for line in lines), "the argument counts"


@pytest.mark.runs("docs/workflows.md", "from trinity.common.rewards")
def test_the_reward_function_of_the_page_rewards_a_run(tmp_path: Path) -> None:
    for text in (page("docs/workflows.md"), page("docs/workflows.zh.md")):
        assert text.code("python")[1] == page("docs/workflows.md").code("python")[1]
    run = TinyRun(tmp_path, plugin=page("docs/workflows.md").code("python")[1])
    taskset = run.tree["buffer"]["explorer_input"]["taskset"]
    taskset |= {"default_reward_fn_type": "is_short", "reward_fn_args": {"limit": 0}}
    end = run.finish()
    assert end.status == 0, end.output
    assert [line["rollout/short/mean"] for line in run.lines("explorer")][:2] == [0.0, 0.0]
    assert all("rollout/right/mean" in line for line in run.lines("explorer")[:2])


def test_a_plugin_that_returns_a_text_ends_a_run_by_name(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, plugin=PLUGIN)
    run.tree["buffer"]["explorer_input"]["taskset"]["default_reward_fn_type"] = "text"
    end = run.finish()
    assert end.status != 0
    assert "E5117" in end.output and "Text" in end.output and ".py" in end.output
