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

from trinity.algorithm.policy_loss_fn.clipping import Clipping, noted_clipping
from trinity.trainer.batch import TrainBatch
from trinity.trainer.verl.loss import LossFn, Metrics

ABOVE, BELOW, DUAL, MASKED, REJECTED = "above", "below", "dual", "masked", "rejected"
"""Why the advantage of a token has no gradient: the ratio of the loss is above the bounds, or below them, or the dual
clip limits its loss, or the loss leaves it out whatever its ratio is, or the rollout correction rejected it."""


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
        ratio: of the policies, as the loss has it: of each token, or of its response; None for a loss without one.
        columns: what else the loss could read, by name.
        clip_reasons: what the loss says of a token that it cut off: `ABOVE`, `BELOW`, `DUAL`, `MASKED` or `REJECTED`;
            None of all others.
    """

    uid: str
    optimizer_step: int
    loss: float
    metrics: dict[str, float]
    counted: Tensor
    logprob: Tensor
    gradient: Tensor
    ratio: Tensor | None
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
        with torch.enable_grad(), noted_clipping() as notes:
            loss = self.loss_fn.policy_term(leaf, tensors, shares, metrics)
            has_gradient = loss.requires_grad
            (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True) if has_gradient else (None,)
        gradient = torch.zeros_like(leaf) if gradient is None else gradient
        said = Clipping.together(notes)
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
                    ratio=None if said.ratio is None else said.ratio[row, :length],
                    columns=columns,
                    clip_reasons=_reasons(counted, said, row, columns),
                )
            )


def _reasons(counted: Tensor, said: Clipping, row: int, columns: dict[str, Tensor]) -> list[str | None]:
    """Return why counted tokens with an advantage have no gradient."""
    length, nowhere = len(counted), torch.zeros_like(counted)
    clipped, dual, masked, rejected = (
        nowhere if mask is None else mask[row, :length]
        for mask in (said.clipped, said.dual, said.masked, said.rejected)
    )
    advantages = columns.get("advantages")
    relevant = counted if advantages is None else counted & (advantages != 0)
    is_up = nowhere if said.ratio is None else said.ratio[row, :length] > 1.0
    reasons: list[str | None] = [None] * length
    # A later one takes precedence: what is left out anyway has no ratio to judge it by.
    for reason, where in (
        (BELOW, clipped & ~is_up),
        (ABOVE, clipped & is_up),
        (DUAL, dual),
        (MASKED, masked),
        (REJECTED, rejected),
    ):
        for place in (where & relevant).nonzero().flatten().tolist():
            reasons[place] = reason
    before = columns.get("counted_mask", counted).bool()
    for place in (before & ~counted).nonzero().flatten().tolist():
        reasons[place] = REJECTED
    return reasons
