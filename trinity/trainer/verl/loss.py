"""The loss of a micro-batch, scaled by its share of the mini-batch.

    loss = share * policy loss - share * entropy term + share * KL term

Summed over the micro-batches this is the loss of the whole mini-batch, however it was split. Each term has its own
share, and so has each part of a policy loss over several parts of the rows. With `loss_agg_scope: micro_batch`, which
is veRL's before 0.7, it is the mean of losses that each micro-batch normalises by itself.

Dimension key: B = rows, b = rows of a micro-batch, T = response positions, M = scored tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import EntropyLossFn, KLFn, PolicyLossFn
from trinity.algorithm.policy_loss_fn.policy_loss_fn import LossPart
from trinity.algorithm.results import loss_and_metrics
from trinity.common.errors import DataError
from trinity.trainer.batch import TrainBatch
from trinity.trainer.verl.parallel.ranks import Ranks
from trinity.utils.declaration import entry_of, inputs_of

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
        scale: share of the micro-batch in the mean over micro-batches, if each is normalised by itself; else None.
    """

    tokens: int
    rows: int
    counted_rows: int
    width: int
    all_tokens: int
    all_rows: int
    all_counted_rows: int
    normalizer: float
    scale: float | None = None

    @classmethod
    def of_rows(
        cls,
        micro: TrainBatch,
        mini: TrainBatch,
        *,
        normalizer: float,
        scale: float | None = None,
        among: tuple[Bool[Tensor, "b"], Bool[Tensor, "B"]] | None = None,
    ) -> Share:
        """Return the share that the rows of `micro` have in their mini-batch.

        Rejected tokens count in the mini-batch.

        Args:
            micro: some rows of `mini`.
            mini: the mini-batch.
            normalizer: see `Share`.
            scale: see `Share`.
            among: the rows of both that count, if not all of them.
        """
        in_micro, in_mini = (None, None) if among is None else among
        tokens, rows, counted_rows = _sizes(micro.action_mask, in_micro)
        counted = mini.columns.get("counted_mask", mini.action_mask)
        all_tokens, all_rows, all_counted_rows = _sizes(counted, in_mini)
        width = micro.action_mask.shape[1]
        return cls(tokens, rows, counted_rows, width, all_tokens, all_rows, all_counted_rows, normalizer, scale)

    def of(self, loss_agg_mode: str, *, counts_empty_rows: bool = True) -> float:
        """Return the factor that turns a micro-batch's loss into its summand.

        Args:
            loss_agg_mode: how the loss was aggregated.
            counts_empty_rows: rows without counted tokens are in the mean over rows; false for veRL's convention,
                where seq-mean-token-sum-norm is a mean over rows, too.
        """
        if self.scale is not None:
            return self._of_itself(loss_agg_mode, counts_empty_rows=counts_empty_rows) * self.scale
        if loss_agg_mode == TOKEN_SUM:
            return 1.0
        if loss_agg_mode == TOKEN_MEAN:
            return self.tokens / max(self.all_tokens, 1)
        scale = self.width / self.normalizer if loss_agg_mode == TOKEN_SUM_NORM else 1.0
        if not counts_empty_rows:
            return self.counted_rows / max(self.all_counted_rows, 1) * scale
        return scale if loss_agg_mode == TOKEN_SUM_NORM else self.rows / max(self.all_rows, 1)

    def of_term(self, loss_agg_mode: str, *, counts_empty_rows: bool = True) -> float:
        """Return the factor of a term that `aggregate_loss` aggregated.

        Args:
            loss_agg_mode: how it was aggregated.
            counts_empty_rows: the convention of the policy loss beside it, which the whole loss has.
        """
        if counts_empty_rows or loss_agg_mode in (TOKEN_MEAN, TOKEN_SUM):
            return self.of(loss_agg_mode)
        rows = 1 if loss_agg_mode == TOKEN_SUM_NORM else self.rows
        return self.of(loss_agg_mode, counts_empty_rows=False) * rows / max(self.counted_rows, 1)

    def _of_itself(self, loss_agg_mode: str, *, counts_empty_rows: bool) -> float:
        """Return the factor of a loss that the micro-batch normalises by itself.

        With seq-mean-token-sum-norm that loss is a sum over its rows, in either convention, as in veRL before 0.7.
        """
        if loss_agg_mode != TOKEN_SUM_NORM:
            return 1.0
        return self.width / self.normalizer * (1 if counts_empty_rows else self.counted_rows)


def _sizes(mask: Bool[Tensor, "B T"], rows: Bool[Tensor, "B"] | None) -> tuple[int, int, int]:
    """Return counted tokens, rows, and rows with counted tokens."""
    mask = mask if rows is None else mask[rows]
    return int(mask.sum()), len(mask), int(mask.any(1).sum())


@dataclass(frozen=True)
class Shares:
    """The share of a micro-batch for each term of the loss.

    Attributes:
        whole: of all rows.
        entropy: of the rows that the entropy term is over.
        parts: of the rows of each part of the policy loss.
    """

    whole: Share
    entropy: Share
    parts: tuple[Share, ...] = ()


class Metrics:
    """Metrics summed over micro-batches with their weights."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._extremes: dict[str, float] = {}

    def add(self, values: Mapping[str, float], weight: float) -> None:
        """Add a micro-batch's values to weighted means, `..._max` and `..._min`."""
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

    def of_all(self, ranks: Ranks) -> Metrics:
        """Return the metrics of all ranks combined."""
        if ranks.is_alone:
            return self
        together = Metrics()
        for of_rank in ranks.gather_shares(self):
            together.merge(of_rank)
        return together

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
        of_entropy = entry_of(type(entropy), kind="entropy_loss_fn")
        self.entropy_needs, self.entropy_names = of_entropy.needs, (of_entropy.needs | of_entropy.takes) - {"entropy"}
        passed = inputs_of(type(entropy), kind="entropy_loss_fn")
        takes_mode = passed.is_open or "loss_agg_mode" in passed.passed
        self.entropy_mode = {"loss_agg_mode": loss_agg_mode} if takes_mode else {}
        of_policy = inputs_of(type(policy_loss), kind="policy_loss_fn")
        self.required, self.policy_reads, self.takes_all = of_policy.required, of_policy.reads, of_policy.is_open

    @property
    def with_entropy(self) -> bool:
        """Whether the entropy of the policy is computed."""
        return "entropy" in self.entropy_needs

    @property
    def with_kl(self) -> bool:
        """Whether the KL term has a nonzero coefficient."""
        return self.kl.is_in_force

    @property
    def with_full_kl(self) -> bool:
        """Whether the KL term compares whole distributions."""
        return self.with_kl and self.kl.of_distributions

    @property
    def needs_reference(self) -> bool:
        """Whether the reference model has to be loaded."""
        return self.with_kl or "ref_logprob" in self.required

    @property
    def reads_ref_logprob(self) -> bool:
        """Whether a term reads the reference's log-probabilities of the tokens."""
        return "ref_logprob" in self.policy_reads or (self.with_kl and not self.with_full_kl)

    @property
    def ignores_zero_advantage(self) -> bool:
        """Whether a response of advantage 0 has neither loss nor gradient."""
        has_more = self.with_kl or self.entropy.entropy_coef != 0
        return self.policy_loss.zero_advantage_is_zero_loss and not has_more

    def shares(
        self,
        micro: TrainBatch,
        mini: TrainBatch,
        *,
        normalizer: float,
        scale: float | None = None,
        measured: TrainBatch | None = None,
    ) -> Shares:
        """Return the shares of a micro-batch in its mini-batch.

        Args:
            micro: some rows of `mini`.
            mini: the mini-batch.
            normalizer: see `Share`.
            scale: see `Share`.
            measured: the rows over which entropy is averaged, by default all of `mini`: if it has no coefficient and
                rows are left out, those that are computed.

        Raises:
            DataError: the loss needs a tensor that the experiences do not have (E4604).
        """
        sizes = partial(Share.of_rows, normalizer=normalizer, scale=scale)
        try:
            parts = [self.policy_loss.parts(side.values) for side in (micro, mini)]
            of_entropy = sizes(micro, measured or mini, among=self._entropy_rows(micro, measured or mini))
        except KeyError as error:
            raise self._lacks(str(error.args[0])) from error

        return Shares(
            whole=sizes(micro, mini),
            entropy=of_entropy,
            parts=tuple(
                sizes(micro, mini, among=(part.rows, of_all.rows)) for part, of_all in zip(*parts, strict=True)
            ),
        )

    def _entropy_rows(self, micro: TrainBatch, mini: TrainBatch) -> tuple[Bool[Tensor, "b"], Bool[Tensor, "B"]] | None:
        """Return the rows of both that the entropy term is over; None: all."""
        sides = [self.entropy.rows(side.values) if self.with_entropy else None for side in (micro, mini)]
        return None if sides[0] is None or sides[1] is None else (sides[0], sides[1])

    def __call__(
        self, logprob: Float[Tensor, "B T"], entropy: Float[Tensor, "B T"], tensors: dict[str, Tensor], shares: Shares
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the micro-batch's summand of the loss, and metrics.

        Raises:
            DataError: the policy loss needs a tensor that the experiences do not have (E4604).
        """
        mask, whole, metrics = tensors["action_mask"], shares.whole, Metrics()
        missing = sorted(self.required - tensors.keys() - {"logprob"})
        if missing:
            raise self._lacks(", ".join(missing))
        loss, counts_empty = self.policy_term(logprob, tensors, shares, metrics), self.policy_loss.counts_empty_rows
        if self.with_entropy:
            given = {name: tensors[name] for name in self.entropy_names & tensors.keys()}
            made = self.entropy(entropy, mask, **self.entropy_mode, **given)
            term, values = loss_and_metrics("the entropy term", self.entropy, made)
            factor = shares.entropy.of_term(self.loss_agg_mode, counts_empty_rows=counts_empty)
            loss = loss - term * factor
            self._note(metrics, values, shares.entropy, factor)
        factor = whole.of_term(self.loss_agg_mode, counts_empty_rows=counts_empty)
        if "ref_divergence" in tensors:
            term, values = self.kl.loss_of(tensors["ref_divergence"], mask, self.loss_agg_mode)
            loss = loss + term * factor
            self._note(metrics, values, whole, factor)
        elif self.with_kl:
            made = self.kl.calculate_kl_loss(
                logprob,
                tensors["ref_logprob"],
                response_mask=mask,
                loss_agg_mode=self.loss_agg_mode,
                old_logprob=_sampled_logprob(logprob, tensors),
            )
            term, values = loss_and_metrics("the KL term", self.kl, made)
            loss = loss + term * factor
            self._note(metrics, values, whole, factor)
        metrics.add_sum({"final_loss": float(loss.detach())})
        return loss, metrics

    def policy_term(
        self, logprob: Float[Tensor, "B T"], tensors: dict[str, Tensor], shares: Shares, metrics: Metrics
    ) -> Float[Tensor, ""]:
        """Return a micro-batch's policy loss summand, and record its metrics."""
        parts = self.policy_loss.parts(tensors)
        if parts:
            return self._sum_of_parts(parts, tensors | {"logprob": logprob}, shares, metrics)
        given = tensors if self.takes_all else {k: tensors[k] for k in self.policy_loss.select_keys & tensors.keys()}
        made = self.policy_loss(logprob=logprob, **given)
        value, values = loss_and_metrics("the policy loss", self.policy_loss, made)
        factor = self._factor(self.policy_loss, shares.whole)
        self._note(metrics, values, shares.whole, factor, by_rows=self.policy_loss.metrics_are_of_rows)
        return value * factor

    def _sum_of_parts(
        self, parts: tuple[LossPart, ...], tensors: dict[str, Tensor], shares: Shares, metrics: Metrics
    ) -> Float[Tensor, ""]:
        loss = torch.zeros((), dtype=tensors["logprob"].dtype, device=tensors["logprob"].device)
        for part, share in zip(parts, shares.parts, strict=True):
            metrics.add({f"{part.name}/weight": part.weight}, float(shares.whole.tokens))
            if not share.rows:
                continue  # a side without rows counts 0, and its own mean would be 0 / 0
            rows = part.rows.nonzero().squeeze(-1)
            names = (part.loss_fn.select_keys | {"logprob"}) & tensors.keys()
            value, values = part.loss_fn(**{name: tensors[name][rows] for name in names})
            factor = self._factor(part.loss_fn, share)
            self._note(metrics, {f"{part.name}/{name}": number for name, number in values.items()}, share, factor)
            loss = loss + part.weight * factor * value
        metrics.add_sum({"policy_loss": float(loss.detach())})
        return loss

    def _factor(self, policy_loss: PolicyLossFn, share: Share) -> float:
        mode = policy_loss.loss_agg_mode or self.loss_agg_mode
        return share.of(mode, counts_empty_rows=policy_loss.counts_empty_rows)

    def _lacks(self, names: str) -> DataError:
        return DataError(
            f"the policy loss {type(self.policy_loss).__name__} needs {names}, which the experiences do not hold; "
            "choose another algorithm.policy_loss_fn, or an advantage_fn, sample_strategy or workflow that sets them",
            code="E4604",
        )

    @staticmethod
    def _note(metrics: Metrics, values: dict[str, Any], share: Share, factor: float, *, by_rows: bool = False) -> None:
        """Record losses as weighted sums, other values as token or row means."""
        weight = share.rows if by_rows else share.tokens
        losses = {name: float(value) * factor for name, value in values.items() if name.endswith("loss")}
        metrics.add_sum(losses)
        metrics.add({name: float(v) for name, v in values.items() if name not in losses}, float(weight))


def _sampled_logprob(logprob: Float[Tensor, "B T"], tensors: dict[str, Tensor]) -> Float[Tensor, "B T"] | None:
    """Return the sampling policy's log-probabilities; experts have ratio 1."""
    old, is_expert = tensors.get("old_logprob"), tensors.get("expert_mask")
    if old is None or is_expert is None:
        return old
    return torch.where(is_expert[:, None], logprob.detach(), old)


def spread_to_rows(values: Float[Tensor, "M"], targets: Tensor, *, num_rows: int, width: int) -> Float[Tensor, "B T"]:
    """Return `values` at flat `targets` [M], 0 elsewhere; differentiable."""
    flat = torch.zeros(num_rows * width, dtype=values.dtype, device=values.device)
    return flat.scatter(0, targets, values).view(num_rows, width)
