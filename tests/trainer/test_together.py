"""Everything that a training step may have at once: adapter, critic, correction, whole-distribution KL, expert rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.conftest import FLOAT32
from tests.trainer.test_mixed import _is_expert, _mixed
from tests.trainer.test_update import worker
from trinity.common.config import Config
from trinity.common.experience import Experience
from trinity.trainer.batch import collate
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]
ADAPTIVE = {"adaptive": True, "kl_coef": 0.1, "target_kl": 0.1, "horizon": 100}
REJECTING = {
    "rollout_is": "token", "rollout_is_threshold": "2.0", "rollout_rs": "token_k2", "rollout_rs_threshold": "0.3",
}  # fmt: skip


def _config(make_config: Maker) -> Config:
    actor = FLOAT32 | {"ppo_epochs": 2, "shuffle": True}
    tree = {
        "actor_rollout_ref": {"model": {"enable_gradient_checkpointing": True}, "actor": actor},
        "critic": {"optim": {"lr": 1e-3}, "ppo_epochs": 2},
    }
    return make_config(
        model={"lora_configs": [{"lora_rank": 4}]},
        algorithm={
            "algorithm_type": "ppo", "advantage_fn": "ppo", "policy_loss_fn": "ppo", "rollout_correction": REJECTING,
            "bypass_old_logprobs": False, "kl_loss_fn": "full", "kl_loss_fn_args": ADAPTIVE, "kl_penalty_fn": "k1",
            "kl_penalty_fn_args": ADAPTIVE, "entropy_loss_fn": "mix", "entropy_loss_fn_args": {"entropy_coef": 0.01},
        },
        trainer={"critic_warmup": 1, "trainer_config": tree},
    )  # fmt: skip


def _experiences(made: ActorWorker, step: int) -> list[Experience]:
    """Return rollouts some of whose tokens the correction rejects, and rows of an expert."""
    experiences = _mixed(step=step)
    own = made.actor.compute_log_prob(collate(experiences))
    for row, exp in enumerate(experiences):
        if not _is_expert(exp):
            exp.logprobs = own[row, : exp.response_length] + (torch.arange(exp.response_length) % 3 - 1) * 0.8
    return experiences


def _train(made: ActorWorker, *steps: int) -> dict[str, float]:
    for step in steps:
        metrics = made.train_step(_experiences(made, step), step)
    return {name: value for name, value in metrics.items() if not name.startswith(("time/", "perf/"))}


def _weights(made: ActorWorker) -> dict[str, torch.Tensor]:
    assert made.critic is not None
    values = {f"critic.{name}": tensor.detach() for name, tensor in made.critic.model.named_parameters()}
    return dict(made.weights()) | values


def test_a_resumed_run_is_bit_equal_with_everything_at_once(make_config: Maker, tmp_path: Path) -> None:
    whole, again = worker(_config(make_config)), worker(_config(make_config))
    first = _weights(worker(_config(make_config)))
    _train(whole, 1, 2)
    whole.save(tmp_path / "step_2", hf=False)
    again.load(tmp_path / "step_2")
    assert _train(again, 3, 4) == _train(whole, 3, 4)
    trained, same = _weights(whole), _weights(again)
    assert all(torch.equal(tensor, same[name]) for name, tensor in trained.items())
    assert not any(torch.equal(trained[name], first[name]) for name in trained if "_proj" in name)


@pytest.mark.parametrize("split", [{"max_rows": 1, "max_tokens": None}, {"max_tokens": 40}])
def test_the_split_changes_nothing_with_everything_at_once(make_config: Maker, split: dict[str, Any]) -> None:
    whole, parts = worker(_config(make_config)), worker(_config(make_config), **split)
    expected, found = _train(whole, 1, 2), _train(parts, 1, 2)
    assert 0.2 < expected["rollout_corr/rollout_rs_masked_fraction"] < 0.8
    assert found == {name: pytest.approx(value, rel=1e-4, abs=1e-5) for name, value in expected.items()}
    trained, same = _weights(whole), _weights(parts)
    assert all(float((tensor - same[name]).abs().max()) < 5e-6 for name, tensor in trained.items())
