"""Correction for rollouts that another policy sampled.

It is applied after the log-probabilities and before the advantages are computed.

Dimension key: B = rows (experiences), T = longest response.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from trinity.algorithm.mismatch import probability_metrics
from trinity.algorithm.rollout_correction import compute_rollout_correction
from trinity.common.config import Config
from trinity.common.errors import ConfigError, DataError
from trinity.trainer.batch import TrainBatch
from trinity.trainer.verl.loss import LossFn
from trinity.utils.declaration import entry_of


@dataclass(frozen=True)
class Correction:
    """Importance weights, rejection and mismatch metrics of a batch.

    It needs old log-probabilities that the trainer has recomputed.

    Attributes:
        rollout_is: see `compute_rollout_correction`, also for the next four.
        rollout_is_threshold: bound of the weights.
        rollout_is_batch_normalize: divide the weights by their mean over the training batch.
        rollout_rs: criterion that rejects tokens or responses.
        rollout_rs_threshold: bounds of the rejection.
    """

    rollout_is: str | None = None
    rollout_is_threshold: str = "2.0"
    rollout_is_batch_normalize: bool = False
    rollout_rs: str | None = None
    rollout_rs_threshold: str | None = None

    def __call__(self, batch: TrainBatch) -> tuple[TrainBatch, dict[str, float]]:
        """Return the corrected batch, and metrics.

        The batch gets the column `rollout_is_weights` [B, T]. If tokens are rejected, `action_mask` loses them, and the
        column `counted_mask` [B, T] keeps what was counted before: losses are still divided by its tokens or rows, so
        that a rejected token has a loss of 0. Expert rows, which no policy sampled, do not change and have no metrics.

        Raises:
            DataError: there is a correction and an experience has no log-probabilities of its rollout (E4620).
        """
        rollout, mask = batch.columns.get("rollout_logprob"), batch.action_mask
        if rollout is None:
            if self.rollout_is is None and self.rollout_rs is None:
                return batch, {}
            raise DataError(
                f"algorithm.rollout_correction needs the log-probabilities of the rollout (`logprobs`) in each of the "
                f"{len(batch)} experiences of the batch, and not all have them; use a workflow that records them, or "
                "remove rollout_correction",
                code="E4620",
            )
        old = batch.columns["old_logprob"]
        experts = torch.zeros_like(mask)
        if "expert_mask" in batch.values:
            experts = mask & batch.values["expert_mask"][:, None]
            mask = mask & ~experts
        weights, kept, metrics = compute_rollout_correction(old, rollout, mask, **dataclasses.asdict(self))
        metrics |= probability_metrics(old, rollout, mask)
        if weights is not None:
            batch = batch.with_columns(rollout_is_weights=weights.masked_fill(experts, 1.0))
        if self.rollout_rs is not None:
            batch = dataclasses.replace(batch.with_columns(counted_mask=mask | experts), action_mask=kept | experts)
        return batch, metrics


def correction_of(config: Config, loss_fn: LossFn) -> Correction | None:
    """Return the correction of a run.

    None: the old log-probabilities are those of the rollout, so that there is nothing to correct.

    Raises:
        ConfigError: the policy loss, which a plugin may bring, takes no weights (E1852).
    """
    algorithm = config.algorithm
    if algorithm.bypass_old_logprobs:
        return None
    chosen = algorithm.rollout_correction
    if chosen is None:
        return Correction()
    entry = entry_of(type(loss_fn.policy_loss), kind="policy_loss_fn")
    if chosen.rollout_is and not entry.may_read("rollout_is_weights"):
        raise ConfigError(
            f"algorithm.rollout_correction.rollout_is does not fit policy_loss_fn {algorithm.policy_loss_fn}: "
            f"{type(loss_fn.policy_loss).__name__} does not read rollout_is_weights; make it a parameter of __call__, "
            "or use rollout_rs",
            code="E1852",
        )
    return Correction(
        rollout_is=chosen.rollout_is,
        rollout_is_threshold=chosen.rollout_is_threshold or "2.0",
        rollout_is_batch_normalize=bool(chosen.rollout_is_batch_normalize),
        rollout_rs=chosen.rollout_rs,
        rollout_rs_threshold=chosen.rollout_rs_threshold,
    )
