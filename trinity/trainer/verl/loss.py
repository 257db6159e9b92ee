"""The loss of a micro-batch: policy loss, KL and entropy, each scaled by its share of the mini-batch.

Summed over the micro-batches of a mini-batch this is the loss of the whole mini-batch, however it was split.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from trinity.algorithm import EntropyLossFn, KLFn, PolicyLossFn
from trinity.common.errors import DataError
from trinity.trainer.batch import TrainBatch

TOKEN_MEAN = "token-mean"
TOKEN_SUM = "token-sum"
TOKEN_SUM_NORM = "seq-mean-token-sum-norm"


@dataclass(frozen=True)
class Share:
    """Sizes of a micro-batch and of its mini-batch.

    Attributes:
        tokens: counted tokens of the micro-batch.
        rows: rows of the micro-batch.
        counted_rows: those of them that have counted tokens.
        width: longest response of the micro-batch.
        all_tokens: counted tokens of the mini-batch.
        all_rows: rows of the mini-batch.
        all_counted_rows: those of them that have counted tokens.
        normalizer: fixed divisor of seq-mean-token-sum-norm.
    """

    tokens: int
    rows: int
    counted_rows: int
    width: int
    all_tokens: int
    all_rows: int
    all_counted_rows: int
    normalizer: float

    @classmethod
    def of_rows(cls, micro: TrainBatch, mini: TrainBatch, *, normalizer: float) -> Share:
        """Return the share that the rows of `micro` have in their mini-batch; rejected tokens count in the latter."""
        counted = mini.columns.get("counted_mask", mini.action_mask)
        return cls(
            tokens=micro.num_action_tokens,
            rows=len(micro),
            counted_rows=_num_counted(micro),
            width=micro.action_mask.shape[1],
            all_tokens=int(counted.sum()),
            all_rows=len(mini),
            all_counted_rows=int(counted.any(1).sum()),
            normalizer=normalizer,
        )

    def of(self, loss_agg_mode: str, *, counts_empty_rows: bool = True) -> float:
        """Return the factor that makes a micro-batch's loss a summand of its mini-batch's.

        Args:
            loss_agg_mode: how the loss was aggregated.
            counts_empty_rows: rows without counted tokens are in the mean over rows; false for veRL's convention,
                where seq-mean-token-sum-norm is a mean over rows, too.
        """
        if loss_agg_mode == TOKEN_SUM:
            return 1.0
        if loss_agg_mode == TOKEN_MEAN:
            return self.tokens / max(self.all_tokens, 1)
        scale = self.width / self.normalizer if loss_agg_mode == TOKEN_SUM_NORM else 1.0
        if not counts_empty_rows:
            return self.counted_rows / max(self.all_counted_rows, 1) * scale
        return scale if loss_agg_mode == TOKEN_SUM_NORM else self.rows / max(self.all_rows, 1)


def _num_counted(batch: TrainBatch) -> int:
    return int(batch.action_mask.any(1).sum())


class Metrics:
    """Metrics summed over micro-batches with their weights."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._extremes: dict[str, float] = {}

    def add(self, values: Mapping[str, float], weight: float) -> None:
        """Add the values of a micro-batch to weighted means; of `..._max` and `..._min` the extremes are kept."""
        for name, value in values.items():
            if name.endswith(("_max", "_min")):
                self._extremes[name] = _extreme(name, value, self._extremes.get(name, value))
                continue
            self._sums[name] = self._sums.get(name, 0.0) + value * weight
            self._weights[name] = self._weights.get(name, 0.0) + weight

    def add_sum(self, values: Mapping[str, float]) -> None:
        """Add values that are summands already."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._weights[name] = 1.0

    def merge(self, other: Metrics) -> None:
        """Add sums and weights of `other`."""
        for name, total in other._sums.items():
            is_sum = name.endswith("loss")
            self._sums[name] = self._sums.get(name, 0.0) + total
            self._weights[name] = 1.0 if is_sum else self._weights.get(name, 0.0) + other._weights[name]
        for name, value in other._extremes.items():
            self._extremes[name] = _extreme(name, value, self._extremes.get(name, value))

    def means(self) -> dict[str, float]:
        """Return the mean (or sum, or extreme) of each metric."""
        means = {name: total / self._weights[name] for name, total in self._sums.items() if self._weights[name]}
        return means | self._extremes


def _extreme(name: str, *values: float) -> float:
    return max(values) if name.endswith("_max") else min(values)


class LossFn:
    """Policy loss - entropy term + KL term.

    Args:
        policy_loss: the policy loss.
        kl: divergence from the reference.
        entropy: entropy term.
        loss_agg_mode: aggregation of KL and entropy; the policy loss has its own.
    """

    def __init__(self, policy_loss: PolicyLossFn, kl: KLFn, entropy: EntropyLossFn, *, loss_agg_mode: str) -> None:
        self.policy_loss = policy_loss
        self.kl = kl
        self.entropy = entropy
        self.loss_agg_mode = loss_agg_mode
        self.policy_mode: str = vars(policy_loss).get("loss_agg_mode", loss_agg_mode)
        self.counts_empty_rows: bool = getattr(policy_loss, "counts_empty_rows", True)
        parameters = inspect.signature(policy_loss.__call__).parameters.values()
        self.takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        self.required = {p.name for p in parameters if p.kind not in _VARIABLE and p.default is inspect.Parameter.empty}

    @property
    def with_entropy(self) -> bool:
        """Whether the entropy of the policy is computed."""
        return type(self.entropy).__name__ != "NoneEntropyLossFn"

    @property
    def with_kl(self) -> bool:
        """Whether a nonzero coefficient reads the reference's log-probabilities."""
        return type(self.kl).__name__ != "NoneKLFn" and (self.kl.kl_coef != 0 or self.kl.adaptive)

    @property
    def with_full_kl(self) -> bool:
        """Whether the divergence from the reference is that of whole distributions."""
        return self.with_kl and self.kl.of_distributions

    @property
    def needs_reference(self) -> bool:
        """Whether the reference model has to be loaded."""
        return self.with_kl or "ref_logprob" in self.required

    @property
    def ignores_zero_advantage(self) -> bool:
        """Whether a response of advantage 0 has neither loss nor gradient."""
        has_more = self.with_kl or self.entropy.entropy_coef != 0
        return self.policy_loss.zero_advantage_is_zero_loss and not has_more

    def __call__(
        self, logprob: Float[Tensor, "B T"], entropy: Float[Tensor, "B T"], tensors: dict[str, Tensor], share: Share
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the micro-batch's summand of the loss, and metrics.

        Raises:
            DataError: the policy loss needs a tensor that the experiences do not have (E4604).
        """
        mask = tensors["action_mask"]
        missing = sorted(self.required - tensors.keys() - {"logprob"})
        if missing:
            raise DataError(
                f"the policy loss {type(self.policy_loss).__name__} needs {', '.join(missing)}, which the experiences "
                "do not hold; choose another algorithm.policy_loss_fn, or an advantage_fn or workflow that sets them",
                code="E4604",
            )
        given = tensors if self.takes_all else {k: tensors[k] for k in self.policy_loss.select_keys & tensors.keys()}
        policy, values = self.policy_loss(logprob=logprob, **given)
        factor = share.of(self.policy_mode, counts_empty_rows=self.counts_empty_rows)
        loss, metrics = policy * factor, Metrics()
        is_by_rows = self.policy_loss.metrics_are_of_rows
        self._note(metrics, values, share.rows if is_by_rows else share.tokens, factor)
        shared = share.of(self.loss_agg_mode)
        if self.with_entropy:
            term, values = self.entropy(entropy, mask, loss_agg_mode=self.loss_agg_mode)
            loss = loss - term * shared
            self._note(metrics, values, share.tokens, shared)
        if "ref_divergence" in tensors:
            term, values = self.kl.loss_of(tensors["ref_divergence"], mask, self.loss_agg_mode)
            loss = loss + term * shared
            self._note(metrics, values, share.tokens, shared)
        elif self.with_kl:
            term, values = self.kl.calculate_kl_loss(
                logprob,
                tensors["ref_logprob"],
                response_mask=mask,
                loss_agg_mode=self.loss_agg_mode,
                old_logprob=tensors.get("old_logprob"),
            )
            loss = loss + term * shared
            self._note(metrics, values, share.tokens, shared)
        metrics.add_sum({"final_loss": float(loss.detach())})
        return loss, metrics

    @staticmethod
    def _note(metrics: Metrics, values: dict[str, Any], weight: int, factor: float) -> None:
        """Losses add up with the factor of their mode; all else is a mean with this weight."""
        losses = {name: float(value) * factor for name, value in values.items() if name.endswith("loss")}
        metrics.add_sum(losses)
        metrics.add({name: float(v) for name, v in values.items() if name not in losses}, float(weight))


_VARIABLE = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def spread_to_rows(values: Float[Tensor, "M"], targets: Tensor, *, num_rows: int, width: int) -> Float[Tensor, "B T"]:
    """Return [B, T] with `values` at the flat places `targets` and 0 elsewhere; differentiable."""
    flat = torch.zeros(num_rows * width, dtype=values.dtype, device=values.device)
    return flat.scatter(0, targets, values).view(num_rows, width)
