"""Aggregation, policy losses, value loss and rollout correction reproduce the stored numbers.

Each JSON file beside this one holds cases of one family: inputs, arguments, expected outputs and tolerance.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN, utils

NUM_CASES = {
    "aggregation": 57,
    "policy_loss": 119,
    "policy_loss_verl": 47,
    "value_loss": 9,
    "rollout_correction": 41,
}
BOOLEAN = {"action_mask", "mask", "loss_mask", "expert_mask"}
INTEGER = {"step"}
# The source counts padding as masked tokens, and does not bound the ratio that it reports.
OTHER_METRICS = {("ppo/seq-masking", "seq_mask/masked_tokens"), ("topr/extreme", "avg_ratio")}


def _cases() -> list[Any]:
    folder = Path(__file__).parent
    loaded = [(f, case) for f in NUM_CASES for case in json.loads((folder / f"{f}.json").read_text())["cases"]]
    return [pytest.param(case, id=f"{file}:{case['id']}") for file, case in loaded]


CASES = _cases()
POLICY_LOSSES = [param for param in CASES if param.values[0]["entry"] == "policy_loss"]


def _inputs(case: dict[str, Any]) -> dict[str, Tensor]:
    def read(name: str, value: Any) -> Tensor:
        dtype = torch.bool if name in BOOLEAN else torch.long if name in INTEGER else torch.float64
        return torch.tensor(value, dtype=dtype)

    return {name: read(name, value) for name, value in case["inputs"].items()}


def _with_gradient(
    function: Callable[..., tuple[Tensor, dict[str, float]]], inputs: dict[str, Tensor], *, of: str
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Return loss, gradient and metrics; a function receives the tensors that it takes."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    leaf = inputs[of].clone().requires_grad_()
    given = {name: value for name, value in (inputs | {of: leaf}).items() if takes_all or name in parameters}
    loss, metrics = function(**given)
    gradient = torch.zeros_like(leaf)
    if loss.requires_grad:
        loss.backward()
        gradient = leaf.grad
    return loss.detach(), gradient, metrics


def _policy_loss(case: dict[str, Any], inputs: dict[str, Tensor]) -> dict[str, Any]:
    function = POLICY_LOSS_FN.get(case["name"])(**case["args"])
    loss, gradient, metrics = _with_gradient(function.__call__, inputs, of="logprob")
    return {"loss": loss, "grad_logprob": gradient, "metrics": metrics}


def _value_loss(case: dict[str, Any], inputs: dict[str, Tensor]) -> dict[str, Any]:
    def function(**tensors: Tensor) -> tuple[Tensor, dict[str, float]]:
        return utils.compute_value_loss(**tensors, **case["args"])

    loss, gradient, metrics = _with_gradient(function, inputs, of="vpreds")
    clipfrac = torch.tensor(metrics["vf_clipfrac"], dtype=torch.float64)
    return {"loss": loss, "grad_vpreds": gradient, "clipfrac": clipfrac}


def _rollout_correction(case: dict[str, Any], inputs: dict[str, Tensor]) -> dict[str, Any]:
    weights, mask, _ = utils.compute_rollout_correction(**inputs, **case["args"])
    return {"weights": weights, "mask": mask}


ENTRIES: dict[str, Callable[[dict[str, Any], dict[str, Tensor]], dict[str, Any]]] = {
    "aggregate_loss": lambda case, inputs: {"loss": utils.aggregate_loss(**inputs, **case["args"])},
    "agg_loss": lambda case, inputs: {"loss": utils.agg_loss(**inputs, **case["args"])},
    "policy_loss": _policy_loss,
    "value_loss": _value_loss,
    "rollout_correction": _rollout_correction,
}


def _check(case: dict[str, Any], got: dict[str, Any]) -> None:
    for name, value in case["expected"].items():
        if value is None:
            assert got[name] is None
        elif got[name].dtype == torch.bool:
            assert got[name].tolist() == torch.tensor(value).bool().tolist()
        else:
            assert got[name].dtype == torch.float64
            torch.testing.assert_close(got[name], torch.tensor(value, dtype=torch.float64), **case["tolerance"])


@pytest.mark.parametrize("case", CASES)
def test_function_reproduces_stored_numbers(case: dict[str, Any]) -> None:
    _check(case, ENTRIES[case["entry"]](case, _inputs(case)))


@pytest.mark.parametrize("case", POLICY_LOSSES)
def test_masked_positions_of_a_loss_may_hold_anything(case: dict[str, Any]) -> None:
    inputs = _inputs(case)
    hole = ~inputs["action_mask"]
    for name, value in inputs.items():
        if value.shape == hole.shape and name not in BOOLEAN:
            inputs[name] = value.masked_fill(hole, float("nan"))
    got = _policy_loss(case, inputs)
    _check(case, got)
    assert not got["grad_logprob"][hole].any()


@pytest.mark.parametrize("case", [p for p in POLICY_LOSSES if p.values[0].get("metrics")])
def test_metrics_of_a_loss_are_those_of_its_source(case: dict[str, Any]) -> None:
    metrics = _policy_loss(case, _inputs(case))["metrics"]
    for name, value in case["metrics"].items():
        if (case["id"], name) in OTHER_METRICS:
            continue
        assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_every_stored_case_runs() -> None:
    counted = Counter(param.id.split(":")[0] for param in CASES)
    assert dict(counted) == NUM_CASES
