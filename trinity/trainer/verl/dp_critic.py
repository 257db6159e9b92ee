"""The value model's update, from mini-batches to optimizer steps.

Dimension key: B = rows, T = response positions, M = scored positions, m = those of this rank, d = hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from trinity.algorithm.aggregation import masked_mean
from trinity.algorithm.statistics import masked_var
from trinity.algorithm.value_loss import compute_value_loss
from trinity.trainer.batch import TrainBatch, rows_of_policy
from trinity.trainer.quarantine import Quarantine
from trinity.trainer.verl.accumulation import MicroStep, accumulate
from trinity.trainer.verl.decoder import PackedDecoder
from trinity.trainer.verl.divergence import Output
from trinity.trainer.verl.loss import Metrics, Share, spread_to_rows
from trinity.trainer.verl.optim import LRSchedule
from trinity.trainer.verl.packing import Packed
from trinity.trainer.verl.parallel.ranks import ALONE, Ranks
from trinity.trainer.verl.parallel.tensor import held
from trinity.trainer.verl.scorer import ActorSettings, Scorer
from trinity.trainer.verl.stepping import Reporter, Stepper, mean_norm, passes

VARIANCE_EPSILON = 1e-5


@dataclass(frozen=True)
class CriticSettings:
    """How the value model is trained.

    Attributes:
        update: how a batch is split and stepped.
        forward: how a batch is split for values without gradient.
        cliprange_value: how far a prediction may move from the value before the update.
        loss_agg_mode: how token losses become one number.
    """

    update: ActorSettings
    forward: ActorSettings
    cliprange_value: float = 0.5
    loss_agg_mode: str = "token-mean"


class DataParallelPPOCritic:
    """Trains a value model towards returns.

    The value of a token is read where the token is predicted: from the hidden state of the token before it.

    Args:
        model: parameters in float32, those of `head` among them.
        decoder: computes the model's hidden states.
        head: linear layer from a hidden state to a value.
        optimizer: over the model's parameters.
        schedule: learning rate of each training step.
        settings: how a batch is split and stepped, and the loss.
        quarantine: where batches with a gradient that is not finite are written; None keeps none.
        ranks: the processes that train together.
    """

    def __init__(
        self,
        model: nn.Module,
        decoder: PackedDecoder,
        *,
        head: nn.Linear,
        optimizer: torch.optim.Optimizer,
        schedule: LRSchedule,
        settings: CriticSettings,
        quarantine: Quarantine | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model = model
        self.decoder = decoder
        self.head = head
        self.settings = settings
        self.quarantine = quarantine
        self.ranks = ranks
        self.scorer = Scorer(decoder, settings=settings.forward, device=ranks.device_of(model), ranks=ranks)
        self.stepper = Stepper(
            model,
            decoder,
            optimizer=optimizer,
            schedule=schedule,
            grad_clip=settings.update.grad_clip,
            keys="trainer.trainer_config.critic.optim.lr or critic.grad_clip",
            ranks=ranks,
        )

    def compute_values(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return values of counted tokens, 0 elsewhere, on CPU, no gradient."""
        return self.scorer.compute(batch, self._values)

    def update_critic(self, batch: TrainBatch, *, step: int) -> dict[str, float]:
        """Train on `batch` as step `step`; return the metrics `critic/...`.

        `batch` has the columns `values` and `returns`. Expert rows, whose reward is unknown, are left out.

        Raises:
            NumericError: the gradient norm was not finite in three optimizer steps in a row.
        """
        batch = batch.select(rows_of_policy(batch))
        lr = self.stepper.begin(step)
        metrics = Metrics()
        norms: list[float] = []
        for rows in passes(batch, self.settings.update, step=step, num_shares=self.ranks.num_shares):
            mini = batch.select(rows)
            self._accumulate(mini, metrics)
            norms.append(self.stepper.step(step, report=self._reporter(mini, step, len(norms) + 1)))
        metrics = metrics.of_all(self.ranks)
        values = {"vf_loss": 0.0} | {name: value / len(norms) if name.endswith("loss") else value
                  for name, value in metrics.means().items()}  # fmt: skip
        values["vf_explained_var"] = explained_variance(
            batch.columns["values"], batch.columns["returns"], mask=batch.action_mask
        )
        values |= {"grad_norm": mean_norm(norms), "lr": lr, "skipped_steps": float(self.stepper.num_skipped)}
        return {f"critic/{name}": value for name, value in values.items()}

    def _reporter(self, mini: TrainBatch, step: int, number: int) -> Reporter | None:
        """Return the report of a skipped optimizer step, `number` within `step`."""
        quarantine = self.quarantine
        if quarantine is None:
            return None

        def report(norm: float, parameters: list[str]) -> Path | None:
            computed = {"predicted_values": self.compute_values(mini)}
            if not self.ranks.is_first:
                return None
            return quarantine.write(
                mini, step=step, mini_batch=number, norm=norm, parameters=parameters, computed=computed
            )

        return report

    def _values(self, packed: Packed) -> Float[Tensor, "M"]:
        """Return the values of the scored positions."""
        return self._values_of(self.decoder.hidden(packed), packed)

    def _values_of(self, hidden: Float[Tensor, "m d"], packed: Packed) -> Float[Tensor, "M"]:
        """Return the values of the scored positions, computed in float32."""
        bias = None if self.head.bias is None else held(self.head.bias)
        return packed.collect(nn.functional.linear(hidden.float(), held(self.head.weight), bias).squeeze(-1))

    def _accumulate(self, mini: TrainBatch, metrics: Metrics) -> None:
        """Add the gradient of a mini-batch's loss to the parameters."""
        split = self.settings.update
        counted = torch.nonzero(mini.action_mask.any(1)).squeeze(-1).tolist()

        def steps() -> Iterator[MicroStep[Share]]:
            for work in self.scorer.split(mini, counted, split):
                micro = mini.select(work.rows)
                share = Share.of_rows(micro, mini, normalizer=split.normalizer, scale=work.scale)
                yield MicroStep(micro, share, work.is_filler)

        accumulate(self.decoder, self.scorer, steps(), loss=partial(self._loss, metrics=metrics))

    def _loss(
        self,
        step: MicroStep[Share],
        hidden: Float[Tensor, "m d"],
        packed: Packed,
        _reference: Output | None,
        *,
        metrics: Metrics,
    ) -> Float[Tensor, ""]:
        """Return a micro-batch's summand of the loss and record its metrics."""
        micro, share = step.micro, step.share
        device, mode = self.scorer.device, self.settings.loss_agg_mode
        mask = micro.action_mask.to(device)
        returns, old = (micro.columns[name].to(device) for name in ("returns", "values"))
        scored = self._values_of(hidden, packed)
        predicted = spread_to_rows(scored, packed.targets, num_rows=packed.num_rows, width=packed.width)
        loss, values = compute_value_loss(
            predicted, returns, old, mask, cliprange_value=self.settings.cliprange_value, loss_agg_mode=mode
        )
        loss = loss * share.of(mode, counts_empty_rows=False)
        if step.is_filler:
            return loss * 0.0
        values["vpred_mean"] = float(masked_mean(predicted.detach(), mask))
        metrics.add_sum({"vf_loss": float(loss.detach())})
        metrics.add(values, float(share.tokens))
        return loss


def explained_variance(
    values: Float[Tensor, "B T"], returns: Float[Tensor, "B T"], *, mask: Bool[Tensor, "B T"]
) -> float:
    """Return the explained variance of the returns; 1 is a perfect critic.

        1 - var(returns - values) / (var(returns) + 1e-5)

    Both variances are over the counted tokens.
    """
    left, whole = masked_var(returns - values, mask), masked_var(returns, mask)
    return float(1.0 - left / (whole + VARIANCE_EPSILON))
