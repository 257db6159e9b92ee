"""Passes over a batch and guarded optimizer steps, for both models."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trinity.common.errors import NumericError
from trinity.trainer.batch import TrainBatch, mini_batches
from trinity.trainer.verl.decoder import PackedDecoder
from trinity.trainer.verl.optim import LRSchedule, gradient_norm, scale_gradients
from trinity.trainer.verl.parallel.ranks import ALONE, Ranks
from trinity.trainer.verl.scorer import ActorSettings
from trinity.utils.log import get_logger

logger = get_logger("trainer")

MAX_SKIPPED_IN_A_ROW = 3

# Saves the rows of a skipped step, given the norm and the names of the parameters; returns the file.
Reporter = Callable[[float, list[str]], Path | None]


class Stepper:
    """Optimizer steps over the parameters of one model.

        finite norm ---------> clip, step ----> skipped_in_a_row = 0
        norm not finite -----> report, skip --> skipped_in_a_row + 1; at 3: NumericError

    Args:
        model: parameters in float32.
        decoder: drops its copies of the parameters when they change.
        optimizer: over the model's parameters.
        schedule: learning rate of each training step.
        grad_clip: largest gradient norm; None or 0 means no clipping.
        keys: the settings to lower if gradients are not finite.
        ranks: the processes that step together.
    """

    def __init__(
        self,
        model: nn.Module,
        decoder: PackedDecoder,
        *,
        optimizer: torch.optim.Optimizer,
        schedule: LRSchedule,
        grad_clip: float | None,
        keys: str,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model = model
        self.decoder = decoder
        self.optimizer = optimizer
        self.schedule = schedule
        self.grad_clip = grad_clip
        self.keys = keys
        self.num_skipped = 0
        self.skipped_in_a_row = 0
        self.ranks = ranks
        self.last_step = 0
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters = list(self.named.values())

    def begin(self, step: int) -> float:
        """Set the learning rate of training step `step` (1-based) and return it."""
        lr, self.last_step = self.schedule.at(step), step
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def step(self, step: int, *, report: Reporter | None = None) -> float:
        """Clip, step and clear the gradients; return their norm.

        A norm that is not finite skips the step.

        Args:
            step: training step, 1-based.
            report: called if the step is skipped.

        Raises:
            NumericError: the norm was not finite in three optimizer steps in a row (E6001).
        """
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        norm = self._norm()
        if math.isfinite(norm):
            if self.grad_clip:
                scale_gradients(self.parameters, norm, max_norm=self.grad_clip)
            self.optimizer.step()
            self.refresh()
            self.skipped_in_a_row = 0
        else:
            self._skip(step, norm, report)
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def refresh(self) -> None:
        """Drop gathered parameters and copies; call this whenever they change."""
        self.ranks.free(self.decoder)
        self.decoder.refresh()

    def _norm(self) -> float:
        if self.ranks.is_alone:
            return gradient_norm(self.parameters)
        stages = self.decoder.stages
        counted = (p for name, p in self.named.items() if stages is None or stages.counts(name))
        return self.ranks.total_norm([p.grad for p in counted if p.grad is not None])

    def check_weights(self) -> None:
        """Check that every weight of the model is finite, before saving.

        Raises:
            NumericError: one is not (E6002).
        """
        self.ranks.free(self.decoder)
        bad = self.ranks.not_finite(dict(self.model.named_parameters()))
        if bad:
            raise NumericError(
                f"the weights of {len(bad)} tensors are not finite (first {bad[0]}) and are not saved; the newest "
                f"checkpoint is untouched: lower {self.keys} and resume from it",
                code="E6002",
            )

    def state(self) -> dict[str, Any]:
        """Return the state to save: schedule and counts of skipped steps.

        The schedule has the form of PyTorch's `LambdaLR`, so that veRL can resume from it: its rate is that of the next
        step, to which the optimizer is set as well.
        """
        lr, groups = self.schedule.at(self.last_step + 1), self.optimizer.param_groups
        for group in groups:
            group["lr"], group["initial_lr"] = lr, self.schedule.lr
        done = max(self.last_step - self.schedule.start, 0)
        schedule: dict[str, Any] = {"base_lrs": [self.schedule.lr] * len(groups), "_last_lr": [lr] * len(groups)}
        schedule |= {"last_epoch": done, "_step_count": done + 1, "lr_lambdas": [None] * len(groups)}
        return {
            "lr_scheduler": schedule,
            "num_skipped": self.num_skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the counts of skipped steps from `state`."""
        self.num_skipped = state["num_skipped"]
        self.skipped_in_a_row = state["skipped_in_a_row"]
        done = state["lr_scheduler"].get("last_epoch")
        if done is not None:  # checkpoints of older versions do not have it
            self.last_step = done + self.schedule.start

    def _skip(self, step: int, norm: float, report: Reporter | None) -> None:
        self.num_skipped += 1
        self.skipped_in_a_row += 1
        bad = self.ranks.not_finite({name: p.grad for name, p in self.named.items() if p.grad is not None})
        self.optimizer.zero_grad(set_to_none=True)
        file = None if report is None else report(norm, bad)
        place = f"; the batch is in {file}" if file is not None else ""
        names = ", ".join(bad[:3]) or "the norm itself"
        logger.warning("training step %d skipped: the gradient of %s is not finite%s", step, names, place)
        if self.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise NumericError(
                f"the gradient norm was not finite in {MAX_SKIPPED_IN_A_ROW} optimizer steps in a row, last in "
                f"training step {step} (first in {bad[0] if bad else 'the norm itself'}){place}; lower "
                f"{self.keys}, or look at rewards and log-probabilities; the checkpoints from before are kept",
                code="E6001",
            )


def passes(batch: TrainBatch, settings: ActorSettings, *, step: int, num_shares: int = 1) -> Iterator[list[int]]:
    """Yield the rows of each mini-batch, pass by pass; pairs stay together.

    `num_shares` matters only if micro-batches are averaged: each share then keeps one piece of the batch in all
    mini-batches.
    """
    for epoch in range(settings.epochs):
        generator = None
        if settings.shuffle_seed is not None:
            generator = torch.Generator().manual_seed(_mixed(settings.shuffle_seed, step, epoch))
        yield from mini_batches(
            batch.num_experiences,
            size=settings.mini_batch_size,
            generator=generator,
            rows_per_experience=batch.rows_per_experience,
            num_shares=num_shares if settings.averages_micro_batches else 1,
        )


def mean_norm(norms: list[float]) -> float:
    """Return the mean of the finite norms; 0 where there is none."""
    finite = [norm for norm in norms if math.isfinite(norm)]
    return sum(finite) / len(finite) if finite else 0.0


def _mixed(seed: int, step: int, epoch: int) -> int:
    """Return a seed that differs for every pass of every step."""
    digest = hashlib.sha256(f"{seed}/{step}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
