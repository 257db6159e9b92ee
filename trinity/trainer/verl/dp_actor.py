"""The policy's update, from mini-batches to optimizer steps.

Dimension key: B = rows, T = response positions, m = scored positions of this rank, d = hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trinity.trainer.batch import TrainBatch, counted_rows
from trinity.trainer.quarantine import Quarantine
from trinity.trainer.utilisation import ComputedTokens
from trinity.trainer.verl.accumulation import MicroStep, accumulate
from trinity.trainer.verl.decoder import PackedDecoder
from trinity.trainer.verl.divergence import Output
from trinity.trainer.verl.loss import LossFn, Metrics, Shares, spread_to_rows
from trinity.trainer.verl.observation import Observer
from trinity.trainer.verl.optim import LRSchedule
from trinity.trainer.verl.packing import Packed
from trinity.trainer.verl.parallel.ranks import ALONE, Ranks
from trinity.trainer.verl.reference import Reference
from trinity.trainer.verl.scorer import ActorSettings, Scorer
from trinity.trainer.verl.stepping import Reporter, Stepper, mean_norm, passes


class DataParallelPPOActor:
    """Trains a model's parameters with a loss over its log-probabilities.

    Args:
        model: parameters in float32.
        decoder: computes the model's hidden states.
        loss_fn: the loss.
        optimizer: over the model's parameters.
        schedule: learning rate of each training step.
        settings: how a batch is split and stepped.
        quarantine: where batches with a gradient that is not finite are written; None keeps none.
        ranks: the processes that train together.

    Attributes:
        reference: read by a KL term over whole distributions; the worker sets it.
        work: tokens of the last update, on all ranks.
        observer: records what each row contributes; set to inspect a single step, never in a run.
    """

    reference: Reference | None = None
    observer: Observer | None = None

    def __init__(
        self,
        model: nn.Module,
        decoder: PackedDecoder,
        *,
        loss_fn: LossFn,
        optimizer: torch.optim.Optimizer,
        schedule: LRSchedule,
        settings: ActorSettings,
        quarantine: Quarantine | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model = model
        self.decoder = decoder
        self.ranks = ranks
        self.scorer = Scorer(decoder, settings=settings, device=ranks.device_of(model), ranks=ranks)
        self.loss_fn = loss_fn
        self.settings = settings
        self.work = ComputedTokens()
        self.quarantine = quarantine
        self.stepper = Stepper(
            model,
            decoder,
            optimizer=optimizer,
            schedule=schedule,
            grad_clip=settings.grad_clip,
            keys="algorithm.optimizer.lr or trainer.grad_clip",
            ranks=ranks,
        )
        self.device = self.scorer.device

    # ------------------------------------------------------------------ update
    def update_policy(self, batch: TrainBatch, *, step: int) -> dict[str, float]:
        """Train on `batch` as step `step` (1-based); return its metrics.

        Raises:
            NumericError: the gradient norm was not finite in three optimizer steps in a row.
        """
        lr, self.work = self.stepper.begin(step), ComputedTokens()
        metrics, difference = Metrics(), _Mismatch(trained_version=step - 1)
        norms: list[float] = []
        is_first = True
        for rows in passes(batch, self.settings, step=step, num_shares=self.ranks.num_shares):
            mini = batch.select(rows)
            self._accumulate(mini, metrics, difference if is_first else None)
            norms.append(self.stepper.step(step, report=self._reporter(mini, step, len(norms) + 1)))
            is_first = False
        metrics, difference = metrics.of_all(self.ranks), difference.of_all(self.ranks)
        values = {_full(name): value / len(norms) if name.endswith("loss") else value
                  for name, value in metrics.means().items()}  # fmt: skip
        return (
            {"actor/final_loss": 0.0}
            | values
            | difference.metrics()
            | {
                "actor/grad_norm": mean_norm(norms),
                "actor/lr": lr,
                "actor/skipped_steps": float(self.stepper.num_skipped),
            }
        )

    def _accumulate(self, mini: TrainBatch, metrics: Metrics, difference: _Mismatch | None) -> None:
        """Add the gradient of a mini-batch's loss to the parameters."""
        kept = self._rows_with_signal(mini)
        self.work.add(mini.lengths[kept])
        mini = self._with_selection(mini)
        if self.observer is not None:
            self.observer.begin(mini)
        settings = self.settings
        measured = mini.select(kept) if self.loss_fn.ignores_zero_advantage else mini

        def steps() -> Iterator[MicroStep[Shares]]:
            for work in self.scorer.split(mini, kept, settings):
                micro = mini.select(work.rows)
                shares = self.loss_fn.shares(
                    micro, mini, normalizer=settings.normalizer, scale=work.scale, measured=measured
                )
                yield MicroStep(micro, shares, work.is_filler)

        loss = partial(self._loss, metrics=metrics, difference=difference)
        accumulate(self.decoder, self.scorer, steps(), loss=loss, reference_of=self._reference_of)

    def _rows_with_signal(self, mini: TrainBatch) -> list[int]:
        """Return the rows that can change the gradient; all count in the means."""
        counted = mini.action_mask
        if self.settings.averages_micro_batches:
            return counted_rows(mini, counted)  # a micro-batch divides by the rows it computes: keep all
        if self.loss_fn.ignores_zero_advantage and "advantages" in mini.columns:
            counted = counted & (mini.columns["advantages"] != 0)
        return counted_rows(mini, counted)

    def _with_selection(self, mini: TrainBatch) -> TrainBatch:
        """Add `selected`, which the loss chooses at the weights before its step."""
        select = self.loss_fn.policy_loss.select_tokens
        if select is None:
            return mini
        tensors = {"action_mask": mini.action_mask, "logprob": self.scorer.compute_log_prob(mini)} | mini.columns
        if self.loss_fn.required - tensors.keys():
            return mini  # the loss raises the error that names what is missing
        return mini.with_columns(selected=select(**tensors))

    def _loss(
        self,
        step: MicroStep[Shares],
        hidden: Float[Tensor, "m d"],
        packed: Packed,
        reference: Output | None,
        *,
        metrics: Metrics,
        difference: _Mismatch | None,
    ) -> Float[Tensor, ""]:
        """Return a micro-batch's summand of the loss and record its metrics."""
        micro = step.micro
        scored, entropy = self.scorer.score_hidden(hidden, packed, with_entropy=self.loss_fn.with_entropy)
        size = {"num_rows": packed.num_rows, "width": packed.width}
        logprob = spread_to_rows(scored, packed.targets, **size)
        tensors = {"action_mask": micro.action_mask} | micro.columns | micro.values
        tensors = {name: value.to(self.device) for name, value in tensors.items()}
        if reference is not None:
            divergence = self.scorer.divergence(hidden, reference, packed)
            tensors["ref_divergence"] = spread_to_rows(divergence, packed.targets, **size)
        loss, values = self.loss_fn(logprob, spread_to_rows(entropy, packed.targets, **size), tensors, step.share)
        if step.is_filler:
            return loss * 0.0
        if difference is not None:
            difference.add(micro, logprob.detach())
        metrics.merge(values)
        if self.observer is not None:
            self.observer.add(micro, logprob)
        return loss

    def _reference_of(self, packed: Packed) -> Output | None:
        """Return the reference's output if the loss compares distributions."""
        if not self.loss_fn.with_full_kl:
            return None
        assert self.reference is not None, "the worker loads what the loss reads"
        return self.reference.output(packed)

    def _reporter(self, mini: TrainBatch, step: int, number: int) -> Reporter | None:
        """Return the report of a skipped optimizer step, `number` within `step`."""
        quarantine = self.quarantine
        if quarantine is None:
            return None

        def report(norm: float, parameters: list[str]) -> Path | None:
            computed = {"logprob": self.scorer.compute_log_prob(mini)}
            if not self.ranks.is_first:
                return None
            return quarantine.write(
                mini, step=step, mini_batch=number, norm=norm, parameters=parameters, computed=computed
            )

        return report

    def compute_log_prob(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return log-probabilities (nats) of counted tokens, 0 elsewhere, on CPU."""
        return self.scorer.compute_log_prob(batch)


def _full(name: str) -> str:
    """Return the name under which a metric of the loss is logged."""
    return name if name.startswith("rollout_corr/") else f"actor/{name}"


class _Mismatch:
    """Difference of log-probabilities, engine to trainer, at equal weights."""

    def __init__(self, trained_version: int) -> None:
        self.trained_version = trained_version
        self.total, self.count, self.largest = 0.0, 0, 0.0

    def add(self, micro: TrainBatch, logprob: Float[Tensor, "B T"]) -> None:
        """Compare the rows of a micro-batch that the current weights sampled."""
        rollout = micro.columns.get("rollout_logprob")
        counted = micro.action_mask & (micro.model_versions == self.trained_version)[:, None]
        if rollout is None or not bool(counted.any()):
            return
        difference = (logprob.cpu() - rollout).abs()[counted]
        self.total += float(difference.double().sum())
        self.count += difference.numel()
        self.largest = max(self.largest, float(difference.max()))

    def of_all(self, ranks: Ranks) -> _Mismatch:
        """Return the differences of all ranks combined."""
        if ranks.is_alone:
            return self
        together = _Mismatch(self.trained_version)
        for of_rank in ranks.gather_shares(self):
            together.total, together.count = together.total + of_rank.total, together.count + of_rank.count
            together.largest = max(together.largest, of_rank.largest)
        return together

    def metrics(self) -> dict[str, float]:
        """Return `training/rollout_logprobs_diff_{max,mean}`, if any.

        Empty if no row could be compared.
        """
        if not self.count:
            return {}
        return {
            "training/rollout_logprobs_diff_max": self.largest,
            "training/rollout_logprobs_diff_mean": self.total / self.count,
        }
