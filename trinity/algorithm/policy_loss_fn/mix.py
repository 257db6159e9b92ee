"""Reinforcement on own responses mixed with imitation of an expert's.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.policy_loss_fn.policy_loss_fn import LossPart, PolicyLossFn
from trinity.algorithm.policy_loss_fn.ppo import PPOPolicyLossFn
from trinity.algorithm.policy_loss_fn.ratio import CLIP_RANGE
from trinity.algorithm.policy_loss_fn.sft import SFTPolicyLossFn
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


class MixedLossFn(PolicyLossFn):
    """A weighted sum of the losses of usual rows and expert rows.

        (1 - mu) PPO(usual rows) + mu L(expert rows); a side without rows counts 0

    Usual rows are the policy's own responses, expert rows are demonstrations. The trainer takes the two sides as
    `parts`, each normalised over its own rows or tokens of the whole mini-batch.

    Called directly, for one micro-batch, the loss is (1 - mu) n_u w_u PPO + mu n_e w_e L: n is the number of rows of
    a side and 1 / w the number of its rows in the mini-batch on this rank, in units of the micro-batches over which the
    mean is taken: w = (ppo_mini_batch_size // ppo_micro_batch_size_per_gpu) / (train_batch_size // ngpus_trainer), or
    with `use_dynamic_bsz` (ppo_mini_batch_size // ngpus_trainer) / (B (train_batch_size // ngpus_trainer)), where B
    counts the rows of this micro-batch.

    Args:
        backend: see `PolicyLossFn`.
        usual: the loss of the policy's own responses.
        expert: the loss of the expert's responses.
        use_dynamic_bsz: micro-batches differ in their number of rows.
        ppo_mini_batch_size: rows of a mini-batch over all ranks.
        ppo_micro_batch_size_per_gpu: rows of a micro-batch.
        ngpus_trainer: number of ranks.
        train_batch_size_usual: usual rows of a training step over all ranks; 0 for none.
        train_batch_size_expert: expert rows of a training step over all ranks; 0 for none.

    Raises:
        ValueError: a size that is not positive, or a negative number of rows.
    """

    def __init__(
        self,
        backend: str,
        usual: PPOPolicyLossFn,
        expert: TokenLossFn,
        *,
        use_dynamic_bsz: bool,
        ppo_mini_batch_size: int,
        ppo_micro_batch_size_per_gpu: int,
        ngpus_trainer: int,
        train_batch_size_usual: int,
        train_batch_size_expert: int,
    ) -> None:
        super().__init__(backend)
        micro, ranks = ppo_micro_batch_size_per_gpu, ngpus_trainer
        sides = (train_batch_size_usual, train_batch_size_expert)
        if min(ppo_mini_batch_size, micro, ranks) < 1 or min(sides) < 0:
            sizes = (ppo_mini_batch_size, micro, ranks, *sides)
            raise ValueError(
                "mix needs ppo_mini_batch_size, ppo_micro_batch_size_per_gpu, ngpus_trainer >= 1 and "
                "train_batch_size_usual, train_batch_size_expert >= 0, got "
                f"{', '.join(map(str, sizes))}"
            )
        self.usual = usual
        self.expert = expert
        # The trainer weights each micro-batch by its share of the rows; times w this gives the mean over a side's rows.
        self.loss_agg_mode = "seq-mean-token-sum"
        self.use_dynamic_bsz = use_dynamic_bsz
        self.num_batches = ppo_mini_batch_size // (ranks if use_dynamic_bsz else micro)
        self.num_usual = train_batch_size_usual // ranks
        self.num_expert = train_batch_size_expert // ranks

    def mu_at(self, step: Int[Tensor, "B"] | None) -> float:
        """Return the weight of the expert's side, in [0, 1], at a training step."""
        raise NotImplementedError

    def parts(self, values: Mapping[str, Tensor]) -> tuple[LossPart, ...]:
        """Return the two sides."""
        mu, is_expert = self.mu_at(values.get("step")), values["expert_mask"]
        return LossPart("usual", ~is_expert, 1.0 - mu, self.usual), LossPart("expert", is_expert, mu, self.expert)

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        old_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        expert_mask: Bool[Tensor, "B"],
        step: Int[Tensor, "B"] | None = None,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and the metrics `mu`, `loss` and those of the sides.

        The metrics of the sides are under `usual/` and `expert/`.

        Args:
            logprob: log-probabilities under the policy.
            old_logprob: those under the policy that sampled; any number in expert rows.
            action_mask: true on the tokens that count.
            advantages: advantages of the usual rows; any number in expert rows.
            expert_mask: true for rows of the expert.
            step: the training step, equal in all rows.
            kwargs: not used.

        Raises:
            ValueError: rows of a side that was said to have none, or fewer than one a rank.
        """
        mu = self.mu_at(step)
        per_row = self.num_batches / (logprob.shape[0] if self.use_dynamic_bsz else 1)
        expert, usual = expert_mask.nonzero().squeeze(-1), (~expert_mask).nonzero().squeeze(-1)
        if (len(usual) and not self.num_usual) or (len(expert) and not self.num_expert):
            raise ValueError(
                f"got {len(usual)} usual and {len(expert)} expert rows, but on a rank train_batch_size_usual is "
                f"{self.num_usual} and train_batch_size_expert is {self.num_expert}"
            )
        loss, metrics = torch.zeros((), dtype=logprob.dtype, device=logprob.device), {"mu": mu}
        if len(usual):
            value, of_side = self.usual(logprob[usual], old_logprob[usual], action_mask[usual], advantages[usual])
            loss = loss + (1.0 - mu) * len(usual) * per_row / self.num_usual * value
            metrics |= {f"usual/{name}": number for name, number in of_side.items()}
        if len(expert):
            value, of_side = self.expert(logprob=logprob[expert], action_mask=action_mask[expert])
            loss = loss + mu * len(expert) * per_row / self.num_expert * value
            metrics |= {f"expert/{name}": number for name, number in of_side.items()}
        return loss, metrics | {"loss": loss.item()}


@POLICY_LOSS_FN.register_module("mix")
class MIXPolicyLossFn(MixedLossFn):
    """PPO's loss and the supervised loss at a fixed mixture.

    The former is for usual rows, the latter for expert rows.

    arXiv:2505.17826v3, section 3.2. See `MixedLossFn` for the formula.

    Args:
        backend: see `PolicyLossFn`.
        mu: weight of the expert's side, in [0, 1].
        clip_range: see `PPOPolicyLossFn`.
        clip_range_low: see `PPOPolicyLossFn`.
        clip_range_high: see `PPOPolicyLossFn`.
        use_dynamic_bsz: see `MixedLossFn`, also for the sizes.
        ppo_mini_batch_size: rows of a mini-batch.
        ppo_micro_batch_size_per_gpu: rows of a micro-batch.
        ngpus_trainer: number of ranks.
        train_batch_size_usual: usual rows of a step.
        train_batch_size_expert: expert rows of a step.
        loss_agg_mode: see `aggregate_loss`.
        sft_loss_agg_mode: that of the expert's side, if it differs.
        grpo_loss_agg_mode: that of the usual side, if it differs.

    Raises:
        ValueError: `mu` outside [0, 1], or a size that does not fit.
    """

    summary = "weighted sum of ppo and sft, the weight fixed (arXiv:2505.17826v3, section 3.2)"
    formula = (
        "= (1 - {mu}) U + {mu} S"
        "\nU: max(-A r, -A clip(r, 1 - {clip_range_low|clip_range}, 1 + {clip_range_high|clip_range})), where A < "
        "0 at most -3 A, over the policy's own rows, by {grpo_loss_agg_mode|loss_agg_mode}"
        "\nS: over the expert's rows, by {sft_loss_agg_mode|loss_agg_mode}, of -logprob"
        "\nr = exp(logprob - old_logprob)"
        "\nU and S are each normalised over their own rows of the whole mini-batch"
    )
    ranges = CLIP_RANGE | {"mu": "[0, 1]"}

    def __init__(
        self,
        backend: str = "verl",
        mu: float = 0.1,
        clip_range: float | None = 0.2,
        clip_range_low: float | None = None,
        clip_range_high: float | None = None,
        use_dynamic_bsz: bool = False,
        ppo_mini_batch_size: int = 1,
        ppo_micro_batch_size_per_gpu: int = 1,
        ngpus_trainer: int = 1,
        train_batch_size_usual: int = 1,
        train_batch_size_expert: int = 1,
        loss_agg_mode: str = "token-mean",
        sft_loss_agg_mode: str | None = None,
        grpo_loss_agg_mode: str | None = None,
    ) -> None:
        usual_mode, expert_mode = grpo_loss_agg_mode or loss_agg_mode, sft_loss_agg_mode or loss_agg_mode
        super().__init__(
            backend,
            PPOPolicyLossFn(backend, clip_range, clip_range_low, clip_range_high, loss_agg_mode=usual_mode),
            SFTPolicyLossFn(backend, expert_mode),
            use_dynamic_bsz=use_dynamic_bsz,
            ppo_mini_batch_size=ppo_mini_batch_size,
            ppo_micro_batch_size_per_gpu=ppo_micro_batch_size_per_gpu,
            ngpus_trainer=ngpus_trainer,
            train_batch_size_usual=train_batch_size_usual,
            train_batch_size_expert=train_batch_size_expert,
        )
        if not 0.0 <= mu <= 1.0:
            raise ValueError(f"mu must be in [0, 1], got {mu}")
        self.mu = mu

    def mu_at(self, step: Int[Tensor, "B"] | None) -> float:
        """Return mu, the same at every step."""
        return self.mu
