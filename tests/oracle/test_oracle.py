"""The functions of `trinity.algorithm` reproduce the stored numbers.

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

from trinity.algorithm import ADVANTAGE_FN, ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN, utils
from trinity.common.experience import EID, Experience

FILES = ("aggregation", "kl", "logits", "advantage_group", "policy_loss")
NUM_CASES = {"aggregation": 24, "kl": 21, "logits": 17, "advantage_group": 12, "policy_loss": 22}
BOOLEAN = {"action_mask", "response_mask", "mask", "loss_mask", "expert_mask"}
INTEGER = {"labels", "step"}


def _cases() -> list[Any]:
    folder = Path(__file__).parent
    loaded = [(f, case) for f in FILES for case in json.loads((folder / f"{f}.json").read_text())["cases"]]
    return [pytest.param(case, id=f"{file}:{case['id']}") for file, case in loaded]


CASES = _cases()


def _tensor(name: str, value: Any) -> Tensor:
    dtype = torch.bool if name in BOOLEAN else torch.long if name in INTEGER else torch.float64
    return torch.tensor(value, dtype=dtype)


def _accepted(function: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return tensors
    return {name: value for name, value in tensors.items() if name in parameters}


def _with_gradient(function: Any, inputs: dict[str, Tensor], **extra: Any) -> tuple[Any, Tensor]:
    logprob = inputs["logprob"].clone().requires_grad_()
    result = function(**_accepted(function, inputs | {"logprob": logprob} | extra))
    value = result[0] if isinstance(result, tuple) else result
    gradient = torch.zeros_like(logprob)
    if value.requires_grad:
        value.sum().backward()
        gradient = logprob.grad
    return value.detach(), gradient


def _experience(row: dict[str, Any]) -> Experience:
    tensors = {"logprobs": torch.tensor(row["logprobs"], dtype=torch.float32), "action_mask": row["action_mask"]}
    plain = {name: row[name] for name in ("tokens", "prompt_length", "reward", "info")}
    return Experience(eid=EID(**row["eid"]), **plain, **tensors)


def _group_advantage(case: dict[str, Any]) -> dict[str, Any]:
    function = ADVANTAGE_FN.get(case["name"])(**case["args"])
    exps, _ = function.process([_experience(row) for row in case["inputs"]["experiences"]])
    rows = [(exp.eid.suffix, [float(a) for a in exp.advantages]) for exp in exps]
    if case["match"] == "values":
        rows = [("", advantages) for advantages in sorted(advantages for _, advantages in rows)]
    return {"experiences": sorted(rows)}


def _expected_group(case: dict[str, Any]) -> dict[str, Any]:
    rows = sorted((row["suffix"], row["advantages"]) for row in case["expected"]["experiences"])
    return {"experiences": rows}


def _run(case: dict[str, Any]) -> dict[str, Any]:
    entry, name, args = case["entry"], case["name"], case["args"]
    if entry == "group_advantage":
        return _group_advantage(case)
    if entry == "kl_controller":
        function = KL_FN.get(name)(**args)
        coefficients = []
        for update in case["inputs"]["updates"]:
            function.update_kl_coef(*update)
            coefficients.append(function.kl_coef)
        return {"kl_coef": torch.tensor(coefficients, dtype=torch.float64)}
    inputs = {key: _tensor(key, value) for key, value in case["inputs"].items()}
    if entry in ("aggregate_loss", "logprobs_from_logits", "entropy_from_logits"):
        key = {"aggregate_loss": "loss", "logprobs_from_logits": "logprob", "entropy_from_logits": "entropy"}[entry]
        return {key: vars(utils)[entry](**inputs, **args)}
    if entry == "entropy_loss":
        mode = {"loss_agg_mode": args["loss_agg_mode"]}
        return {"loss": ENTROPY_LOSS_FN.get(name)(entropy_coef=args["entropy_coef"])(**inputs, **mode)[0]}
    if entry == "kl":
        value, gradient = _with_gradient(KL_FN.get(name)(**args).calculate_kl, inputs)
        return {"kl": value, "grad_logprob": gradient}
    if entry == "kl_loss":
        function = KL_FN.get(name)(kl_coef=args["kl_coef"])
        value, gradient = _with_gradient(function.calculate_kl_loss, inputs, loss_agg_mode=args["loss_agg_mode"])
        return {"loss": value, "grad_logprob": gradient}
    assert entry == "policy_loss", entry
    value, gradient = _with_gradient(POLICY_LOSS_FN.get(name)(**args).__call__, inputs)
    return {"loss": value, "grad_logprob": gradient}


@pytest.mark.parametrize("case", CASES)
def test_function_reproduces_stored_numbers(case: dict[str, Any]) -> None:
    tolerance = case["tolerance"]
    got = _run(case)
    if case["entry"] == "group_advantage":
        expected = _expected_group(case)
        assert [suffix for suffix, _ in got["experiences"]] == [suffix for suffix, _ in expected["experiences"]]
        pairs = zip(got["experiences"], expected["experiences"], strict=True)
        for (_, advantages), (_, numbers) in pairs:
            torch.testing.assert_close(torch.tensor(advantages), torch.tensor(numbers), **tolerance)
        return
    for name, value in case["expected"].items():
        numbers = torch.tensor(value, dtype=torch.float64)
        assert got[name].dtype == torch.float64
        torch.testing.assert_close(got[name], numbers, **tolerance)


def test_every_stored_case_runs() -> None:
    counted = Counter(param.id.split(":")[0] for param in CASES)
    assert dict(counted) == NUM_CASES
