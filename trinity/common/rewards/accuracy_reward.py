"""Reward for the right answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trinity.common.rewards.answer import (
    FinalAnswer,
    boxed_answers,
    compare_cheaply,
    final_answer,
    plain_number,
    true_answer,
)
from trinity.common.rewards.registry import REWARD_FUNCTIONS
from trinity.common.rewards.reward_fn import RewardError, RewardFn, RewardTimeoutError
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
        RewardTimeoutError: the worker was killed at the deadline.
        RewardError: it failed.
    """
    outcome = shared_sandbox().call(operation, arguments, deadline_s=deadline_s)
    if isinstance(outcome, Scored):
        return outcome.value
    if isinstance(outcome, CallTimedOut):
        raise RewardTimeoutError(
            f"scoring took more than deadline_s = {outcome.after_s:g} s and was stopped; "
            "raise reward_fn_args.deadline_s if responses may take longer",
            late_s=outcome.late_s,
        )
    raise RewardError(f"scoring failed: {outcome.reason}", code="E5113")


def is_equal(answer: FinalAnswer, truth: str, *, deadline_s: float) -> bool:
    """Return whether `answer` equals `truth` as mathematics.

    Raises:
        RewardError: the comparison failed or took more than `deadline_s`.
    """
    found = compare_cheaply(answer, truth)
    if found is None:
        arguments = {"truth": truth, "answer": answer.text, "is_marked": answer.is_marked}
        found = bool(run_in_sandbox("equal", arguments, deadline_s=deadline_s))
    return found


@REWARD_FUNCTIONS.register_module("accuracy_reward")
class AccuracyReward(RewardFn):
    r"""1 if the final answer of the response equals the truth, else 0.

    The score is named `accuracy`.

    The answer is taken from the last `<answer>` or `\boxed{}` or after the last `#`; the truth from after the last
    `####`, else from `\boxed{}`, else it is the whole text. Numbers are compared here; everything else by math-verify
    in a worker process.

    Args:
        answer_parser: replaces these rules for the response and the truth. It returns an answer, None for no answer, or
            a list of answers, one of which has to be equal.
        deadline_s: seconds after which the worker is killed.
    """

    needs = frozenset({"truth"})
    ranges = {"deadline_s": "(0, inf]"}

    def __init__(self, answer_parser: Callable[[str], Any] | None = None, deadline_s: float = DEADLINE_S) -> None:
        self.answer_parser = answer_parser
        self.deadline_s = deadline_s

    def __call__(self, response: str, prompt: str | None = None, truth: Any = None, **kwargs: Any) -> dict[str, float]:
        """Return the accuracy of `response`.

        Raises:
            RewardError: the task has no truth, or the comparison failed or took too long.
        """
        check_response(response)
        targets = self._truths(truth)
        pairs = ((answer, target) for target in targets for answer in self._answers(response, target))
        return {"accuracy": 1.0 if any(is_equal(*pair, deadline_s=self.deadline_s) for pair in pairs) else 0.0}

    def _truths(self, truth: Any) -> list[str]:
        target = "" if truth is None else true_answer(truth)
        targets = [target] if target else []
        if self.answer_parser is not None and target:
            targets = _texts(self.answer_parser(str(truth)))
        if not targets:
            raise RewardError(
                f"the task has no truth to compare with, got {truth!r}; set format.response_key of the taskset",
                code="E5114",
            )
        return targets

    def _answers(self, response: str, target: str) -> Iterator[FinalAnswer]:
        """Yield the answers of a response of which one has to be right.

        Several boxes together are an answer to a question that has several.
        """
        if self.answer_parser is not None:
            for text in _texts(self.answer_parser(response)):
                yield FinalAnswer(text, is_marked=True)
            return
        yield final_answer(response)
        boxed = boxed_answers(response) if "," in target and plain_number(target) is None else []
        if len(boxed) > 1:
            yield FinalAnswer(", ".join(boxed), is_marked=True)


def _texts(parsed: Any) -> list[str]:
    """Return what a parser has found as texts: one, or each of a list."""
    found = parsed if isinstance(parsed, list | tuple) else [parsed]
    return [text for each in found if each is not None and (text := str(each).strip())]
