"""Direct preference optimisation.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.aggregation import masked_mean, masked_sum
from trinity.algorithm.policy_loss_fn.policy_loss_fn import PolicyLossFn


@POLICY_LOSS_FN.register_module("dpo")
class DPOPolicyLossFn(PolicyLossFn):
    """Direct preference optimisation, a mean over pairs.

        -(1 - s) log sigmoid(x) - s log sigmoid(-x),   x = beta (chosen - rejected log-ratio)

    arXiv:2305.18290, eq. 7; with label smoothing s the conservative form of Mitchell (2023). The log-ratio of a
    response is the sum of logprob - ref_logprob over its tokens. Rows 0, 2, ... are chosen, rows 1, 3, ... the
    rejected ones beside them; trinity-rft 0.6.0 sums over the whole batch before the sigmoid.

    The margin may grow while both likelihoods fall. `sft_coef` adds the negative log-likelihood of the chosen
    response, a mean over its tokens (arXiv:2404.19733, eq. 1), which counteracts this for the chosen one.

    Args:
        backend: see `PolicyLossFn`.
        beta: strength of the pull to the reference, > 0.
        label_smoothing: probability s in [0, 0.5) that a pair is labelled the wrong way round.
        sft_coef: weight of the chosen response's negative log-likelihood, >= 0.

    Raises:
        ValueError: an argument outside its range.
    """

    of_pairs = True
    summary = "direct preference optimisation (arXiv:2305.18290, eq. 7), its likelihood term: arXiv:2404.19733, eq. 1"
    formula = (
        "= mean over the pairs of l(x)"
        "\n?label_smoothing=0 l(x) = -ln sigmoid(x)"
        "\n?label_smoothing!=0 l(x) = -(1 - {label_smoothing}) ln sigmoid(x) - {label_smoothing} ln sigmoid(-x)"
        "\nx = {beta} (D(chosen) - D(rejected)), D = sum over the response's tokens of logprob - ref_logprob"
        "\n?sft_coef!=0 plus {sft_coef} times the mean over the pairs of the chosen response's mean of -logprob"
    )
    ranges = {"beta": "(0, inf]", "label_smoothing": "[0, 0.5)", "sft_coef": "[0, inf]"}
    metrics_are_of_rows = True

    def __init__(
        self, backend: str = "verl", beta: float = 0.1, label_smoothing: float = 0.0, sft_coef: float = 0.0
    ) -> None:
        super().__init__(backend)
        if beta <= 0:
            raise ValueError(f"beta must be > 0, got {beta}")
        if not 0.0 <= label_smoothing < 0.5:
            raise ValueError(f"label_smoothing must be in [0, 0.5), got {label_smoothing}")
        if sft_coef < 0:
            raise ValueError(f"sft_coef must be >= 0, got {sft_coef}")
        self.beta = beta
        self.sft_coef = sft_coef
        self.label_smoothing = label_smoothing
        # A mean over pairs is a mean over rows: a micro-batch of whole pairs adds its share of the rows.
        self.loss_agg_mode = "seq-mean-token-sum"

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        ref_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and its metrics, each a mean over the pairs.

        These are `dpo_loss`; `chosen_reward`, `rejected_reward` (beta times the log-ratio) and `margin`, their
        difference; `accuracy_mean`, 1 where the margin is positive; `chosen_logprob` and `rejected_logprob`, sums
        over a response's tokens in nats; and, with `sft_coef`, `sft_loss` (nats per token of the chosen one).

        Raises:
            ValueError: an odd number of rows.
        """
        if logprob.shape[0] % 2:
            raise ValueError(f"dpo needs rows in pairs of chosen and rejected, got {logprob.shape[0]} rows")
        sums = masked_sum(logprob, action_mask, -1)
        rewards = self.beta * (sums - masked_sum(ref_logprob, action_mask, -1))
        chosen, rejected = rewards[0::2], rewards[1::2]
        margin = chosen - rejected
        smoothing = self.label_smoothing
        losses = -(1.0 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)
        loss = losses.mean()
        metrics = {
            "dpo_loss": loss.item(),
            "chosen_reward": chosen.detach().mean().item(),
            "rejected_reward": rejected.detach().mean().item(),
            "margin": margin.detach().mean().item(),
            "accuracy_mean": (chosen > rejected).to(loss.dtype).mean().item(),
            "chosen_logprob": sums[0::2].detach().mean().item(),
            "rejected_logprob": sums[1::2].detach().mean().item(),
        }
        if self.sft_coef:
            sft_loss = -masked_mean(logprob[0::2], action_mask[0::2], -1).mean()
            loss = loss + self.sft_coef * sft_loss
            metrics["sft_loss"] = sft_loss.item()
        return loss, metrics
