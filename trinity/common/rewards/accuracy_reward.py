"""Reward for the right answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trinity.common.rewards.answer import FinalAnswer, compare_cheaply, final_answer, true_answer
from trinity.common.rewards.registry import REWARD_FUNCTIONS
from trinity.common.rewards.reward_fn import RewardError, RewardFn
from trinity.common.rewards.sandbox import CallTimedOut, Scored, shared_sandbox

DEADLINE_S = 5.0


def check_response(response: Any) -> str:
    """Return `response` as it is.

    Raises:
        RewardError: not a text.
    """
    if not isinstance(response, str):
        raise RewardError(f"a response must be a text, got {type(response).__name__}", code="E5111")
    return response


def run_in_sandbox(operation: str, arguments: dict[str, Any], *, deadline_s: float) -> Any:
    """Return the value of `operation` in a worker process.

    Raises:
        RewardError: the worker was killed at the deadline, or failed.
    """
    outcome = shared_sandbox().call(operation, arguments, deadline_s=deadline_s)
    if isinstance(outcome, Scored):
        return outcome.value
    if isinstance(outcome, CallTimedOut):
        raise RewardError(
            f"scoring took more than deadline_s = {outcome.after_s:g} s and was stopped; "
            "raise reward_fn_args.deadline_s if answers may take longer",
            code="E5112",
        )
    raise RewardError(f"scoring failed: {outcome.reason}", code="E5113")


@REWARD_FUNCTIONS.register_module("accuracy_reward")
class AccuracyReward(RewardFn):
    r"""1 if the final answer of the response equals the truth, else 0.

    The score is named `accuracy`.

    The answer is taken from the last `<answer>` or `\boxed{}` or after the last `#`, the truth from after the last
    `####`. Numbers are compared here; everything else by math-verify in a worker process.

    Args:
        answer_parser: takes the answer out of the response and out of the truth instead; `None` from it means none.
        deadline_s: seconds after which the worker is killed.
    """

    needs = frozenset({"truth"})
    ranges = {"deadline_s": "(0, inf]"}

    def __init__(
        self, answer_parser: Callable[[str], str | None] | None = None, deadline_s: float = DEADLINE_S
    ) -> None:
        self.answer_parser = answer_parser
        self.deadline_s = deadline_s

    def __call__(self, response: str, prompt: str | None = None, truth: Any = None, **kwargs: Any) -> dict[str, float]:
        """Return the accuracy of `response`.

        Raises:
            RewardError: the task has no truth, or the comparison failed or took too long.
        """
        check_response(response)
        target = self._truth(truth)
        answer = self._answer(response)
        is_equal = compare_cheaply(answer, target)
        if is_equal is None:
            arguments = {"truth": target, "answer": answer.text, "is_marked": answer.is_marked}
            is_equal = run_in_sandbox("equal", arguments, deadline_s=self.deadline_s)
        return {"accuracy": 1.0 if is_equal else 0.0}

    def _truth(self, truth: Any) -> str:
        target = "" if truth is None else true_answer(truth)
        if self.answer_parser is not None and target:
            target = self.answer_parser(str(truth)) or ""
        if not target:
            raise RewardError(
                f"the task has no answer to compare with, got {truth!r}; set format.response_key of the taskset",
                code="E5114",
            )
        return target

    def _answer(self, response: str) -> FinalAnswer:
        if self.answer_parser is None:
            return final_answer(response)
        return FinalAnswer((self.answer_parser(response) or "").strip(), is_marked=True)
