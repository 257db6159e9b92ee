"""Learning rates, worked out by hand, and gradient norms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.trainer.conftest import make_experiences
from tests.trainer.test_update import worker
from trinity.common.config import Config
from trinity.common.errors import ConfigError
from trinity.trainer.verl.optim import LRSchedule, gradient_norm, make_optimizer, scale_gradients, warmup_steps
from trinity.trainer.verl.settings import policy_lr_schedule


@pytest.mark.difference("Warm-up")
def test_warm_up_learns_from_the_first_step_and_reaches_the_peak() -> None:
    schedule = LRSchedule(1.0, "constant", warmup_steps=4)
    assert [schedule.at(step) for step in range(1, 7)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_schedule_ends_at_the_minimum() -> None:
    schedule = LRSchedule(2.0, "linear", warmup_steps=2, total_steps=6, min_lr_ratio=0.1)
    assert [schedule.at(step) for step in range(1, 8)] == pytest.approx([1.0, 2.0, 1.55, 1.1, 0.65, 0.2, 0.2])


def test_cosine_schedule_is_half_way_at_half_time() -> None:
    schedule = LRSchedule(1.0, "cosine", total_steps=8, min_lr_ratio=0.2)
    assert schedule.at(4) == pytest.approx(0.6) and schedule.at(8) == pytest.approx(0.2)
    assert schedule.at(2) == pytest.approx(0.2 + 0.8 * 0.5 * (1 + 2**-0.5))


def test_warm_up_by_ratio_counts_all_steps() -> None:
    assert warmup_steps(-1, 0.1, 40) == 4 and warmup_steps(3, 0.1, 40) == 3 and warmup_steps(-1, 0.1, None) == 0


def test_gradients_are_scaled_to_the_largest_norm() -> None:
    a, b = torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True)
    a.grad, b.grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    assert gradient_norm([a, b]) == pytest.approx(5.0)
    scale_gradients([a, b], 5.0, max_norm=10.0)
    assert a.grad.tolist() == [3.0, 0.0]
    scale_gradients([a, b], 5.0, max_norm=1.0)
    assert gradient_norm([a, b]) == pytest.approx(1.0, rel=1e-5)


def test_unknown_optimizer_is_refused() -> None:
    with pytest.raises(ValueError, match="optimizer_type must be adam, adamw or sgd, got 'lion'"):
        make_optimizer([torch.zeros(1)], "lion", lr=1.0, betas=(0.9, 0.99), weight_decay=0.0)


def test_adamw_decays_weights_apart_from_the_gradient() -> None:
    weight = torch.tensor([1.0], requires_grad=True)
    optimizer = make_optimizer([weight], "adam", lr=0.1, betas=(0.5, 0.75), weight_decay=0.2)
    weight.grad = torch.tensor([0.5])
    optimizer.step()
    assert weight.item() == pytest.approx(0.98 - 0.1, abs=1e-6), "decay lr * 0.2 * 1, then lr * 1: both moments are new"
    weight.grad = torch.tensor([-1.0])
    optimizer.step()
    # m = 0.5 * 0.25 - 0.5 = -0.375, over 1 - 0.5^2: -0.5;  v = 0.75 * 0.0625 + 0.25 = 0.296875, over 1 - 0.75^2
    expected = 0.88 * 0.98 + 0.1 * 0.5 / (0.296875 / 0.4375) ** 0.5
    assert weight.item() == pytest.approx(expected, abs=1e-6)


def test_sgd_is_the_plain_step() -> None:
    weight = torch.tensor([1.0], requires_grad=True)
    optimizer = make_optimizer([weight], "sgd", lr=0.1, betas=(0.9, 0.99), weight_decay=0.0)
    weight.grad = torch.tensor([0.5])
    optimizer.step()
    assert weight.item() == pytest.approx(0.95)


def test_keys_reach_the_optimizer(make_config: Callable[..., Config]) -> None:
    optimizer = {"lr": 1e-2, "betas": [0.8, 0.9], "weight_decay": 0.3, "lr_warmup_steps_ratio": 0.5,
                 "lr_scheduler_type": "linear", "min_lr_ratio": 0.1}  # fmt: skip
    made = worker(make_config(algorithm={"optimizer": optimizer}))
    group = made.optimizer.param_groups[0]
    assert isinstance(made.optimizer, torch.optim.AdamW)
    assert (group["betas"], group["weight_decay"]) == ((0.8, 0.9), 0.3)
    rates = [made.train_step(make_experiences(step), step)["actor/lr"] for step in range(1, 7)]
    assert rates == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2, 7e-3, 4e-3, 1e-3]), "warm-up: half of 6 steps"
    assert group["lr"] == rates[-1]


@pytest.mark.difference("Schedule over an unknown number of steps")
@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ({"lr_scheduler_type": "linear"}, "schedule linear"),
        ({"warmup_style": "cosine"}, "schedule cosine"),
        ({"lr_warmup_steps_ratio": 0.1}, "lr_warmup_steps_ratio 0.1"),
    ],
)
def test_schedule_over_an_unknown_number_of_steps_is_refused(
    make_config: Callable[..., Config], optimizer: dict[str, object], words: str
) -> None:
    config = make_config(algorithm={"optimizer": optimizer})
    with pytest.raises(ConfigError, match=f"{words} follows the number of all.*write trainer.total_steps") as caught:
        policy_lr_schedule(config, None)
    assert caught.value.code == "E1873"
    assert policy_lr_schedule(config, 10).total_steps == 10
    fixed = make_config(algorithm={"optimizer": {"lr_warmup_steps": 3, "lr_warmup_steps_ratio": 0.1, "lr": 1.0}})
    assert policy_lr_schedule(fixed, None).at(1) == pytest.approx(1 / 3)
