"""Reinforcement mixed with imitation by a schedule (CHORD).

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

import math

from jaxtyping import Int
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.policy_loss_fn.mix import MixedLossFn
from trinity.algorithm.policy_loss_fn.ppo import PPOPolicyLossFn
from trinity.algorithm.policy_loss_fn.ratio import CLIP_RANGE
from trinity.algorithm.policy_loss_fn.sft import SFTPolicyLossFn
from trinity.algorithm.policy_loss_fn.sft_phi import SFTPhiPolicyLossFn
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn


@POLICY_LOSS_FN.register_module("mix_chord")
class MIXCHORDPolicyLossFn(MixedLossFn):
    """PPO's loss and a phi-weighted supervised loss, mixed by a schedule.

    PPO's loss is for usual rows, the other for expert rows. CHORD, arXiv:2508.11408, eq. 3. mu rises linearly from 0 to
    `mu_peak` in `mu_warmup_steps`, falls to `mu_valley` by a half cosine in `mu_decay_steps`, and stays there. See
    `MixedLossFn` for the formula; a side without rows counts 0 in every aggregation, where trinity-rft 0.6.0 gives NaN.

    Args:
        backend: see `PolicyLossFn`.
        mu_warmup_steps: steps of the rise, >= 0.
        mu_decay_steps: steps of the fall, >= 0.
        mu_peak: highest weight of the expert's side, in [0, 1].
        mu_valley: its final weight, in [0, 1].
        enable_phi_function: weight expert tokens by p (1 - p), see `SFTPhiPolicyLossFn`.
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
        ValueError: a mu outside [0, 1], negative steps, or a size that does not fit.
    """

    summary = "weighted sum of ppo and sft, the weight on a schedule (arXiv:2508.11408, eq. 3)"
    formula = (
        "= (1 - mu) U + mu S"
        "\nmu rises from 0 to {mu_peak} in {mu_warmup_steps} steps, falls to {mu_valley} in {mu_decay_steps} "
        "(half cosine), and stays there"
        "\nU: max(-A r, -A clip(r, 1 - {clip_range_low|clip_range}, 1 + {clip_range_high|clip_range})), where A < "
        "0 at most -3 A, over the policy's own rows, by {grpo_loss_agg_mode|loss_agg_mode}"
        "\nS: over the expert's rows, by {sft_loss_agg_mode|loss_agg_mode}, of -w logprob"
        "\n?enable_phi_function w = sg(p (1 - p)), p = exp(logprob)"
        "\n?enable_phi_function=False w = 1"
        "\nr = exp(logprob - old_logprob)"
        "\nU and S are each normalised over their own rows of the whole mini-batch"
    )
    ranges = CLIP_RANGE | {
        "mu_warmup_steps": "[0, inf]",
        "mu_decay_steps": "[0, inf]",
        "mu_peak": "[0, 1]",
        "mu_valley": "[0, 1]",
    }

    def __init__(
        self,
        backend: str = "verl",
        mu_warmup_steps: int = 0,
        mu_decay_steps: int = 0,
        mu_peak: float = 0.1,
        mu_valley: float = 0.1,
        enable_phi_function: bool = True,
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
        expert: TokenLossFn = SFTPolicyLossFn(backend, expert_mode)
        if enable_phi_function:
            expert = SFTPhiPolicyLossFn(backend, 1.0, expert_mode)
        super().__init__(
            backend,
            PPOPolicyLossFn(backend, clip_range, clip_range_low, clip_range_high, loss_agg_mode=usual_mode),
            expert,
            use_dynamic_bsz=use_dynamic_bsz,
            ppo_mini_batch_size=ppo_mini_batch_size,
            ppo_micro_batch_size_per_gpu=ppo_micro_batch_size_per_gpu,
            ngpus_trainer=ngpus_trainer,
            train_batch_size_usual=train_batch_size_usual,
            train_batch_size_expert=train_batch_size_expert,
        )
        if not (0.0 <= mu_peak <= 1.0 and 0.0 <= mu_valley <= 1.0):
            raise ValueError(f"mu_peak and mu_valley must be in [0, 1], got {mu_peak} and {mu_valley}")
        if mu_warmup_steps < 0 or mu_decay_steps < 0:
            raise ValueError(f"mu steps must be >= 0, got {mu_warmup_steps} and {mu_decay_steps}")
        self.mu_warmup_steps = mu_warmup_steps
        self.mu_decay_steps = mu_decay_steps
        self.mu_peak = mu_peak
        self.mu_valley = mu_valley

    def mu_at(self, step: Int[Tensor, "B"] | None) -> float:
        """Return mu at the training step.

        Raises:
            ValueError: mu moves, and no step is given.
        """
        if not self.mu_warmup_steps and not self.mu_decay_steps:
            return self.mu_valley
        if step is None:
            raise ValueError("mix_chord needs step where mu_warmup_steps or mu_decay_steps is set")
        done = int(step.max())
        if done < self.mu_warmup_steps:
            return done / self.mu_warmup_steps * self.mu_peak
        if done >= self.mu_warmup_steps + self.mu_decay_steps:
            return self.mu_valley
        falling = math.cos(math.pi * (done - self.mu_warmup_steps) / self.mu_decay_steps)
        return self.mu_valley + 0.5 * (self.mu_peak - self.mu_valley) * (1.0 + falling)
