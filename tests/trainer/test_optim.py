"""Learning rates, worked out by hand, and gradient norms."""

from __future__ import annotations

import pytest
import torch

from trinity.trainer.verl.optim import Schedule, gradient_norm, make_optimizer, scale_gradients, warmup_steps


def test_warm_up_learns_from_the_first_step_and_reaches_the_peak() -> None:
    schedule = Schedule(1.0, "constant", warmup_steps=4)
    assert [schedule.at(step) for step in range(1, 7)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_schedule_ends_at_the_minimum() -> None:
    schedule = Schedule(2.0, "linear", warmup_steps=2, total_steps=6, min_lr_ratio=0.1)
    assert [schedule.at(step) for step in range(1, 8)] == pytest.approx([1.0, 2.0, 1.55, 1.1, 0.65, 0.2, 0.2])


def test_cosine_schedule_is_half_way_at_half_time() -> None:
    schedule = Schedule(1.0, "cosine", total_steps=8, min_lr_ratio=0.2)
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
