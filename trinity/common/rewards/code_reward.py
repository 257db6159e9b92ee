"""Reward for programs that pass tests."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trinity.common.rewards.accuracy_reward import check_response
from trinity.common.rewards.code_sandbox import MEMORY_BYTES, TIMEOUT_S, Ran, run_code
from trinity.common.rewards.registry import REWARD_FUNCTIONS
from trinity.common.rewards.reward_fn import RewardError, RewardFn, RewardTimeoutError
from trinity.common.rewards.sandbox import CallTimedOut

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class Case:
    """One test of a program.

    Attributes:
        check: run after the program.
        stdin: what the program reads.
        stdout: the words that it has to write; None: whatever it writes.
    """

    check: str = ""
    stdin: str = ""
    stdout: str | None = None


def last_program(response: str) -> str | None:
    """Return the last block of Python code of a response, or None."""
    found = _BLOCK.findall(response)
    return str(found[-1]) if found else None


def read_cases(truth: Any) -> list[Case]:
    """Return the cases of a truth.

    The truth is `{"inputs": ["1 2"], "outputs": ["3"]}` or `{"tests": ["assert add(1, 2) == 3"]}`, as JSON text or as a
    mapping.

    Raises:
        RewardError: not of that form, or no case (E5133).
    """
    try:
        data = json.loads(truth) if isinstance(truth, str) else truth
        if not isinstance(data, Mapping):
            raise TypeError("not a mapping")
        if "tests" in data:
            found = [Case(check=test) for test in _texts(data["tests"])]
        else:
            pairs = zip(_texts(data["inputs"]), _texts(data["outputs"]), strict=True)
            found = [Case(stdin=given, stdout=wanted) for given, wanted in pairs]
        if not found:
            raise ValueError("no case")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RewardError(
            'the truth must be like {"inputs": ["1 2"], "outputs": ["3"]} or {"tests": ["assert add(1, 2) == 3"]}, '
            f"got {str(truth)[:80]!r}; set format.response_key of the taskset",
            code="E5133",
        ) from error
    return found


def _texts(values: Any) -> list[str]:
    if not isinstance(values, Sequence) or isinstance(values, str) or not all(isinstance(v, str) for v in values):
        raise TypeError("not a list of texts")
    return list(values)


@REWARD_FUNCTIONS.register_module("code_reward")
class CodeReward(RewardFn):
    """The share of the tests that the program in the response passes.

    The score is named `accuracy`; a response without a program has 0. Each case is a process of its own, without
    network, files to write or other processes; see `run_code`.

    Args:
        timeout_s: seconds after which a case is stopped.
        memory_bytes: memory of a case.
        timeout_score: score of a case that was stopped; None: the response has no score, and the rollout is counted.
    """

    needs = frozenset({"truth"})
    ranges = {"timeout_s": "(0, inf]", "memory_bytes": "[67108864, inf]", "timeout_score": "[0, 1]"}

    def __init__(
        self, timeout_s: float = TIMEOUT_S, memory_bytes: int = MEMORY_BYTES, timeout_score: float | None = None
    ) -> None:
        self.timeout_s = timeout_s
        self.memory_bytes = memory_bytes
        self.timeout_score = timeout_score

    @classmethod
    def check_truth(cls, truth: Any) -> None:
        """Refuse a truth without cases (E5133)."""
        read_cases(truth)

    def __call__(self, response: str, prompt: str | None = None, truth: Any = None, **kwargs: Any) -> dict[str, float]:
        """Return the share of passed cases.

        Raises:
            RewardTimeoutError: a case was stopped at its deadline.
            RewardError: the truth has no tests (E5133), or the program wrote without end (E5113).
            EnvironmentProblem: this machine cannot contain a program (E3305).
        """
        program = last_program(check_response(response))
        cases = read_cases(truth)
        if program is None:
            return {"accuracy": 0.0}
        return {"accuracy": sum(self._score(program, case) for case in cases) / len(cases)}

    def _score(self, program: str, case: Case) -> float:
        outcome = run_code(
            program,
            check=case.check,
            stdin=case.stdin,
            timeout_s=self.timeout_s,
            memory_bytes=self.memory_bytes,
        )
        if isinstance(outcome, Ran):
            is_right = case.stdout is None or outcome.stdout.split() == case.stdout.split()
            is_checked = not case.check or outcome.is_complete
            return float(outcome.status == 0 and is_right and is_checked)
        if isinstance(outcome, CallTimedOut):
            if self.timeout_score is not None:
                return self.timeout_score
            raise RewardTimeoutError(
                f"a program took more than timeout_s = {outcome.after_s:g} s and was stopped; raise "
                "reward_fn_args.timeout_s, or set reward_fn_args.timeout_score to score such programs",
                late_s=outcome.late_s,
            )
        raise RewardError(f"scoring failed: {outcome.reason}", code="E5113")
