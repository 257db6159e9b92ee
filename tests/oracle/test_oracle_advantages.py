"""Advantage functions, KL, log-probabilities and entropy reproduce the stored numbers.

Each JSON file beside this one holds cases of one family: inputs, arguments, expected outputs and tolerance.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trinity.algorithm import ADVANTAGE_FN, ENTROPY_LOSS_FN, KL_FN, utils
from trinity.common.experience import EID, Experience

NUM_CASES = {"advantage_group": 39, "advantage_token": 35, "advantage_verl": 41, "kl": 35, "logits": 20}
BOOLEAN = {"action_mask", "response_mask", "expert_mask"}
INTEGER = {"labels"}


def _cases() -> list[Any]:
    folder = Path(__file__).parent
    loaded = [(f, case) for f in NUM_CASES for case in json.loads((folder / f"{f}.json").read_text())["cases"]]
    return [pytest.param(case, id=f"{file}:{case['id']}") for file, case in loaded]


CASES = _cases()


def _inputs(case: dict[str, Any]) -> dict[str, Any]:
    def read(name: str, value: Any) -> Any:
        if name == "uid":
            return value
        dtype = torch.bool if name in BOOLEAN else torch.long if name in INTEGER else torch.float64
        return torch.tensor(value, dtype=dtype)

    return {name: read(name, value) for name, value in case["inputs"].items()}


def _named(function: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors that a function names as parameters."""
    return {name: tensors[name] for name in inspect.signature(function).parameters if name in tensors}


def _close(got: Tensor, expected: Any, case: dict[str, Any]) -> None:
    """Compare element by element: |got - expected| <= atol + rtol |expected|."""
    numbers = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(got.double(), numbers, **case["tolerance"])


def _experience(row: dict[str, Any]) -> Experience:
    plain = {name: row[name] for name in ("prompt_length", "reward", "info", "action_mask")}
    logprobs = torch.tensor(row["logprobs"], dtype=torch.float32)
    return Experience(eid=EID(**row["eid"]), tokens=torch.tensor(row["tokens"]), logprobs=logprobs, **plain)


def _group_advantage(case: dict[str, Any]) -> None:
    function = ADVANTAGE_FN.get(case["name"])(**case["args"])
    assert not function.compute_in_trainer()
    exps, _ = function.process([_experience(row) for row in case["inputs"]["experiences"]])
    rows = case["expected"]["experiences"]
    if case["match"] == "values":
        got = sorted([float(a) for a in exp.advantages] for exp in exps)
        pairs = list(zip(got, sorted(row["advantages"] for row in rows), strict=True))
    else:
        assert sorted(exp.eid.suffix for exp in exps) == sorted(row["suffix"] for row in rows)
        found = {exp.eid.suffix: [float(a) for a in exp.advantages] for exp in exps}
        pairs = [(found[row["suffix"]], row["advantages"]) for row in rows]
    for advantages, expected in pairs:
        _close(torch.tensor(advantages, dtype=torch.float64), expected, case)


def _token_advantage(case: dict[str, Any]) -> None:
    function = ADVANTAGE_FN.get(case["name"])(**case["args"])
    inputs = _inputs(case)
    mask = inputs["action_mask"]
    assert function.compute_in_trainer() and function.select_keys >= set(_named(function.__call__, inputs))
    advantages, returns, _ = function(**_named(function.__call__, inputs))
    for name, got in (("advantages", advantages), ("returns", returns)):
        assert got.dtype == torch.float64 and bool((got[~mask] == 0).all())
        expected = torch.tensor(case["expected"][name], dtype=torch.float64)
        torch.testing.assert_close(got[mask], expected[mask], **case["tolerance"])


def _kl(case: dict[str, Any]) -> None:
    args = dict(case["args"])
    inputs = _inputs(case)
    inputs["logprob"].requires_grad_()
    mode = {"loss_agg_mode": args.pop("loss_agg_mode")} if case["entry"] == "kl_loss" else {}
    function = KL_FN.get(case["name"])(**args)
    if case["entry"] == "kl_loss":
        value, metrics = function.calculate_kl_loss(**inputs, **mode)
        named = {("action_mask" if name == "response_mask" else name): tensor for name, tensor in inputs.items()}
        assert torch.equal(function.calculate_kl_loss(**named, **mode)[0], value), "the mask has two names"
        assert metrics == {} or metrics["kl_coef"] == args["kl_coef"]
    else:
        value = function.calculate_kl(**inputs)
    assert value.dtype == torch.float64
    _close(value.detach(), case["expected"]["loss" if mode else "kl"], case)
    if "grad_logprob" in case["expected"]:
        gradient = torch.zeros_like(inputs["logprob"])
        if value.requires_grad:
            value.sum().backward()
            gradient = inputs["logprob"].grad
        _close(gradient, case["expected"]["grad_logprob"], case)


def _kl_controller(case: dict[str, Any]) -> None:
    function = KL_FN.get(case["name"])(**case["args"])
    coefficients = []
    for current_kl, batch_size in case["inputs"]["updates"]:
        function.update_kl_coef(current_kl=current_kl, batch_size=batch_size)
        coefficients.append(function.kl_coef)
    _close(torch.tensor(coefficients, dtype=torch.float64), case["expected"]["kl_coef"], case)


def _from_logits(case: dict[str, Any]) -> None:
    got = vars(utils)[case["entry"]](**_inputs(case), **case["args"])
    assert got.dtype == torch.float64
    _close(got, case["expected"]["logprob" if case["entry"].startswith("logprobs") else "entropy"], case)


def _entropy_loss(case: dict[str, Any]) -> None:
    function = ENTROPY_LOSS_FN.get(case["name"])(entropy_coef=case["args"]["entropy_coef"])
    loss, _ = function(**_named(function.__call__, _inputs(case)), loss_agg_mode=case["args"]["loss_agg_mode"])
    assert loss.dtype == torch.float64
    _close(loss, case["expected"]["loss"], case)


ENTRIES = {
    "group_advantage": _group_advantage,
    "token_advantage": _token_advantage,
    "kl": _kl,
    "kl_loss": _kl,
    "kl_controller": _kl_controller,
    "logprobs_from_logits": _from_logits,
    "entropy_from_logits": _from_logits,
    "entropy_loss": _entropy_loss,
}


@pytest.mark.parametrize("case", CASES)
def test_function_reproduces_stored_numbers(case: dict[str, Any]) -> None:
    ENTRIES[case["entry"]](case)


def test_every_stored_case_runs() -> None:
    assert dict(Counter(param.id.partition(":")[0] for param in CASES)) == NUM_CASES
