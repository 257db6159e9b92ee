"""SAPO's two losses: the paper's, which is the default and veRL's, and the one that trinity-rft 0.6.0 computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trinity.algorithm import POLICY_LOSS_FN

STORED = Path(__file__).parents[1] / "oracle" / "policy_loss.json"
LOGPROB = [[-1.0, -0.5, -2.0, -0.3], [-0.7, -1.2, -0.1, -0.9]]
INPUTS = {
    "old_logprob": [[-1.2, -0.4, -1.0, -0.3], [-0.7, -1.8, -0.2, -0.4]],
    "action_mask": [[1, 1, 1, 0], [1, 1, 0, 0]],
    "advantages": [[1.0, 1.0, 1.0, 0.0], [-0.5, -0.5, 0.0, 0.0]],
}


def stored() -> list[Any]:
    cases = [json.loads(line.rstrip(",\n")) for line in STORED.read_text().splitlines() if '"sapo/' in line[:20]]
    return [pytest.param(case, id=case["id"]) for case in cases if "peer_differs" in case]


def run(inputs: dict[str, Any], **args: Any) -> tuple[float, torch.Tensor]:
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in inputs.items()}
    logprob = tensors.pop("logprob").requires_grad_()
    mask = tensors.pop("action_mask").bool()
    loss, _ = POLICY_LOSS_FN.get("sapo")(**args)(logprob=logprob, action_mask=mask, **tensors)
    loss.backward()
    return loss.item(), logprob.grad


def test_the_gate_held_gives_the_published_loss_and_gradient() -> None:
    loss, gradient = run({"logprob": LOGPROB, **INPUTS}, is_gate_held=True)
    assert loss == pytest.approx(0.734982, abs=1e-6)
    expected = [[-0.4441, -0.38098, -0.27762, 0.0], [0.19048, 0.26794, 0.0, 0.0]]
    torch.testing.assert_close(gradient, torch.tensor(expected, dtype=torch.float64), atol=5e-6, rtol=5e-5)


@pytest.mark.parametrize("case", stored())
def test_the_gate_held_gives_what_the_stored_cases_say_of_the_peer(case: dict[str, Any]) -> None:
    loss, _ = run(case["inputs"], **case["args"], is_gate_held=True)
    assert loss == pytest.approx(case["peer_differs"]["loss"], rel=1e-6, abs=1e-7)


@pytest.mark.difference("SAPO")
def test_the_papers_gradient_closes_on_both_sides_and_the_held_gate_does_not() -> None:
    moved = [-3.0, -1.0, 0.0, 1.0, 3.0]
    inputs = {"logprob": [moved], "old_logprob": [[0.0] * 5], "action_mask": [[1] * 5], "advantages": [[1.0] * 5]}
    ratio = torch.tensor(moved, dtype=torch.float64).exp()
    gate = torch.sigmoid(ratio - 1)
    paper = run(inputs)[1][0] * -5
    torch.testing.assert_close(paper, 4 * gate * (1 - gate) * ratio)  # eq. 7 and 8
    assert paper[2] == 1.0 and paper[[0, 4]].max() < 0.2
    held = run(inputs, is_gate_held=True)[1][0] * -5
    torch.testing.assert_close(held, 4 * gate)
    assert held[2] == 2.0 and held[4] > 3.9
