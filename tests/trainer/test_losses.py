"""What holds for every policy loss that the trainer serves: splits, rows without tokens, rows without signal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.trainer.conftest import make_experiences
from tests.trainer.test_update import assert_same, gradients, worker
from trinity.algorithm import POLICY_LOSS_FN
from trinity.common.config import Config
from trinity.common.errors import ConfigError
from trinity.common.experience import Experience
from trinity.trainer.verl.loss import Share

Maker = Callable[..., Config]
LOSSES = sorted(set(POLICY_LOSS_FN) - {"dpo"})  # of single responses; for pairs see test_pairs.py
SPLITS = ({"max_rows": 1, "max_tokens": None}, {"max_rows": 5, "max_tokens": None}, {"max_tokens": 40})
VERL_MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
# Enough tokens are selected for the choice to matter, and bounds that random numbers reach.
ARGS = {"clip_cov": {"clip_cov_ratio": 0.1, "clip_cov_lb": 0.1}, "kl_cov": {"kl_cov_ratio": 0.2, "ppo_kl_coef": 1.0},
        "dro": {"dro_beta": 0.5}, "bypass_mode": {"rollout_rs": "token_k2", "rollout_rs_threshold": 0.003}}  # fmt: skip


def _config(make_config: Maker, name: str, **args: Any) -> Config:
    own = ARGS.get(name.removeprefix("verl_"), {})
    return make_config(algorithm={"policy_loss_fn": name, "policy_loss_fn_args": own | args})


def _experiences() -> list[Experience]:
    """Return rows whose old log-probabilities are near the policy's, one of them without counted tokens."""
    experiences = make_experiences(1, tasks=3)
    experiences[5].action_mask = torch.zeros_like(experiences[5].action_mask)
    return experiences


def _near(made: Any, experiences: list[Experience]) -> list[Experience]:
    """Set the old log-probabilities to the policy's, moved a little: most ratios are within every trust region."""
    from trinity.trainer.batch import collate

    own = made.actor.compute_log_prob(collate(experiences))
    generator = torch.Generator().manual_seed(5)
    for row, exp in enumerate(experiences):
        exp.logprobs = own[row, : exp.response_length] + 0.2 * (
            torch.rand(exp.response_length, generator=generator) - 0.5
        )
    return experiences


def _mixed(name: str, experiences: list[Experience]) -> list[Experience]:
    """Make the last rows those of an expert, for a loss that tells them apart."""
    from trinity.algorithm.sample_strategy.mix import as_one_batch

    has_experts = "expert_mask" in POLICY_LOSS_FN.contents[name].needs
    return as_one_batch(experiences[:7], experiences[7:], step=3) if has_experts else experiences


@pytest.mark.parametrize("name", LOSSES)
def test_micro_batch_split_does_not_change_the_gradient(make_config: Maker, name: str) -> None:
    config = _config(make_config, name)
    experiences = _mixed(name, _near(worker(config), _experiences()))
    whole = gradients(worker(config, max_tokens=None, max_rows=None), experiences)
    for split in SPLITS:
        assert_same(whole, gradients(worker(config, **split), experiences))


@pytest.mark.parametrize("mode", VERL_MODES)
def test_the_split_does_not_matter_in_verls_modes(make_config: Maker, mode: str) -> None:
    config = _config(make_config, "verl_vanilla", loss_agg_mode=mode)
    experiences = _near(worker(config), _experiences())
    whole = gradients(worker(config, max_tokens=None, max_rows=None), experiences)
    for split in SPLITS:
        assert_same(whole, gradients(worker(config, **split), experiences))


@pytest.mark.parametrize("mode", ["seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_a_row_without_tokens_leaves_verls_mean_and_stays_in_the_other(make_config: Maker, mode: str) -> None:
    def of(name: str, experiences: list[Experience]) -> Any:
        return gradients(worker(_config(make_config, name, loss_agg_mode=mode)), experiences)

    experiences = _experiences()
    without = [exp for index, exp in enumerate(experiences) if index != 5]
    assert_same(of("verl_vanilla", experiences), of("verl_vanilla", without))
    share = 1.0 if mode == "seq-mean-token-sum-norm" else 11 / 12
    scaled = {key: gradient * share for key, gradient in of("ppo", without).items()}
    assert_same(of("ppo", experiences), scaled)


@pytest.mark.parametrize("name", [n for n in LOSSES if POLICY_LOSS_FN.get(n).zero_advantage_is_zero_loss])
def test_rows_without_signal_may_be_left_out(make_config: Maker, name: str) -> None:
    config = _config(make_config, name)
    lean, full = worker(config), worker(config)
    experiences = _near(lean, _experiences())
    for experience in experiences[8:]:
        experience.advantages = torch.zeros_like(experience.advantages)
    full.loss_fn.policy_loss.zero_advantage_is_zero_loss = False
    assert_same(gradients(full, experiences), gradients(lean, experiences))


@pytest.mark.difference("Clip-Cov, KL-Cov")
@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_the_selection_among_tokens_is_that_of_the_whole_mini_batch(make_config: Maker, name: str) -> None:
    config = _config(make_config, name)
    made = worker(config, max_rows=1, max_tokens=None)
    experiences = _near(made, _experiences())
    with_selection = gradients(made, experiences)
    made.loss_fn.policy_loss.select_tokens = None
    made.actor._with_selection = lambda mini: mini.with_columns(selected=torch.zeros_like(mini.action_mask))
    assert any(not torch.equal(g, with_selection[n]) for n, g in gradients(made, experiences).items())


@pytest.mark.difference("`seq-mean-token-sum-norm`")
def test_share_of_verls_conventions() -> None:
    share = Share(tokens=6, rows=3, counted_rows=2, width=5, all_tokens=24, all_rows=12, all_counted_rows=8,
                  normalizer=10.0)  # fmt: skip
    assert [share.of(mode, counts_empty_rows=False) for mode in VERL_MODES] == [0.25, 1.0, 0.25, 0.25, 0.125]
    assert [share.of(mode) for mode in VERL_MODES] == [0.25, 1.0, 0.25, 0.25, 0.5]


@pytest.mark.parametrize(
    ("args", "message"),
    [({"epsilon": -1.0}, "epsilon must be >= 0"), ({"epsilno": 0.3}, "unexpected keyword argument 'epsilno'")],
)
def test_an_argument_that_the_loss_refuses_is_a_configuration_error(
    make_config: Maker, args: dict[str, float], message: str
) -> None:
    config = make_config(algorithm={"policy_loss_fn": "sppo", "policy_loss_fn_args": args})
    with pytest.raises(ConfigError, match=f"algorithm.policy_loss_fn_args of sppo: .*{message}"):
        worker(config)
