"""What rows and tokens of a training step contribute to its loss.

Nothing here needs another forward pass: a row's part of the loss is the loss of a micro-batch of this row alone, with
its share of the mini-batch, and those of all rows add up to the loss of the mini-batch.

Dimension key: B = rows, T = response positions of the longest row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from trinity.trainer.batch import TrainBatch
from trinity.trainer.verl.loss import LossFn, Metrics

ABOVE, BELOW, DUAL, REJECTED = "above", "below", "dual", "rejected"
"""Why a token has no gradient: its ratio is above the bounds, or below them, or the dual clip limits its loss, or the
rollout correction rejected it."""


@dataclass(frozen=True)
class RowContribution:
    """A row in one optimizer step; tensors have one entry per response token.

    Attributes:
        uid: identity of the experience.
        optimizer_step: number within the training step, from 1.
        loss: its part of the policy loss of the mini-batch; those of all rows add up to it.
        metrics: of the policy loss, for this row alone.
        counted: whether the loss counts the token.
        logprob: of the policy (nats).
        gradient: derivative of the policy loss with respect to `logprob`.
        columns: what else the loss could read, by name.
        clip_reasons: `ABOVE`, `BELOW`, `DUAL` or `REJECTED` of a token that was cut off; None of all others.
    """

    uid: str
    optimizer_step: int
    loss: float
    metrics: dict[str, float]
    counted: Tensor
    logprob: Tensor
    gradient: Tensor
    columns: dict[str, Tensor]
    clip_reasons: list[str | None]

    @property
    def num_clipped(self) -> int:
        """Number of tokens that were cut off."""
        return sum(reason is not None for reason in self.clip_reasons)


class Observer:
    """Records what the update of a training step computes with.

    Args:
        loss_fn: the loss of the run.
        normalizer: fixed divisor of seq-mean-token-sum-norm.

    Attributes:
        rows: an entry per row and optimizer step, in the order of computation; rows that were not computed, because
            their advantage is 0 and nothing else trains them, are missing.
    """

    def __init__(self, loss_fn: LossFn, *, normalizer: float) -> None:
        self.loss_fn = loss_fn
        self.normalizer = normalizer
        self.rows: list[RowContribution] = []
        self._mini: TrainBatch | None = None
        self._step = 0

    def begin(self, mini: TrainBatch) -> None:
        """Begin the next optimizer step, over the rows of `mini`."""
        self._mini = mini
        self._step += 1

    def add(self, micro: TrainBatch, logprob: Float[Tensor, "B T"]) -> None:
        """Record the rows of a micro-batch of the optimizer step."""
        assert self._mini is not None, "begin() comes first"
        own, each = logprob.detach().cpu(), micro.rows_per_experience
        for first in range(0, len(micro), each):
            rows = list(range(first, first + each))
            self._add(micro.select(rows), own[rows], self._mini)

    def _add(self, unit: TrainBatch, logprob: Tensor, mini: TrainBatch) -> None:
        leaf = logprob[:, : unit.action_mask.shape[1]].clone().requires_grad_()
        tensors = {"action_mask": unit.action_mask} | unit.columns | unit.values
        shares, metrics = self.loss_fn.shares(unit, mini, normalizer=self.normalizer), Metrics()
        with torch.enable_grad():
            loss = self.loss_fn.policy_term(leaf, tensors, shares, metrics)
            has_gradient = loss.requires_grad
            (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True) if has_gradient else (None,)
        gradient = torch.zeros_like(leaf) if gradient is None else gradient
        for row in range(len(unit)):
            length = int(unit.lengths[row] - unit.prompt_lengths[row])
            columns = {name: column[row, :length] for name, column in unit.columns.items()}
            parts = leaf.detach()[row, :length], gradient[row, :length]
            counted = unit.action_mask[row, :length]
            self.rows.append(
                RowContribution(
                    uid=unit.uids[row],
                    optimizer_step=self._step,
                    loss=float(loss.detach()) / len(unit),
                    metrics=metrics.means(),
                    counted=counted,
                    logprob=parts[0],
                    gradient=parts[1],
                    columns=columns,
                    clip_reasons=_reasons(counted, *parts, columns),
                )
            )


def _reasons(counted: Tensor, logprob: Tensor, gradient: Tensor, columns: dict[str, Tensor]) -> list[str | None]:
    """Return why counted tokens with an advantage have no gradient."""
    advantages, old = columns.get("advantages"), columns.get("old_logprob")
    before = columns.get("counted_mask", counted).bool()
    if advantages is None:
        return [REJECTED if there and not kept else None for there, kept in zip(before, counted, strict=True)]
    is_cut = counted & (advantages != 0) & (gradient == 0)
    moved = torch.zeros_like(logprob) if old is None else logprob - old
    reasons: list[str | None] = []
    rows = zip(before.tolist(), counted.tolist(), is_cut.tolist(), advantages.tolist(), moved.tolist(), strict=True)
    for was_there, is_there, cut, advantage, up in rows:
        if was_there and not is_there:
            reasons.append(REJECTED)
        elif not cut:
            reasons.append(None)
        else:
            reasons.append(BELOW if up < 0 else ABOVE if advantage > 0 else DUAL)
    return reasons
