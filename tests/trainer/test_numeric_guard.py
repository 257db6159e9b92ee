"""What is not finite changes no state and reaches no checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.trainer.conftest import make_experiences
from trinity.common.config import Config
from trinity.common.errors import NumericError
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]
ADAPTIVE = {"adaptive": True, "kl_coef": 0.1, "target_kl": 0.01, "horizon": 100}


def test_a_divergence_that_is_not_finite_leaves_the_adaptive_coefficient_alone(make_config: Maker) -> None:
    made = ActorWorker(
        make_config(algorithm={"kl_loss_fn": "k2", "kl_loss_fn_args": ADAPTIVE}), tokenizer=None, total_steps=6
    )
    made.train_step(make_experiences(1), 1)
    coefficient = made.loss_fn.kl.kl_coef
    reference = next(made.reference.model.parameters())
    kept = reference.detach().clone()
    with torch.no_grad():
        reference.fill_(float("nan"))
    assert made.train_step(make_experiences(1), 2)["actor/skipped_steps"] == 1.0
    assert made.loss_fn.kl.kl_coef == coefficient
    with torch.no_grad():
        reference.copy_(kept)
    metrics = made.train_step(make_experiences(1), 3)
    assert metrics["actor/skipped_steps"] == 1.0 and metrics["actor/grad_norm"] > 0.0
    assert made.loss_fn.kl.kl_coef != coefficient


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_saved(make_config: Maker, tmp_path: Path, value: float) -> None:
    made = ActorWorker(make_config(), tokenizer=None, total_steps=6)
    made.save(tmp_path / "good", hf=False)
    with torch.no_grad():
        made.model.lm_head.weight[3, 3] = value
    with pytest.raises(NumericError, match=r"E6002.*1 tensors are not finite \(first model.embed_tokens.weight"):
        made.save(tmp_path / "bad", hf=False)
    assert not (tmp_path / "bad").exists()
