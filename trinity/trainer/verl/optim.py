"""Optimizer and learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trinity.common.config.algorithm import SchedulerType
from trinity.common.config.config import Config
from trinity.common.config.keys import Key
from trinity.common.config.resolved import filled
from trinity.common.errors import ConfigError
from trinity.trainer.verl.parallel.exchange import local


@dataclass(frozen=True)
class LRSchedule:
    """Learning rate of each training step (1-based).

        s < w       lr s / w
        constant    lr
        linear      lr (r + (1 - r) (1 - x))
        cosine      lr (r + (1 - r) (1 + cos(pi x)) / 2)

    s = training steps since `start`, w = `warmup_steps`, r = `min_lr_ratio`, x = (s - w) / (`total_steps` - w). The
    first step already learns, step w has the peak, and step `total_steps` has lr r.

    Attributes:
        lr: peak learning rate.
        kind: shape of the schedule after the warm-up.
        warmup_steps: w.
        total_steps: training steps that follow the schedule; needed by linear and cosine.
        min_lr_ratio: final learning rate as a share of the peak.
        start: training steps of the run before the schedule begins.
    """

    lr: float
    kind: SchedulerType = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    min_lr_ratio: float = 0.0
    start: int = 0

    def at(self, step: int) -> float:
        """Return the learning rate of training step `step` of the run, 1-based."""
        step = max(step - self.start, 1)
        if step < self.warmup_steps:
            return self.lr * step / self.warmup_steps
        if self.kind == "constant" or not self.total_steps:
            return self.lr
        span = max(self.total_steps - self.warmup_steps, 1)
        progress = min(max((step - self.warmup_steps) / span, 0.0), 1.0)
        share = 1.0 - progress if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.lr * (self.min_lr_ratio + (1.0 - self.min_lr_ratio) * share)


def make_schedule(config: Config, section: Key[Any], total_steps: int | None, *, start: int = 0) -> LRSchedule:
    """Return the learning rate of each training step.

    Args:
        config: a resolved configuration; negative warm-up steps mean a share of all steps.
        section: of the optimizer.
        total_steps: training steps of the run; None if unknown.
        start: training steps before the schedule begins; warm-up and fall share the others.

    Raises:
        ConfigError: the rate depends on the number of all steps, which is unknown (E1873).
    """
    kind: SchedulerType = filled(config, section.lr_scheduler_type)
    steps = filled(config, section.lr_warmup_steps)
    ratio = filled(config, section.lr_warmup_steps_ratio)
    if total_steps is None and (kind != "constant" or (steps < 0 and ratio > 0)):
        what = f"lr_warmup_steps_ratio {ratio:g}" if kind == "constant" else f"schedule {kind}"
        raise ConfigError(
            f"{section}: {what} follows the number of all training steps, which is unknown in this run; "
            "write trainer.total_steps",
            code="E1873",
        )
    total_steps = None if total_steps is None else max(total_steps - start, 1)
    return LRSchedule(
        lr=filled(config, section.lr),
        kind=kind,
        warmup_steps=warmup_steps(steps, ratio, total_steps),
        total_steps=total_steps,
        min_lr_ratio=filled(config, section.min_lr_ratio),
        start=start,
    )


def warmup_steps(steps: int, ratio: float, total_steps: int | None) -> int:
    """Return the warm-up in training steps.

    It is `steps`, or the share `ratio` of all steps if `steps` is negative.
    """
    return steps if steps >= 0 else int(ratio * (total_steps or 0))


def make_optimizer(
    parameters: Iterable[Tensor], kind: str, *, lr: float, betas: tuple[float, float], weight_decay: float
) -> torch.optim.Optimizer:
    """Return AdamW (for `adam` and `adamw`) or SGD over `parameters`.

    Raises:
        ValueError: another kind.
    """
    if kind in ("adam", "adamw"):
        return torch.optim.AdamW(list(parameters), lr=lr, betas=betas, weight_decay=weight_decay, fused=True)
    if kind == "sgd":
        return torch.optim.SGD(list(parameters), lr=lr, weight_decay=weight_decay)
    raise ValueError(f"optimizer_type must be adam, adamw or sgd, got {kind!r}")


def gradient_norm(parameters: Iterable[Tensor]) -> float:
    """Return the Euclidean norm of all gradients; not finite if one is not."""
    grads = [p.grad for p in parameters if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0


def scale_gradients(parameters: Iterable[Tensor], norm: float, *, max_norm: float) -> None:
    """Scale all gradients by max_norm / norm where `norm` is above `max_norm`."""
    if norm > max_norm:
        factor = max_norm / (norm + 1e-6)
        torch._foreach_mul_([local(p.grad) for p in parameters if p.grad is not None], factor)
